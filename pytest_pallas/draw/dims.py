"""``dims``: a strategy for the sizes of named dims, within a budget and under constraints.

``plan_dims`` chooses the pool of sizes of each dim, and makes a table whose rows combine them, so
that few draws have every size; ``draw_dims`` draws a row, and now and then caps a dim. Sizes that
constraints define are computed. Dims without sizes are drawn around tiles that were learned from
the kernel (``probing``).
"""

from __future__ import annotations

import ast
import functools
import math
import random
import sys
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import chain, combinations, count, islice, permutations, product
from typing import Any

from hypothesis import reject
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas.budget import option_text
from pytest_pallas.compat.fuzzing import answering, integer_range
from pytest_pallas.draw.covering import (
    alternatives,
    current_covering,
    draw_once_in_a_while,
    some,
)
from pytest_pallas.draw.sizes import (
    COUNTS,
    Constraint,
    Learned,
    ShapeSpec,
    SizeArguments,
    SizePool,
    Sizes,
    Tiles,
    boundary,
    check_int,
    concrete,
    defined,
    definitions,
    holds,
    make_pools,
    parse,
    parse_constraint,
    simplicity,
    stretched,
)
from pytest_pallas.draw.steering import unsteered
from pytest_pallas.errors import DrawTooLargeError, SpecError

#: Elements of the largest array that is drawn by default: 4 MiB of float32.
MAX_ELEMENTS = 2**20

NOTHING_LEARNED = Learned()

#: About one draw in this many caps a dim, for diversity.
_RARELY = 12

#: About one draw in so many that follow no plan has further sizes.
_SELDOM = 1 << 16


@dataclass(frozen=True)
class Budget:
    """Limits on the size of arrays.

    Attributes:
      max_elements: of each array.
      max_bytes: of all arrays together; None if that does not matter.
      itemsizes: bytes of an element of each array, or of all; for ``max_bytes``.
      by_option: whether ``max_bytes`` is that of ``--pallas-max-bytes``.
    """

    max_elements: int
    max_bytes: int | None = None
    itemsizes: tuple[int, ...] = (1,)
    by_option: bool = False

    def __str__(self) -> str:
        text = f"max_elements={self.max_elements}"
        if self.max_bytes is None:
            return text
        if self.by_option:
            return f"{text}, --pallas-max-bytes={option_text(self.max_bytes)}"
        return f"{text}, max_bytes={self.max_bytes}"

    def within(self, number: int | None) -> Budget:
        """This budget with the limit of the option, if that is smaller."""
        if number is None or (self.max_bytes is not None and self.max_bytes <= number):
            return self
        return replace(self, max_bytes=number, by_option=True)

    def error(self, problem: str) -> SpecError:
        """Return the error for a budget that no draw fits."""
        return DrawTooLargeError(problem) if self.by_option else SpecError(problem)


