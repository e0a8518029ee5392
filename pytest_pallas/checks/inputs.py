"""The inputs of a check's calls: which of the declared ones were tried, and which never.

``inputs_of`` reads them off a call, and ``to_json`` writes those of all calls into a record.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

import jax
import numpy as np

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
from pytest_pallas.record import DTYPE, Aspect

#: Combinations are counted if there are at most so many.
_MOST = 40_000


@dataclass(frozen=True)
class Inputs:
    """The inputs of one call.

    Attributes:
      shapes: of its arrays, such as ``"8x128 128x1"``, with ``"()"`` for a scalar; "" without any.
      signature: digest of everything that its trace depends on: the structure of its arguments, the
        shape and dtype of each array, every other argument, options and tuning included, and the
        drawn mesh.
      choices: pairs of an aspect and its word; see ``draw.arguments.Declared``.
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
        tuple(dict.fromkeys(name for several in dtypes_drawn for name in dtype_names(several))),
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
    parts = [str(structure), str(names), *map(str, arguments.mesh.items())]
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
    strategies = dict.fromkeys(strategy for call in calls for strategy in (NOTHING, *call.declared))
    declared = _grouped(
        (aspect, choice)
        for strategy in strategies
        for aspect, choices in strategy.choices.items()
        for choice in choices
    )
    pairs, triples = (_together(calls, tuple(strategies), size) for size in (2, 3))
    return {
        "pairs": [*pairs],
        "triples": [*triples],
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


def _together(
    calls: Sequence[Inputs], strategies: tuple[Declared, ...], size: int
) -> tuple[int, int]:
    """Count the sets of so many choices that came together, and those that may."""
    possible = _possible(strategies, size)
    tried = {
        frozenset(chosen)
        for choices in dict.fromkeys(call.choices for call in calls)
        for chosen in combinations(choices, size)
    }
    return len(tried & possible), len(possible)


@functools.lru_cache(maxsize=16)
def _possible(strategies: tuple[Declared, ...], size: int) -> frozenset[frozenset[Any]]:
    """Return the sets of so many declared choices that no constraint forbids; none if too many."""
    by_aspect: dict[Aspect, dict[str, None]] = {}
    for strategy in strategies:
        for aspect, choices in strategy.choices.items():
            by_aspect.setdefault(aspect, {}).update(dict.fromkeys(choices))
    several = [(aspect, group) for aspect, group in by_aspect.items() if len(group) > 1]
    free = [[(aspect, word) for word in group] for aspect, group in several]
    groups = [*combinations(free, size)]
    if sum(math.prod(map(len, group)) for group in groups) > _MOST:
        return frozenset()
    impossible = frozenset[Any]().union(*(strategy.impossible for strategy in strategies))
    every = (frozenset(chosen) for group in groups for chosen in product(*group))
    if not impossible:
        return frozenset(every)
    return frozenset(
        chosen
        for chosen in every
        if not any(frozenset(pair) in impossible for pair in combinations(chosen, 2))
    )


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
