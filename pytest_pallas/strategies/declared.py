"""What a strategy may draw, known in advance, so that undrawn choices can be reported.

Each draw has a word for each aspect: its dtypes, its classes of values, each dim, each option, each
tuning parameter. The word of a dim is a kind of boundary, such as ``"tile+1"``, because kernels
fail at kinds of sizes, not at numbers. Only choices between a few values are declared: the choices
of other strategies than a plain ``sampled_from`` or ``booleans`` are not known.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from pytest_pallas.aspects import DTYPE, VALUES, Aspect
from pytest_pallas.compat.fuzzing import sampled_elements
from pytest_pallas.strategies.dtypes import as_dtype
from pytest_pallas.strategies.sizes.dims import DimsPlan, boundaries

if TYPE_CHECKING:
    from pytest_pallas.strategies.arguments import Arguments, Drawn

#: Limit on the number of declared choices.
MOST = 24

_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


# compared by identity: all draws of a strategy share one
@dataclass(frozen=True, eq=False)
class Declared:
    """The choices of a strategy.

    Attributes:
      words: for each aspect the possible words, the simplest first.
      kinds: for each dim with a pool the kind of boundary of each size.
      tiles: for each dim with sizes around tiles, the tiles.
      keyword_kinds: for each option or tuning parameter the kinds of its values; see
        ``keyword_kind``.
    """

    words: Mapping[Aspect, tuple[str, ...]] = field(default_factory=dict[Aspect, tuple[str, ...]])
    kinds: Mapping[str, Mapping[int, str]] = field(default_factory=dict[str, Mapping[int, str]])
    tiles: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])
    keyword_kinds: Mapping[Aspect, frozenset[str]] = field(
        default_factory=dict[Aspect, frozenset[str]]
    )


NOTHING = Declared()


def declare_arrays(
    plan: Callable[[tuple[int, ...]], DimsPlan], dtypes: Iterable[Any], classes: Iterable[str]
) -> Declared:
    """The choices of ``arrays``.

    Args:
      plan: returns the plan of the dims, given the bytes of an element of each array, or of all.
      dtypes: the strategies for dtypes, one for all arrays or one for each.
      classes: the classes of values.
    """
    words = {VALUES: tuple(classes)}
    choices = [alternatives(strategy) for strategy in dtypes]
    itemsizes = {(1,)}
    if all(choices) and prod(map(len, choices)) <= MOST:
        # A single strategy may draw the dtypes of all arrays together, as a tuple.
        rows = [row[0] if isinstance(row[0], tuple) else row for row in product(*choices)]
        joint = [tuple(as_dtype(dtype) for dtype in row) for row in rows]
        names = [tuple(dtype.name for dtype in row) for row in joint]
        words[DTYPE] = tuple(dict.fromkeys(map(dtype_word, names)))
        itemsizes = {tuple(dtype.itemsize for dtype in row) for row in joint}
    kinds: dict[str, dict[int, str]] = {}
    tiles: dict[str, tuple[int, ...]] = {}
    for sizes in sorted(itemsizes):  # from the smallest, which allow the largest dims
        made = plan(sizes)
        tiles.update((name, pool.tiles) for name, pool in made.pools.items() if pool.tiles)
        for name, kind_of in boundaries(made).items():
            kinds.setdefault(name, {}).update(kind_of)
    for name, kind_of in kinds.items():
        words[Aspect("dim", name)] = tuple(dict.fromkeys(kind_of.values()))
    return Declared(words, kinds, tiles)


def declare_keywords(
    declared: Declared, options: Mapping[str, Any], tuning: Mapping[str, Any]
) -> Declared:
    """``declared`` with the choices of keyword arguments, which are strategies or constants."""
    words = dict(declared.words)
    kinds = dict(declared.keyword_kinds)
    for role, keywords in (("option", options), ("tuning", tuning)):
        for name, entry in keywords.items():
            found = alternatives(entry)
            if found:
                aspect = Aspect(role, name)
                words[aspect] = tuple(dict.fromkeys(map(keyword_word, found)))
                kinds[aspect] = frozenset(map(keyword_kind, found))
    return dataclasses.replace(declared, words=words, keyword_kinds=kinds)


def alternatives(strategy: Any) -> tuple[Any, ...]:
    """The choices of a strategy; empty if they are not known, or more than ``MOST``."""
    found = sampled_elements(strategy)
    return () if found is None or len(found) > MOST else tuple(found)


def aspects(drawn: Arguments | Drawn) -> Iterator[tuple[Aspect, str]]:
    """The aspects of a draw, each with its word."""
    declared = drawn.declared or NOTHING
    for aspect, word in ((DTYPE, dtype_word), (VALUES, str)):
        if aspect.role in drawn.recipe:
            yield aspect, word(drawn.recipe[aspect.role])
    for name, kind_of in declared.kinds.items():
        if name in drawn.recipe:
            yield Aspect("dim", name), kind_of.get(drawn.recipe[name], "other")
    for role, keywords in (("option", "options"), ("tuning", "tuning")):
        for name, value in getattr(drawn, keywords, {}).items():
            aspect = Aspect(role, name)
            if aspect in declared.words:
                yield aspect, keyword_word(value)


def extents(drawn: Arguments | Drawn) -> frozenset[str]:
    """How a draw exceeds the tiles of its dims.

    ``"several"``: more than one tile along every dim with tiles. ``"ragged"``: the last of several
    tiles is partial along one of them. Empty if no dim has tiles.
    """
    tiles = (drawn.declared or NOTHING).tiles
    sizes = {name: drawn.recipe.get(name, 0) for name in tiles}
    if not tiles or any(sizes[name] <= max(tiles[name]) for name in tiles):
        return frozenset()
    whole = all(sizes[name] % max(tiles[name]) == 0 for name in tiles)
    return frozenset({"several"} if whole else {"several", "ragged"})


def larger_first(spec: object, drawn: Arguments | Drawn) -> frozenset[str]:
    """The ``subjects`` of a check that needs several blocks: such draws come first."""
    del spec
    return extents(drawn) | {"drawn"}


def dtype_names(dtypes: Any) -> tuple[str, ...]:
    """The names of one dtype, or of several in a tuple."""
    several: Any = dtypes if isinstance(dtypes, tuple) else (dtypes,)
    return tuple(str(dtype) for dtype in several)


def dtype_word(dtypes: Any) -> str:
    """One dtype, or several, by name: ``"bfloat16"``, ``"bfloat16, int8"``."""
    return ", ".join(dtype_names(dtypes))


def keyword_word(value: Any) -> str:
    """A keyword argument's value in a word or two, the same in every process."""
    return getattr(value, "__name__", None) or without_addresses(str(value))[:60]


#: The kind of all numbers from 2 on.
SEVERAL = "several"


def keyword_kind(value: Any) -> str:
    """The kind of kernel of a keyword argument: ``SEVERAL`` for a number from 2 on.

    More programs or larger blocks make no different kernel. Any other value is its own kind, by its
    word.
    """
    try:
        several = not isinstance(value, str) and float(value) >= 2
    except (TypeError, ValueError):
        several = False
    return SEVERAL if several else keyword_word(value)


def without_addresses(text: str) -> str:
    """The ``repr`` of an object without its address, which differs in each process."""
    return _ADDRESS.sub("", text)