@dataclass(frozen=True)
class DimsPlan:
    """The data from which ``dims`` draws.

    Attributes:
      shapes: the shapes that the dims are for.
      pools: of the dims that have one.
      free: strategies of the other dims.
      table: rows with one position for each pool. Row 0 has the largest sizes: with it, only the
        caps determine the sizes, so that shrinking to row 0 frees each dim.
      budget: the limits of the arrays.
      defining: constraints that give the size of a dim that is not drawn, in order.
      checked: the other constraints.
    """

    shapes: ShapeSpec
    pools: Mapping[str, SizePool]
    free: Mapping[str, SearchStrategy[int]]
    table: Sequence[tuple[int, ...]]
    budget: Budget
    defining: Sequence[Constraint]
    checked: Sequence[Constraint]

    @property
    def constrained(self) -> bool:
        """Whether there are constraints."""
        return bool(self.defining or self.checked)

    @functools.cached_property
    def row(self) -> SearchStrategy[int]:
        """A strategy for the number of a row, or one that stands for it: see ``further``."""
        return st.sampled_from(range(self.further + 1 if self.grows else self.rows))

    @functools.cached_property
    def rows(self) -> int:
        """The number of rows."""
        return max(len(self.table), self.uncapped + 1)

    @functools.cached_property
    def grows(self) -> bool:
        """Whether a dim has further sizes."""
        return any(pool.further for pool in self.pools.values())

    @functools.cached_property
    def further(self) -> int:
        """The number by which each dim has any of its sizes, also further ones.

        All smaller numbers stand for rows. They are many, so that this one is not drawn at random.
        """
        return self.rows * _SELDOM

    @functools.cached_property
    def largest(self) -> tuple[int, ...]:
        """The position of the largest size of each pool, which the arrays need not fit."""
        return tuple(len(pool.sizes) - 1 for pool in self.pools.values())

    @functools.cached_property
    def uncapped(self) -> int:
        """The number of the row with the largest sizes: with it, only the caps say the sizes."""
        return self.table.index(self.largest) if self.largest in self.table else len(self.table)

    @functools.cached_property
    def kinds(self) -> Mapping[str, Sequence[str]]:
        """Of each pool, the kinds of its sizes."""
        return {
            name: [boundary(size, pool) for size in pool.sizes] for name, pool in self.pools.items()
        }

    @functools.cached_property
    def caps(self) -> Sequence[tuple[int, SearchStrategy[int]]]:
        """For each pool a strategy for its cap, and the number to subtract from what that draws.

        The strategies draw from disjoint ranges, because hypothesis spends most of its examples on
        copying what it drew from one strategy over what it drew from an equal one, and copied caps
        make no new shapes.
        """
        caps: list[tuple[int, SearchStrategy[int]]] = []
        base = len(self.table)
        for pool in self.pools.values():
            length = _RARELY * len(pool.sizes) if len(pool.sizes) > 1 else 1
            caps.append((base, st.sampled_from(range(base, base + length))))
            base += length
        return caps


def dims(
    shapes: str | ShapeSpec,
    *,
    around: Tiles | None = None,
    multiple_of: Tiles | None = None,
    dims: Mapping[str, Sizes] | None = None,
    unequal: bool | Sequence[str] = (),
    max_dim: int | None = None,
    max_elements: int = MAX_ELEMENTS,
    min_dim: int = 1,
) -> SearchStrategy[dict[str, int]]:
    """Return a strategy for the size of each named dim in ``shapes``, and in its constraints.

    Example::

        dims("m k, k n", around={"m": 8, "k": 128}, dims={"n": [64, 128]})
        # draws {"m": 9, "k": 127, "n": 64} for example; shrinks to {"m": 1, "k": 1, "n": 64}

        dims("b h q d, b g k d; h = g*r, q <= k, d % 8 = 0", around={"q": 16, "k": 16})

    Args:
      shapes: as for ``strategies.arrays``. A constraint ``h = g*r`` gives the size of ``h``, unless
        another argument gives it by name.
      around: a tile ``b``, several of them, or a mapping from dim to those. Sizes are then 1,
        ``b-1``, ``b``, ``b+1``, ``2b-1``, ``2b``, ``2b+1`` and some primes (with ``max_dim``,
        ``3b`` and ``3b+1`` too). Dims without it have small sizes, and those near the constants of
        their own constraints: ``n % 128 = 0`` draws 128, 256 and 384.
      multiple_of: likewise for sizes that are one, two or three tiles. Of a spec, examples may grow
        beyond these sizes; see docs/strategies.md.
      dims: a mapping from dim to its size, to a list of sizes, or to a strategy for it.
      unequal: names of dims that never have the same size, or True for those of all arrays. Most
        draws have different sizes anyway, but some are square.
      max_dim: the largest size, except for sizes from ``dims`` or a constraint; also of examples
        that grow.
      max_elements: the most elements that one array may have; larger draws are made smaller.
      min_dim: the smallest size, except for sizes from ``dims``. 0 draws empty arrays, too.

    Raises:
      ShapeLanguageError: ``shapes`` cannot be understood.
      SpecError: an argument that cannot be used, by name, or no sizes satisfy the constraints.
    """
    plan = plan_dims(
        shapes,
        Budget(check_int("max_elements", max_elements, 1)),
        SizeArguments(
            around=around,
            multiple_of=multiple_of,
            dims=dims,
            unequal=unequal,
            max_dim=max_dim,
            min_dim=min_dim,
        ),
    )
    return draw_dims(plan)


