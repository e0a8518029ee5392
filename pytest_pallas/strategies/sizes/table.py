"""The table that sizes are drawn from: rows of positions in the pools of the dims."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from pytest_pallas.strategies.sizes.pools import SizePool

#: Number of occurrences of each size of the longest pool in the table.
_CYCLES = 3

#: Number of random rows to try for a size that no row has after constraints.
_TRIES = 300


def make_table(pools: Sequence[SizePool]) -> tuple[tuple[int, ...], ...]:
    """Rows of positions in ``pools``, without constraints. Row 0 is the largest."""
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
    """The rows that fit, and more such rows for the sizes that are in none of those.

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
