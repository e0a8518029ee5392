"""Elements of the arguments that a spec declares as ignored, and their replacement."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pytest_pallas.errors import SpecError
from pytest_pallas.numerics import is_bool, is_complex, is_exact, is_float
from pytest_pallas.strategies.arguments import Arguments
from pytest_pallas.strategies.values import limits

#: For each positional argument the ignored elements, or None.
Masks = Sequence[np.ndarray[Any, Any] | None]

#: Integers with more bits are mostly indices; with fewer, data.
DATA_BYTES = 1


def masks_of(ignored: Callable[..., Any] | None, arguments: Arguments) -> Masks | None:
    """The masks of ``KernelSpec.ignored`` for a call, checked; None if no element is ignored.

    Raises:
      SpecError: ``ignored`` raised, or returned anything but None or a bool array of the
        argument's shape for each positional argument.
    """
    if ignored is None:
        return None
    args = arguments.args
    try:
        found = ignored(*args, **arguments.options)
    except Exception as error:
        raise SpecError(f"ignored raised {type(error).__name__}: {error}") from error
    if not isinstance(found, (tuple, list)) or len(found) != len(args):  # pyright: ignore[reportUnknownArgumentType]
        what = f"{len(found)} entries" if isinstance(found, (tuple, list)) else repr(type(found))  # pyright: ignore[reportUnknownArgumentType]
        raise SpecError(
            f"ignored must return None or a bool array for each of the {len(args)} positional "
            f"arguments, not {what}"
        )
    masks = [_mask(position, mask, args) for position, mask in enumerate(found)]  # pyright: ignore[reportUnknownArgumentType]
    return masks if any(mask is not None and mask.any() for mask in masks) else None


def _mask(position: int, mask: Any, args: Sequence[Any]) -> np.ndarray[Any, Any] | None:
    if mask is None:
        return None
    mask, argument = np.asarray(mask), args[position]
    if mask.dtype != bool:
        raise SpecError(
            f"ignored: the mask of argument {position} has dtype {mask.dtype}; it must be bool"
        )
    if not hasattr(argument, "dtype") or mask.shape != np.shape(argument):
        what = f"has shape {np.shape(argument)}" if hasattr(argument, "dtype") else "is no array"
        raise SpecError(
            f"ignored: the mask of argument {position} has shape {mask.shape}, but the argument "
            f"{what}"
        )
    return mask


def poisoned(args: tuple[Any, ...], masks: Masks) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """The arguments with other values in the ignored elements, each with its description.

    Floats get NaN, then both infinities, then the largest and the lowest finite number. Integers of
    one byte or less are data, and get the ends of their range. Others may be indices, which must
    stay valid: they get the smallest and the largest value of the array. Bools get both values.
    """
    for words, poison in (
        ("NaN", _nan),
        ("infinities", _infinity),
        ("the largest number", _largest),
        ("the lowest number", _lowest),
    ):
        changed = [
            argument if mask is None else _replaced(argument, mask, poison)
            for argument, mask in zip(args, masks, strict=True)
        ]
        if any(new is not old for new, old in zip(changed, args, strict=True)):
            yield f"with {words} in the ignored elements of the arguments", tuple(changed)


def _replaced(argument: Any, mask: Any, poison: Callable[[Any], Any]) -> Any:
    changed = np.array(argument)
    value = poison(changed)
    if value is None or not mask.any():
        return argument
    with np.errstate(all="ignore"):  # not every format has an infinity
        # in turn, if there are several
        changed[mask] = np.resize(np.asarray(value), mask.sum()).astype(changed.dtype)
    return changed


def _inexact(array: Any) -> bool:
    return is_float(array.dtype) or is_complex(array.dtype)


def _nan(array: Any) -> Any:
    return np.nan if _inexact(array) else None


def _infinity(array: Any) -> Any:
    return [np.inf, -np.inf] if _inexact(array) else None


def _largest(array: Any) -> Any:
    return _end(array, "high", np.max)


def _lowest(array: Any) -> Any:
    return _end(array, "low", np.min)


def _end(array: Any, name: str, of: Callable[[Any], Any]) -> Any:
    if is_exact(array.dtype) and not is_bool(array.dtype) and array.dtype.itemsize > DATA_BYTES:
        return of(array)
    dtype = array.real.dtype if array.dtype.kind == "c" else array.dtype
    return getattr(limits(dtype), name)