def plan_dims(
    shapes: str | ShapeSpec,
    budget: Budget,
    arguments: SizeArguments,
    learned: Learned = NOTHING_LEARNED,
) -> DimsPlan:
    """Return the plan of ``dims`` for a budget; the errors are the same.

    Dims without sizes are drawn around the tiles in ``learned``.
    """
    spec = shapes if isinstance(shapes, ShapeSpec) else parse(shapes)
    specified = [
        name
        for argument in arguments.by_argument.values()
        if isinstance(argument, Mapping)
        for name in argument
    ]
    defining, checked = definitions(spec.constraints, specified)
    computed = {constraint.defines for constraint in defining}
    low, high = arguments.min_dim, arguments.max_dim
    positive = [parse_constraint(f"{name} >= {low}") for name in computed]
    drawn = [name for name in spec.variables if name not in computed]
    made = make_pools(drawn, arguments, learned)
    pools = {
        name: satisfying(name, pool, checked, low, high) if pool.unsaid else pool
        for name, pool in made.items()
        if isinstance(pool, SizePool)
    }
    free = {name: sizes for name, sizes in made.items() if not isinstance(sizes, SizePool)}
    for name, strategy in free.items():
        _check_ends(name, strategy)
    if not spec.constraints:
        least = {name: pool.sizes[0] for name, pool in pools.items()} | dict.fromkeys(free, 1)
        if _too_large(spec, least, budget):
            raise budget.error(
                f"{budget} is too small for the smallest array of {spec.text!r} ({least}); raise "
                "it or allow smaller dims"
            )
    plan = DimsPlan(
        shapes=spec,
        pools=pools,
        free=free,
        table=make_table(tuple(pools.values())),
        budget=budget,
        defining=defining,
        checked=(*checked, *positive, *_differences(spec, arguments.unequal)),
    )
    long, least = learned.long or ("", 0)
    if learned.stretched and high is None and long in pools:
        longer = stretched(pools, long, least)
        sizes = {name: pool.sizes[0] for name, pool in longer.items()}
        if not free and not pools[long].listed and _fits(plan, sizes):
            return replace(plan, pools=longer, table=make_table(tuple(longer.values())))
    return replace(plan, table=_fitting_table(plan)) if plan.constrained else plan


def boundaries(plan: DimsPlan) -> dict[str, dict[int, str]]:
    """For each dim with a pool, the sizes that it can have and the kind of boundary of each."""
    least = {name: pool.sizes[0] for name, pool in plan.pools.items()} | dict.fromkeys(plan.free, 1)
    kinds: dict[str, dict[int, str]] = {}
    for column, (name, pool) in enumerate(plan.pools.items()):
        if plan.constrained:
            tabled = {row[column] for row in plan.table}
            sizes = [size for position, size in enumerate(pool.sizes) if position in tabled]
        else:
            sizes = [
                size
                for size in pool.sizes
                if not _too_large(plan.shapes, least | {name: size}, plan.budget)
            ]
        kinds[name] = {size: boundary(size, pool) for size in sizes}
    return kinds


#: So many rows of sizes are looked at to find which kinds of sizes never come together.
_COMPARED = 4000


