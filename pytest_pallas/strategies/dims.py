"""``dims``: a strategy for the sizes of named dims.

The sizes of all dims are drawn together, as one row of a table that is fixed by the pools. In the
table every size of every pool appears equally often and a row has different sizes for different
dims, because squares hide transposes. The table is short, so that shapes repeat between examples
and compiled kernels are used again, while three independent dims would hardly ever repeat.

Each dim is also capped at a position of its pool that is drawn after the row. Most caps do
nothing; they exist for shrinking, which lowers them dim by dim, to shapes outside the table.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas.errors import SpecError
from pytest_pallas.strategies.pools import Pool, Sizes, Tiles, check_int, make_pools
from pytest_pallas.strategies.shapes import ShapeSpec, concrete, parse

#: Elements of the largest array that is drawn by default: 4 MiB of float32.
MAX_ELEMENTS = 2**20

#: How often each size of the longest pool appears in the table.
_CYCLES = 3

#: One draw in about this many caps a dim for no other reason than variety.
_RARELY = 12


@dataclass(frozen=True)
class _Plan:
    """What ``dims`` draws from.

    Attributes:
      shapes: the shapes that the dims are for.
      pools: of the dims that have one.
      free: strategies of the other dims.
      table: rows of positions, one a pool. Row 0 is the largest of everything: with it, the caps
        alone say the sizes, so that shrinking to row 0 frees each dim.
      row: draws the number of a row.
      caps: for each pool a number to subtract, and what to subtract it from.
      max_elements: bound of the product of each array's dims.
    """

    shapes: ShapeSpec
    pools: Mapping[str, Pool]
    free: Mapping[str, SearchStrategy[int]]
    table: Sequence[tuple[int, ...]]
    row: SearchStrategy[int]
    caps: Sequence[tuple[int, SearchStrategy[int]]]
    max_elements: int


def dims(
    shapes: str | ShapeSpec,
    *,
    around: Tiles | None = None,
    multiple_of: Tiles | None = None,
    dims: Mapping[str, Sizes] | None = None,
    max_dim: int | None = None,
    max_elements: int = MAX_ELEMENTS,
    min_dim: int = 1,
) -> SearchStrategy[dict[str, int]]:
    """A strategy for the size of each named dim in ``shapes``.

    Example::

        dims("m k, k n", around={"m": 8, "k": 128}, dims={"n": [64, 128]})
        # draws {"m": 9, "k": 127, "n": 64} for example; shrinks to {"m": 1, "k": 1, "n": 64}

    Args:
      shapes: see ``strategies.shapes``.
      around: a tile ``b``, several of them, or a mapping from dim to those. Sizes are then 1,
        ``b-1``, ``b``, ``b+1``, ``2b-1``, ``2b``, ``2b+1`` and some primes (with ``max_dim``,
        ``3b`` and ``3b+1`` too). Dims without it have small sizes.
      multiple_of: likewise for sizes that are one, two or three tiles.
      dims: a mapping from dim to its size, to a list of sizes, or to a strategy for it.
      max_dim: the largest size, except for what ``dims`` says.
      max_elements: the most elements that one array may have; larger draws are made smaller.
      min_dim: the smallest size, except for what ``dims`` says. 0 asks for empty arrays as well.

    Raises:
      ShapeLanguageError: ``shapes`` cannot be understood.
      SpecError: an argument that cannot be used, by name.
    """
    return _dims(_plan(shapes, around, multiple_of, dims, max_dim, max_elements, min_dim))


def _plan(
    shapes: str | ShapeSpec,
    around: Tiles | None,
    multiple_of: Tiles | None,
    dims: Mapping[str, Sizes] | None,
    max_dim: int | None,
    max_elements: int,
    min_dim: int,
) -> _Plan:
    """Check the arguments of ``dims`` and prepare its table."""
    spec = shapes if isinstance(shapes, ShapeSpec) else parse(shapes)
    check_int("max_elements", max_elements, 1)
    made = make_pools(
        spec.names,
        around=around,
        multiple_of=multiple_of,
        dims=dims,
        max_dim=max_dim,
        min_dim=min_dim,
    )
    pools = {name: pool for name, pool in made.items() if isinstance(pool, Pool)}
    free = {name: sizes for name, sizes in made.items() if not isinstance(sizes, Pool)}
    least = {name: pool.sizes[0] for name, pool in pools.items()} | dict.fromkeys(free, 1)
    if _too_large(spec, least, max_elements):
        raise SpecError(
            f"max_elements={max_elements} is less than the smallest array of {spec.text!r} has "
            f"({least}); raise it or allow smaller dims"
        )
    table = _table(tuple(pools.values()))
    row = st.sampled_from(range(len(table)))
    return _Plan(spec, pools, free, table, row, _caps(pools.values(), len(table)), max_elements)


@st.composite
def _dims(draw: DrawFn, plan: _Plan) -> dict[str, int]:
    sizes = {
        name: check_int(f"what dims[{name!r}] drew", draw(strategy), 0)
        for name, strategy in plan.free.items()
    }
    number = draw(plan.row)
    positions = [
        min(position, draw(cap) - cap_base)
        for (cap_base, cap), position in zip(plan.caps, plan.table[number], strict=True)
    ]
    sizes |= {n: p.sizes[at] for (n, p), at in zip(plan.pools.items(), positions, strict=True)}
    if _too_large(plan.shapes, sizes, plan.max_elements):
        _reduce(plan, sizes, first=draw(st.integers(0, len(plan.pools) - 1)) if plan.pools else 0)
    return {name: sizes[name] for name in plan.shapes.names}


def _caps(pools: Iterable[Pool], base: int) -> tuple[tuple[int, SearchStrategy[int]], ...]:
    """Strategies for the caps, on disjoint ranges of integers from ``base`` on.

    Disjoint, because hypothesis spends most of its examples on copying what it drew from one
    strategy over what it drew from an equal one, and copied caps make no new shapes.
    """
    caps: list[tuple[int, SearchStrategy[int]]] = []
    for pool in pools:
        length = _RARELY * len(pool.sizes) if len(pool.sizes) > 1 else 1
        caps.append((base, st.sampled_from(range(base, base + length))))
        base += length
    return tuple(caps)


def _reduce(plan: _Plan, sizes: dict[str, int], first: int) -> None:
    """Make ``sizes`` smaller in place, until no array is too large.

    Dims are granted their size one after the other while the rest are at their simplest. Which
    one comes first is drawn, so that each dim reaches all its sizes.
    """
    wanted = dict(sizes)
    sizes |= {name: pool.sizes[0] for name, pool in plan.pools.items()}
    if _too_large(plan.shapes, sizes, plan.max_elements):
        reject()  # only the user's own strategies can come here
    names = list(plan.pools)
    for name in names[first:] + names[:first]:
        for size in reversed(plan.pools[name].sizes):
            granted = sizes | {name: size}
            if size <= wanted[name] and not _too_large(plan.shapes, granted, plan.max_elements):
                sizes[name] = size
                break


def _too_large(shapes: ShapeSpec, sizes: Mapping[str, int], max_elements: int) -> bool:
    return any(math.prod(shape) > max_elements for shape in concrete(shapes, sizes))


def _table(pools: Sequence[Pool]) -> tuple[tuple[int, ...], ...]:
    """Rows of positions in ``pools``, as ``_Plan.table`` describes."""
    largest = tuple(len(pool.sizes) - 1 for pool in pools)
    plain = tuple(pool.plain for pool in pools)
    chance = random.Random(0)  # its own, and always the same: the table is part of the strategy
    length = max((len(pool.sizes) for pool in pools), default=0)
    rows: list[tuple[int, ...]] = []
    for _ in range(_CYCLES):
        columns = [_shuffled(len(pool.sizes), length, chance) for pool in pools]
        _spread(columns, pools)
        rows += zip(*columns, strict=True)
    return tuple(dict.fromkeys([largest, plain, *rows]))


def _shuffled(count: int, length: int, chance: random.Random) -> list[int]:
    """``length`` positions below ``count``, each as often as the others as far as it goes."""
    column = [position % count for position in range(length)]
    chance.shuffle(column)
    return column


def _spread(columns: list[list[int]], pools: Sequence[Pool]) -> None:
    """Swap within columns until the sizes of each row differ, as far as that helps."""

    def clashes(row: int) -> int:
        sizes = [pool.sizes[column[row]] for pool, column in zip(pools, columns, strict=True)]
        return len(sizes) - len(set(sizes))

    for column in columns[1:]:
        for row in range(len(column)):
            for other in range(len(column)):
                before = clashes(row) + clashes(other)
                if not clashes(row):
                    break
                column[row], column[other] = column[other], column[row]
                if clashes(row) + clashes(other) >= before:
                    column[row], column[other] = column[other], column[row]
