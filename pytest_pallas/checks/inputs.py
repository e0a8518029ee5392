"""Coverage of the declared inputs by the calls of a check, as plain values."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from pytest_pallas import aspects as aspects_
from pytest_pallas.aspects import DTYPE, Aspect
from pytest_pallas.strategies.arguments import Arguments, Drawn
from pytest_pallas.strategies.declared import (
    NOTHING,
    Declared,
    aspects,
    dtype_names,
    dtype_word,
    without_addresses,
)


@dataclass(frozen=True)
class Inputs:
    """The inputs of one call.

    Attributes:
      shapes: of its arrays, such as ``"8x128 128x1"``, with ``"()"`` for a scalar; "" without any.
      signature: digest of everything that its trace depends on: the structure of its arguments, the
        shape and dtype of each array, and every other argument, options and tuning included.
      words: pairs of an aspect and its word; see ``strategies.declared``.
      dtypes: the names of its dtypes, each once.
      declared: all words that the call's strategy could have drawn.
    """

    shapes: str
    signature: str
    words: tuple[tuple[Aspect, str], ...]
    dtypes: tuple[str, ...]
    declared: tuple[Declared, ...]


def inputs_of(arguments: Arguments) -> Inputs:
    """The inputs of a call. Without a recipe, only its shapes and dtypes."""
    leaves = [leaf for leaf in jax.tree.leaves(arguments.args) if hasattr(leaf, "dtype")]
    shapes = " ".join("x".join(map(str, leaf.shape)) or "()" for leaf in leaves)
    dtypes = tuple(str(leaf.dtype) for leaf in leaves)
    drawn = [arguments, *(arg for arg in arguments.args if isinstance(arg, Drawn))]
    words = [pair for each in drawn for pair in aspects(each)]
    given = [each.recipe["dtype"] for each in drawn if "dtype" in each.recipe]
    if dtypes and not given:
        given = [tuple(dict.fromkeys(dtypes))]
        words.append((DTYPE, dtype_word(given[0])))
    return Inputs(
        shapes,
        _signature(arguments),
        tuple(words),
        tuple(dict.fromkeys(name for each in given for name in dtype_names(each))),
        tuple(each.declared for each in drawn if each.declared is not None),
    )


def signatures(calls: Sequence[Inputs]) -> tuple[str, ...]:
    """The distinct signatures of some calls, in order."""
    return tuple(sorted({call.signature for call in calls}))


def _signature(arguments: Arguments) -> str:
    """See ``Inputs``. It is the same in every process."""
    positional, structure = jax.tree.flatten(arguments.args)
    named, names = jax.tree.flatten([arguments.options, arguments.tuning])
    arrays = (np.ndarray, jax.Array, jax.ShapeDtypeStruct)
    words = [str(structure), str(names)]
    # Numpy scalars are arrays among the arguments, and numbers among the options, as for jit.
    words += [_word(leaf, isinstance(leaf, (*arrays, np.generic))) for leaf in positional]
    words += [_word(leaf, isinstance(leaf, arrays)) for leaf in named]
    text = without_addresses("\n".join(words))
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _word(leaf: Any, is_array: bool) -> str:
    """The part of one leaf of a call that a trace depends on."""
    if is_array:
        return f"{leaf.dtype}{list(leaf.shape)}"
    return f"{type(leaf).__name__} {leaf!r}"


def to_json(calls: Sequence[Inputs]) -> dict[str, Any]:
    """The inputs of several calls together, as in ``Record.inputs``; empty without calls."""
    if not calls:
        return {}
    tried = _grouped(pair for call in calls for pair in call.words)
    known = {id(each): each for call in calls for each in (NOTHING, *call.declared)}.values()
    declared = _grouped(
        (aspect, word) for each in known for aspect, words in each.words.items() for word in words
    )
    return {
        "shapes": list(dict.fromkeys(call.shapes for call in calls if call.shapes)),
        "signatures": len(signatures(calls)),
        "dtypes": sorted({name for call in calls for name in call.dtypes}),
        "tried": aspects_.to_json(
            {aspect: _ordered(words, declared.get(aspect, {})) for aspect, words in tried.items()}
        ),
        "never": aspects_.to_json(
            {
                aspect: missed
                for aspect, words in declared.items()
                if (missed := [word for word in words if word not in tried.get(aspect, ())])
            }
        ),
    }


def _grouped(pairs: Iterator[tuple[Aspect, str]]) -> dict[Aspect, dict[str, None]]:
    """Words by aspect, each once, in the order in which they come."""
    groups: dict[Aspect, dict[str, None]] = {}
    for aspect, word in pairs:
        groups.setdefault(aspect, {})[word] = None
    return groups


def _ordered(words: Mapping[str, None], declared: Mapping[str, None]) -> list[str]:
    """Words in the order of declaration, then the others alphabetically."""
    known = [word for word in declared if word in words]
    return known + sorted(word for word in words if word not in declared)