def impossible_pairs(plan: DimsPlan) -> frozenset[frozenset[tuple[str, str]]]:
    """Return the pairs of kinds of sizes that constraints and budget forbid, by dim.

    Where there are too many sizes to try all, those are meant that no row of the table has and none
    of many random rows.
    """
    pools = plan.pools
    if len(pools) < 2:
        return frozenset()
    positions = [range(len(pool.sizes)) for pool in pools.values()]
    rows: Iterable[Sequence[int]] = product(*positions)
    if math.prod(map(len, positions)) > _COMPARED:
        chance = random.Random(0)
        rows = chain(plan.table, ([chance.choice(p) for p in positions] for _ in range(_COMPARED)))
    possible = set[frozenset[tuple[str, str]]]()
    for row in rows:
        sizes = {name: pool.sizes[at] for (name, pool), at in zip(pools.items(), row, strict=True)}
        kinds = [(name, plan.kinds[name][at]) for name, at in zip(pools, row, strict=True)]
        pairs = {frozenset(pair) for pair in combinations(kinds, 2)}
        if pairs - possible and _fits(plan, {**dict.fromkeys(plan.free, 1), **sizes}):
            possible |= pairs
    every = {
        frozenset({(one, kind), (other, another)})
        for one, other in combinations(pools, 2)
        for kind, another in product(plan.kinds[one], plan.kinds[other])
    }
    return frozenset(every - possible)


def _fits(plan: DimsPlan, sizes: dict[str, int]) -> bool:
    """Return whether a plan may draw sizes."""
    if plan.constrained:
        return _complete(plan, sizes)
    return not _too_large(plan.shapes, sizes, plan.budget)


def _differences(shapes: ShapeSpec, unequal: bool | Sequence[str]) -> list[Constraint]:
    """Return the constraints that ``unequal`` stands for."""
    names = shapes.names if unequal is True else tuple(unequal or ())
    for name in names:
        if name not in shapes.variables:
            raise SpecError(
                f"unequal: there is no dim {name!r} in the shapes; their dims are "
                f"{', '.join(shapes.variables) or 'none'}"
            )
    return [parse_constraint(f"{one} != {other}") for one, other in combinations(names, 2)]


def _fitting_table(plan: DimsPlan) -> Sequence[tuple[int, ...]]:
    """Find rows, of a plan's table and more, that satisfy the constraints known before drawing."""

    def fits(row: tuple[int, ...]) -> bool:
        sizes = {n: p.sizes[at] for (n, p), at in zip(plan.pools.items(), row, strict=True)}
        return bool(plan.free) or _complete(plan, sizes)

    table = keep_fitting(plan.table, tuple(plan.pools.values()), fits)
    if not table:
        constraints = [constraint.text for constraint in (*plan.defining, *plan.checked)]
        pools = {name: pool.sizes for name, pool in plan.pools.items()}
        raise plan.budget.error(
            f"dims: no sizes satisfy {', '.join(constraints)} within {plan.budget} among {pools}; "
            "give sizes that satisfy them with dims={...}"
        )
    return table


def _complete(plan: DimsPlan, sizes: dict[str, int]) -> bool:
    """Add the dims that constraints define to ``sizes``; whether all constraints hold."""
    for constraint in plan.defining:
        assert constraint.defines is not None
        size = defined(constraint, sizes)
        if size is None or size < 0:
            return False
        sizes[constraint.defines] = size
    satisfied = all(holds(constraint, sizes) for constraint in plan.checked)
    return satisfied and not _too_large(plan.shapes, sizes, plan.budget)


@st.composite
def draw_dims(draw: DrawFn, plan: DimsPlan) -> dict[str, int]:
    """Return a strategy for the sizes of a plan."""
    sizes = {name: _free(draw, name, strategy) for name, strategy in plan.free.items()}
    probe = current_probe()
    if probe is not None and any(pool.unsaid for pool in plan.pools.values()):
        return _probed(plan, probe, sizes)
    covering = current_covering()
    with unsteered():
        sizes |= _aimed(draw, plan) or _planned(draw, plan, sizes) or _sizes(draw, plan)
        if plan.constrained:
            fits = _complete(plan, sizes)
            if covering is not None:
                covering.too_large = not fits and _too_large(plan.shapes, sizes, plan.budget)
            if not fits:
                reject()
        elif _too_large(plan.shapes, sizes, plan.budget):
            if covering is not None:
                covering.too_large = True
            first = draw(st.integers(0, len(plan.pools) - 1)) if plan.pools else 0
            _reduce(plan, sizes, first=first)
    return {name: sizes[name] for name in plan.shapes.variables}


