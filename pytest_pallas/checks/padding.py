"""``padding``: elements beyond the edge of an array, or ignored, do not affect the output."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from pallas_sim.dtypes import is_bool, is_exact, is_inexact
from pytest_pallas.backends.protocol import Backend, Fill, Outcome, label
from pytest_pallas.checks import declare_check
from pytest_pallas.checks.context import CheckContext, CheckResult, run
from pytest_pallas.checks.metamorphic import run_again, unchanged
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.draw.values import range_of
from pytest_pallas.errors import NotApplicableError, SpecError
from pytest_pallas.grid.kernel_calls import KernelCall
from pytest_pallas.grid.model import is_tiled, overhanging_blocks
from pytest_pallas.judge.tolerance import Comparison
from pytest_pallas.spec import KernelSpec

#: Values beyond the edges of arrays, besides the interpreters' own.
_FILLS = (Fill("high", "padding"), Fill("low", "padding"))


def requires_kernels(
    spec: KernelSpec, backend: Backend, kernels: Sequence[KernelCall]
) -> str | None:
    """Return the reason why the check does not apply to the kernels of a call, or None.

    Kernels with blocks pass, because it depends on shapes whether a block extends over an edge.
    """
    if spec.ignored is not None:
        return None
    fills = getattr(backend, "fills", False)
    return None if fills and any(map(is_tiled, kernels)) else _why_not(backend)


@declare_check(
    "padding",
    asks="is the output independent of elements beyond the edge and of ignored elements?",
    requires_kernels=requires_kernels,
    example_fraction=0.5,
)
def padding(context: CheckContext) -> CheckResult:
    """Run the kernel with other values in padding and ignored elements, and compare bit for bit.

    First, it fills the padding of blocks that extend beyond an array. The interpreters fill it with
    NaN, which comparisons can hide and integers do not have; so the check also fills it with the
    largest and the lowest finite numbers. It does not run a kernel without such blocks again. Then
    it replaces the elements of the arguments that the spec declares as ignored. (The sanitizer
    ``memory`` checks uninitialized scratch memory and outputs.)

    Raises:
      NotApplicableError: there is neither padding nor an ignored element.
      KernelError: the kernel raised, and did not before; the message has the values.
    """
    first = run(context, context.kernel, context.arguments.args)
    fills = _FILLS if _exposed(context, first) else ()
    masks = masks_of(context.ignored, context.arguments)
    if not fills and masks is None:
        raise NotApplicableError(_why_not(context.backend))
    comparisons = list[Comparison]()
    for fill in fills:
        change = f"with {fill}"
        # the first run detects races
        again = run_again(context, context.arguments.args, change, races=False, fill=fill)
        comparisons += unchanged(again, first, change)
    for change, args in poisoned(context.arguments.args, masks) if masks is not None else ():
        again = run_again(context, args, change, races=context.settings.races)
        comparisons += unchanged(again, first, change)
    return CheckResult(comparisons=comparisons, outcome=first)


def _exposed(context: CheckContext, first: Outcome) -> bool:
    """Return whether a kernel could read beyond an edge, where the backend sets the values."""
    if not getattr(context.backend, "fills", False):
        return False
    return not context.settings.jit or any(map(overhanging_blocks, first.kernels))


def _why_not(backend: Backend) -> str:
    if getattr(backend, "fills", False):
        return "no block extends beyond its array, and the spec has no ignored="
    return (
        f"{label(backend)} does not control the values beyond the edge of an array, and the spec "
        "has no ignored="
    )


# Elements of the arguments that a spec declares as ignored, and their replacement.


#: For each positional argument the ignored elements, or None.
Masks = Sequence[np.ndarray[Any, Any] | None]

#: Integers with more bits are mostly indices; with fewer, data.
DATA_BYTES = 1


def masks_of(ignored: Callable[..., Any] | None, arguments: Arguments) -> Masks | None:
    """Evaluate ``KernelSpec.ignored`` for a call, and check it; None if no element is ignored.

    Raises:
      SpecError: ``ignored`` raised, or returned anything but None or a bool array of the
        argument's shape for each positional argument.
    """
    if ignored is None:
        return None
    args = arguments.args
    try:
        returned = ignored(*args, **arguments.options)
    except Exception as error:
        raise SpecError(f"ignored raised {type(error).__name__}: {error}") from error
    if not isinstance(returned, (tuple, list)) or len(returned) != len(args):  # pyright: ignore[reportUnknownArgumentType]
        several = isinstance(returned, (tuple, list))
        what = f"{len(returned)} entries" if several else repr(type(returned))  # pyright: ignore[reportUnknownArgumentType]
        raise SpecError(
            f"ignored must return None or a bool array for each of the {len(args)} positional "
            f"arguments, not {what}"
        )
    masks = [_mask(position, mask, args) for position, mask in enumerate(returned)]  # pyright: ignore[reportUnknownArgumentType]
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
    """Yield the arguments with other values in the ignored elements, each with its description.

    Floats get NaN, then both infinities, then the largest and the lowest finite number. Integers of
    one byte or less are data, and get the ends of their range. Others may be indices, which must
    stay valid: they get the smallest and the largest value of the array. Bools get both values.
    """
    for value, poison in _POISONS.items():
        changed = [
            argument if mask is None else _replaced(argument, mask, poison)
            for argument, mask in zip(args, masks, strict=True)
        ]
        if any(new is not old for new, old in zip(changed, args, strict=True)):
            yield f"with {value} in the ignored elements of the arguments", tuple(changed)


def _replaced(argument: Any, mask: Any, poison: Callable[[Any], Any]) -> Any:
    changed = np.array(argument)
    value = poison(changed)
    if value is None or not mask.any():
        return argument
    with np.errstate(all="ignore"):  # not every format has an infinity
        # in turn, if there are several
        changed[mask] = np.resize(np.asarray(value), mask.sum()).astype(changed.dtype)
    return changed


def _end(array: Any, name: str, of: Callable[[Any], Any]) -> Any:
    if is_exact(array.dtype) and not is_bool(array.dtype) and array.dtype.itemsize > DATA_BYTES:
        return of(array)
    dtype = array.real.dtype if array.dtype.kind == "c" else array.dtype
    return getattr(range_of(dtype), name)


#: The values of ignored elements of an array, in words; None leaves them as they are.
_POISONS: Mapping[str, Callable[[Any], Any]] = {
    "NaN": lambda array: np.nan if is_inexact(array.dtype) else None,
    "infinities": lambda array: [np.inf, -np.inf] if is_inexact(array.dtype) else None,
    "the largest number": lambda array: _end(array, "high", np.max),
    "the lowest number": lambda array: _end(array, "low", np.min),
}
