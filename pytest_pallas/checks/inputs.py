"""The inputs of a check's calls: which of the declared ones were tried, and which are ignored.

``to_json`` says for a record what a check tried and never tried of what its strategy declares.
``masks_of`` and ``poisoned`` replace the elements that a spec declares as ignored.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pallas_sim.dtypes import is_bool, is_exact, is_inexact
from pytest_pallas import record as aspects_
from pytest_pallas.draw.arguments import (
    NOTHING,
    Arguments,
    Declared,
    Drawn,
    aspects,
    dtype_names,
    dtype_word,
    without_addresses,
)
from pytest_pallas.draw.values import range_of
from pytest_pallas.errors import SpecError
from pytest_pallas.record import DTYPE, Aspect


@dataclass(frozen=True)
class Inputs:
    """The inputs of one call.

    Attributes:
      shapes: of its arrays, such as ``"8x128 128x1"``, with ``"()"`` for a scalar; "" without any.
      signature: digest of everything that its trace depends on: the structure of its arguments, the
        shape and dtype of each array, and every other argument, options and tuning included.
      choices: pairs of an aspect and its word; see ``strategies.declared``.
      dtypes: the names of its dtypes, each once.
      declared: all words that the call's strategy could have drawn.
    """

    shapes: str
    signature: str
    choices: tuple[tuple[Aspect, str], ...]
    dtypes: tuple[str, ...]
    declared: tuple[Declared, ...]


def inputs_of(arguments: Arguments) -> Inputs:
    """Return the inputs of a call. Without a recipe, only its shapes and dtypes."""
    leaves = [leaf for leaf in jax.tree.leaves(arguments.args) if hasattr(leaf, "dtype")]
    shapes = " ".join("x".join(map(str, leaf.shape)) or "()" for leaf in leaves)
    dtypes = tuple(str(leaf.dtype) for leaf in leaves)
    drawn = [arguments, *(arg for arg in arguments.args if isinstance(arg, Drawn))]
    choices = [pair for draw in drawn for pair in aspects(draw)]
    dtypes_drawn = [draw.recipe["dtype"] for draw in drawn if "dtype" in draw.recipe]
    if dtypes and not dtypes_drawn:
        dtypes_drawn = [tuple(dict.fromkeys(dtypes))]
        choices.append((DTYPE, dtype_word(dtypes_drawn[0])))
    return Inputs(
        shapes,
        _signature(arguments),
        tuple(choices),
        tuple(dict.fromkeys(name for draw in dtypes_drawn for name in dtype_names(draw))),
        tuple(draw.declared for draw in drawn if draw.declared is not None),
    )


def signatures(calls: Sequence[Inputs]) -> tuple[str, ...]:
    """Return the distinct signatures of some calls, in order."""
    return tuple(sorted({call.signature for call in calls}))


def _signature(arguments: Arguments) -> str:
    """See ``Inputs``. It is the same in every process."""
    positional, structure = jax.tree.flatten(arguments.args)
    named, names = jax.tree.flatten([arguments.options, arguments.tuning])
    arrays = (np.ndarray, jax.Array, jax.ShapeDtypeStruct)
    parts = [str(structure), str(names)]
    # Numpy scalars are arrays among the arguments, and numbers among the options, as for jit.
    parts += [_word(leaf, isinstance(leaf, (*arrays, np.generic))) for leaf in positional]
    parts += [_word(leaf, isinstance(leaf, arrays)) for leaf in named]
    text = without_addresses("\n".join(parts))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _word(leaf: Any, is_array: bool) -> str:
    """Return the part of one leaf of a call that a trace depends on."""
    if is_array:
        return f"{leaf.dtype}{list(leaf.shape)}"
    return f"{type(leaf).__name__} {leaf!r}"


def to_json(calls: Sequence[Inputs]) -> dict[str, Any]:
    """Write the inputs of several calls together, as in ``Record.inputs``; empty without calls."""
    if not calls:
        return {}
    tried = _grouped(pair for call in calls for pair in call.choices)
    strategies = {id(of): of for call in calls for of in (NOTHING, *call.declared)}.values()
    declared = _grouped(
        (aspect, choice)
        for strategy in strategies
        for aspect, choices in strategy.choices.items()
        for choice in choices
    )
    return {
        "shapes": list(dict.fromkeys(call.shapes for call in calls if call.shapes)),
        "signatures": len(signatures(calls)),
        "dtypes": sorted({name for call in calls for name in call.dtypes}),
        "tried": aspects_.aspects_to_json(
            {aspect: _ordered(drawn, declared.get(aspect, {})) for aspect, drawn in tried.items()}
        ),
        "never": aspects_.aspects_to_json(
            {
                aspect: missed
                for aspect, choices in declared.items()
                if (missed := [word for word in choices if word not in tried.get(aspect, ())])
            }
        ),
    }


def _grouped(pairs: Iterator[tuple[Aspect, str]]) -> dict[Aspect, dict[str, None]]:
    """Words by aspect, each once, in the order in which they come."""
    groups: dict[Aspect, dict[str, None]] = {}
    for aspect, word in pairs:
        groups.setdefault(aspect, {})[word] = None
    return groups


def _ordered(tried: Mapping[str, None], declared: Mapping[str, None]) -> list[str]:
    """Words in the order of declaration, then the others alphabetically."""
    known = [word for word in declared if word in tried]
    return known + sorted(word for word in tried if word not in declared)


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