def _free(draw: DrawFn, name: str, strategy: SearchStrategy[int]) -> int:
    """Draw the size of a dim from the user's strategy; that of the goal, if it may draw it."""
    covering, answer = current_covering(), None
    if values := alternatives(strategy):
        strategy = st.sampled_from(values)
    if covering is not None:
        answers = _answers(strategy, values)
        if answers:
            covering.pools[name] = SizePool(tuple(sorted(answers)), listed=True)
        if covering.goal is not None:
            answer = answers.get(covering.goal.sizes.get(name, -1))
    with nullcontext() if answer is None else answering(answer):
        drawn = draw(some(f"dims[{name!r}]", strategy))
    return check_int(f"what dims[{name!r}] drew", drawn, 0)


def _answers(strategy: SearchStrategy[int], values: Sequence[Any]) -> Mapping[int, int]:
    """Return sizes that a strategy may draw, each with the answer that draws it, if known."""
    if values:
        return {value: at for at, value in enumerate(values) if isinstance(value, int)}
    least, most, function = integer_range(strategy) or (None, None, int)
    if least is None or most is None:
        return {}
    numbers = sorted({least, most, *(n for n in COUNTS if least < n < most)})
    return {int(function(number)): number for number in numbers}


def _check_ends(name: str, strategy: SearchStrategy[int]) -> None:
    """Check that a strategy for a size has an end.

    Raises:
      SpecError: it has none.
    """
    least, most, _ = integer_range(strategy) or (0, 0, None)
    if most is None:
        raise SpecError(
            f"dims[{name!r}] is {strategy!r}, which draws sizes without end; give both bounds, "
            f"such as st.integers({1 if least is None else least}, 256)"
        )


def _sizes(draw: DrawFn, plan: DimsPlan) -> dict[str, int]:
    """Draw the size of each pool: by a row of the table, some capped, or any of each."""
    number = draw(plan.row)
    if number == plan.further:
        return {n: pool.every[draw(_positions(pool))] for n, pool in plan.pools.items()}
    return _by_row(plan, number, [draw(cap) - cap_base for cap_base, cap in plan.caps])


def _positions(pool: SizePool) -> SearchStrategy[int]:
    return st.sampled_from(range(len(pool.every)))


def _by_row(plan: DimsPlan, number: int, caps: Sequence[int]) -> dict[str, int]:
    positions = _capped(plan, number, caps)
    return {n: p.sizes[at] for (n, p), at in zip(plan.pools.items(), positions, strict=True)}


def _aimed(draw: DrawFn, plan: DimsPlan) -> dict[str, int] | None:
    """Draw the sizes of the example's goal; None without one."""
    covering = current_covering()
    if covering is None:
        return None
    covering.pools.update(plan.pools)
    if covering.goal is None or not plan.pools:
        return None
    with answering(plan.further if plan.grows else plan.uncapped):
        number = draw(plan.row)
    drawn = list[int]()
    for (name, pool), (cap_base, cap) in zip(plan.pools.items(), plan.caps, strict=True):
        sizes = pool.every if plan.grows else pool.sizes
        size = covering.goal.sizes.get(name, sizes[0])
        with answering(sizes.index(size) if size in sizes else 0):
            drawn.append(draw(_positions(pool) if number == plan.further else cap))
            drawn[-1] -= 0 if number == plan.further else cap_base
    if number != plan.further:
        return _by_row(plan, number, drawn)
    return {n: pool.every[at] for (n, pool), at in zip(plan.pools.items(), drawn, strict=True)}


def _capped(plan: DimsPlan, number: int, caps: Sequence[int]) -> Sequence[int]:
    """Return a row's positions, none above its cap."""
    number %= plan.rows
    row = plan.largest if number == plan.uncapped else plan.table[number]
    return [min(position, cap) for cap, position in zip(caps, row, strict=True)]


