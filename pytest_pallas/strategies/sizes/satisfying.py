"""Pools of dims that have no sizes of their own, but constraints: ``"n % 128 = 0"``, ``"m > 64"``.

The pool of a dim without sizes has small ones. A constraint of that dim alone may exclude them all,
and says itself which sizes are boundaries: those near its constants.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from pytest_pallas.strategies.sizes.constraints import Constraint, holds
from pytest_pallas.strategies.sizes.learned import STEP
from pytest_pallas.strategies.sizes.pools import SizePool

#: How many of the least sizes that satisfy the constraints are in a pool.
_LEAST = 3

#: Sizes near constants up to this one are in a pool, where smaller sizes satisfy them, too.
_MOST = 1024

#: How far a size may be searched; divisors beyond it have no array that fits.
_FARTHEST = 1 << 20


def satisfying(
    name: str, pool: SizePool, constraints: Sequence[Constraint], low: int, high: int | None
) -> SizePool:
    """The sizes of a pool that satisfy the constraints of its dim alone, and sizes near those.

    These are the three least that do, and the nearest to each constant. The pool is returned as it
    is if no constraint is of this dim alone, or if nothing satisfies them.

    Args:
      name: of the dim.
      pool: its sizes without constraints.
      constraints: of all dims.
      low: the smallest size.
      high: the largest size, or None.
    """
    own = [each for each in constraints if each.names == (name,)]
    if not own:
        return pool
    constants = {value for each in own for value in _constants(each) if 0 < value <= _FARTHEST}
    step = math.lcm(*(value for each in own for value in _divisors(each)))
    if step > _FARTHEST:
        return pool

    def fits(size: int) -> bool:
        within = low <= size and (high is None or size <= high)
        return within and all(holds(each, {name: size}) for each in own)

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
    sizes = sorted({*least, *near, *kept}, key=lambda size: size or 1.5)  # an empty dim second
    if not sizes:
        return pool
    usual = pool.sizes[pool.plain]
    plain = usual if usual in kept else least[0]
    return replace(
        pool,
        sizes=tuple(sizes),
        plain=sizes.index(plain),
        tiles=pool.tiles or ((step,) if step > 1 else ()),
        unsaid=pool.unsaid and any(map(fits, (STEP, 2 * STEP, 3 * STEP))),
    )


def _constants(constraint: Constraint) -> Iterator[int]:
    for node in ast.walk(constraint.comparison):
        if isinstance(node, ast.Constant) and isinstance(node.value, int):
            yield node.value


def _divisors(constraint: Constraint) -> Iterator[int]:
    """The constants that a constraint divides by."""
    for node in ast.walk(constraint.comparison):
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mod, ast.FloorDiv)):
            divisor = node.right
            if isinstance(divisor, ast.Constant) and isinstance(divisor.value, int):
                yield max(divisor.value, 1)