def _planned(draw: DrawFn, plan: DimsPlan, free: Mapping[str, int]) -> dict[str, int] | None:
    """Draw the sizes that the plan of the example chooses; None if there are none."""
    covering = current_covering()
    if covering is None or not plan.pools or current_learned().stretched:
        return None

    def fits(sizes: Mapping[str, int]) -> bool:
        return _fits(plan, {**free, **sizes})

    positions = covering.sizes(plan.pools, plan.kinds, fits, plan.table)
    if positions is None:
        return None
    with answering(plan.uncapped):
        number = draw(plan.row)
    caps = list[int]()
    for (cap_base, cap), position in zip(plan.caps, positions, strict=True):
        with answering(position):
            caps.append(draw(cap) - cap_base)
    drawn = _capped(plan, number, caps)
    covering.followed &= [*drawn] == [*positions]
    covering.fix_sizes(plan.pools, plan.kinds, drawn)
    return {n: p.sizes[at] for (n, p), at in zip(plan.pools.items(), drawn, strict=True)}


def _probed(plan: DimsPlan, probe: Probe, drawn: Mapping[str, int]) -> dict[str, int]:
    """Large, different sizes for dims without sizes, and plain sizes for the others."""
    unlimited = replace(plan, budget=Budget(sys.maxsize))
    plain = {name: pool.sizes[pool.plain] for name, pool in plan.pools.items()}
    for order in probe.orders([name for name, pool in plan.pools.items() if pool.unsaid]):
        sizes = {**drawn, **plain, **{name: order[name] for name in plain if name in order}}
        if _complete(unlimited, sizes):
            probe.sizes.update((name, order[name]) for name in plain if name in order)
            return {name: sizes[name] for name in plan.shapes.variables}
    reject()


def _reduce(plan: DimsPlan, sizes: dict[str, int], first: int) -> None:
    """Make ``sizes`` smaller in place, until no array is too large.

    Dims are granted their size one after the other while the rest are at their simplest. Which
    one comes first is drawn, so that each dim reaches all its sizes.
    """
    drawn = dict(sizes)
    sizes |= {name: pool.sizes[0] for name, pool in plan.pools.items()}
    if _too_large(plan.shapes, sizes, plan.budget):
        reject()  # only user strategies can reach this
    names = list(plan.pools)
    for name in names[first:] + names[:first]:
        for size in reversed(plan.pools[name].sizes):
            granted = sizes | {name: size}
            if size <= drawn[name] and not _too_large(plan.shapes, granted, plan.budget):
                sizes[name] = size
                break


def _too_large(shapes: ShapeSpec, sizes: Mapping[str, int], budget: Budget) -> bool:
    elements = [math.prod(shape) for shape in concrete(shapes, sizes)]
    if any(count > budget.max_elements for count in elements):
        return True
    if budget.max_bytes is None:
        return False
    itemsizes = budget.itemsizes * (len(elements) if len(budget.itemsizes) == 1 else 1)
    bytes_ = sum(count * size for count, size in zip(elements, itemsizes, strict=True))
    return bytes_ > budget.max_bytes


# The table that sizes are drawn from: rows of positions in the pools of the dims.


#: Number of occurrences of each size of the longest pool in the table.
_CYCLES = 3

#: Number of random rows to try for a size that no row has after constraints.
_TRIES = 300


def make_table(pools: Sequence[SizePool]) -> tuple[tuple[int, ...], ...]:
    """Make rows of positions in ``pools``, without constraints. Row 0 is the largest."""
    counts = [len(pool.sizes) for pool in pools]
    largest = tuple(count - 1 for count in counts)
    plain = tuple(pool.plain for pool in pools)
    chance = random.Random(0)  # its own, and always the same: the table is part of the strategy
    length = max(counts, default=0)
    rows: list[tuple[int, ...]] = []
    for _ in range(_CYCLES):
        columns = [_shuffled(count, length, chance) for count in counts]
        _spread(columns, pools)
        rows += zip(*columns, strict=True)
    return tuple(dict.fromkeys([largest, plain, *rows]))


def _shuffled(count: int, length: int, chance: random.Random) -> list[int]:
    """Return ``length`` positions below ``count``, as evenly as possible."""
    column = [position % count for position in range(length)]
    chance.shuffle(column)
    return column


def _spread(columns: list[list[int]], pools: Sequence[SizePool]) -> None:
    """Swap within columns until the sizes of each row differ, as far as that helps."""

    def clashes(row: int) -> int:
        sizes = [pool.sizes[column[row]] for pool, column in zip(pools, columns, strict=True)]
        return len(sizes) - len(set(sizes))

    for column in columns[1:]:
        for row in range(len(column)):
            for other in range(len(column)):
                here = clashes(row)
                if not here:
                    break
                before = here + clashes(other)
                column[row], column[other] = column[other], column[row]
                if clashes(row) + clashes(other) >= before:
                    column[row], column[other] = column[other], column[row]


def keep_fitting(
    table: Sequence[tuple[int, ...]],
    pools: Sequence[SizePool],
    fits: Callable[[tuple[int, ...]], bool],
) -> tuple[tuple[int, ...], ...]:
    """Return the rows that fit, and more such rows for the sizes that are in none of those.

    Row 0 is the one with the largest sizes again.
    """
    chance = random.Random(0)
    rows = [row for row in table if fits(row)]
    for column, pool in enumerate(pools):
        for position in range(len(pool.sizes)):
            if any(row[column] == position for row in rows):
                continue
            for _ in range(_TRIES):
                row = [chance.randrange(len(other.sizes)) for other in pools]
                row[column] = position
                if fits(tuple(row)):
                    rows.append(tuple(row))
                    break

    def total(row: tuple[int, ...]) -> int:
        return sum(pool.sizes[position] for pool, position in zip(pools, row, strict=True))

    largest = max(rows, key=total, default=None)
    return tuple(dict.fromkeys(rows if largest is None else [largest, *rows]))


# Sizes of dims that a strategy does not specify, learned from the kernel.
#
# A kernel with blocks of 128 rows has one program for every array of up to 128 rows, and most of
# its mistakes need two. ``arrays("m n")`` does not specify blocks. So the plugin first draws a
# probe, which is an abstract call with large, different sizes, reads the blocks from its trace,
# and draws around these.


#: Probed sizes are multiples of it: more than most blocks, and divisible by them.
STEP = 2048

#: Orders of sizes to try if constraints reject the first.
_ORDERS = 24

_LEARNED: ContextVar[Learned] = ContextVar("learned", default=NOTHING_LEARNED)


@dataclass
class Probe:
    """The sizes of a probe for unspecified dims.

    Attributes:
      sizes: by dim, each another multiple of ``STEP``.
    """

    sizes: dict[str, int] = field(default_factory=dict[str, int])

    def orders(self, names: list[str]) -> Iterator[dict[str, int]]:
        """Yield sizes for dims, in several orders; those that were probed before keep theirs."""
        fresh = [name for name in names if name not in self.sizes]
        unused = (size for size in count(STEP, STEP) if size not in self.sizes.values())
        sizes = list(islice(unused, len(fresh)))
        for order in islice(permutations(sizes), _ORDERS):
            yield {**self.sizes, **dict(zip(fresh, order, strict=True))}


_PROBE: ContextVar[Probe | None] = ContextVar("probe", default=None)


@contextmanager
def probing() -> Generator[Probe]:
    """Let ``arrays`` draw abstract arrays of probed sizes inside this context.

    They are of ``jax.ShapeDtypeStruct``, since real ones would need gigabytes.
    """
    probe = Probe()
    token = _PROBE.set(probe)
    try:
        yield probe
    finally:
        _PROBE.reset(token)


def current_probe() -> Probe | None:
    """Return the probe that is being drawn, or None."""
    return _PROBE.get()


def current_learned() -> Learned:
    """Return what was learned of the kernel of the current draw."""
    return _LEARNED.get()


def around(
    strategy: SearchStrategy[Any],
    tiles: Mapping[str, tuple[int, ...]],
    long: tuple[str, int] | None = None,
    *,
    stretches: bool = False,
) -> Any:
    """Return the strategy, with draws that fit a kernel, and that may grow.

    Args:
      strategy: of the kernel's arguments.
      tiles: by dim, for dims that the strategy does not specify.
      long: the dim that has a larger size in one example, and that size; None for none.
      stretches: whether all draws have that size.
    """
    return _around(strategy, Learned(tuple(sorted(tiles.items())), long, stretches, grows=True))


@st.composite
def _around(draw: DrawFn, strategy: SearchStrategy[Any], learned: Learned) -> Any:
    if learned.long and not learned.stretched and current_probe() is None:
        learned = replace(learned, stretched=draw_once_in_a_while(draw))
    token = _LEARNED.set(learned)
    try:
        return draw(strategy)
    finally:
        _LEARNED.reset(token)


# Pools of dims that have no sizes of their own, but constraints: ``"n % 128 = 0"``, ``"m > 64"``.
#
# The pool of a dim without sizes has small ones. A constraint of that dim alone may exclude them
# all, and says itself which sizes are boundaries: those near its constants.


#: How many of the least sizes that satisfy the constraints are in a pool.
_LEAST = 3

#: Sizes near constants up to this one are in a pool, where smaller sizes satisfy them, too.
_MOST = 1024

#: How far a size may be searched; divisors beyond it have no array that fits.
_FARTHEST = 1 << 20


def satisfying(
    name: str, pool: SizePool, constraints: Sequence[Constraint], low: int, high: int | None
) -> SizePool:
    """Keep the sizes of a pool that satisfy the constraints of its dim alone, and add sizes near.

    These are the three least that do, and the nearest to each constant. The pool is returned as it
    is if no constraint is of this dim alone, or if nothing satisfies them.

    Args:
      name: of the dim.
      pool: its sizes without constraints.
      constraints: of all dims.
      low: the smallest size.
      high: the largest size, or None.
    """
    own = [constraint for constraint in constraints if constraint.names == (name,)]
    if not own:
        return pool
    nodes = [node for constraint in own for node in ast.walk(constraint.comparison)]
    constants = {value for node in nodes if 0 < (value := _constant(node)) <= _FARTHEST}
    divides = (ast.Mod, ast.FloorDiv)
    step = math.lcm(
        *(
            max(_constant(node.right), 1)
            for node in nodes
            if isinstance(node, ast.BinOp) and isinstance(node.op, divides)
        )
    )
    if step > _FARTHEST:
        return pool

    def fits(size: int) -> bool:
        within = low <= size and (high is None or size <= high)
        return within and all(holds(constraint, {name: size}) for constraint in own)

    def from_(start: int, way: int = 1) -> Iterator[int]:
        return filter(fits, range(start, start + way * (_LEAST * step + 2), way))

    starts = sorted({max(low, 1), *(max(low, constant) for constant in constants)})
    first = next((size for start in starts for size in islice(from_(start), 1)), None)
    least = [] if first is None else [*islice(from_(first), _LEAST)]
    near = {
        size
        for constant in constants
        if constant <= _MOST
        for size in (*islice(from_(constant), 2), *islice(from_(constant - 1, -1), 1))
    }
    kept = {size for size in pool.sizes if fits(size)}
    sizes = sorted({*least, *near, *kept}, key=simplicity)
    if not sizes:
        return pool
    further = {n for n in (*pool.further, *(step * count for count in COUNTS)) if fits(n)}
    further = further - {*sizes} if pool.further else set[int]()
    usual = pool.sizes[pool.plain]
    plain = usual if usual in kept else least[0]
    return replace(
        pool,
        sizes=tuple(sizes),
        plain=sizes.index(plain),
        tiles=pool.tiles or ((step,) if step > 1 else ()),
        unsaid=pool.unsaid and any(map(fits, (STEP, 2 * STEP, 3 * STEP))),
        further=tuple(sorted(further)),
    )


def _constant(node: ast.AST) -> int:
    """Return the integer that a node is, or 0."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, int) else 0
