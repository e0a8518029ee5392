"""Which tile of rows belongs to which group: the order in which grouped products visit them.

The rows of ``x`` lie sorted by group, so a tile of ``tile`` rows can hold the end of one group and
the start of another, or several whole ones. Each pair of a tile and a group that has rows in it is
one *visit*. In this order, the visits of a tile follow each other, and so do those of a group:
whichever of them owns the block of the output, it is revisited consecutively, as a TPU wants it::

    tile    0    0   1    1   2      m = 11 rows in tiles of 4, sizes 3, 4, 0, 2
    group   0    1   1    3   3
    rows    0-2  3   4-6  7   8      rows 9 and 10 belong to none

The sizes are values of the running program, the number of visits is too, and so is the grid. What
is known beforehand is that there are no more than ``tiles + groups - 1``: every tile has one visit,
and each further group in it costs one more.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


class Schedule(NamedTuple):
    """The visits, in four lists of ``tiles + groups - 1`` int32 values, and how many there are.

    Attributes:
      groups: the group of each visit.
      tiles: its tile of rows.
      starts: the row of the tile with which the group starts; negative if it starts in a tile
        before.
      ends: one more than its last row; more than ``tile`` if it ends in a tile after.
      count: how many visits there are; what the lists hold beyond is not used.
    """

    groups: jax.Array
    tiles: jax.Array
    starts: jax.Array
    ends: jax.Array
    count: jax.Array


def group_schedule(group_sizes: jax.Array, m: int, tile: int, *, visit_empty: bool) -> Schedule:
    """The schedule for ``m`` rows in tiles of ``tile``.

    Args:
      group_sizes: ``(groups,)``, int32. Rows beyond ``m`` are left out.
      m: rows of the operand.
      tile: rows in a tile.
      visit_empty: give a group without rows a visit, because something must be written for it.
        There is one visit at least, even if no group has rows.
    """
    groups, tiles = group_sizes.size, pl.cdiv(m, tile)
    ends = jnp.minimum(jnp.cumsum(group_sizes, dtype=jnp.int32), m)
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), ends[:-1]])
    first = jnp.minimum(starts // tile, tiles - 1)
    visits = jnp.where(ends > starts, (ends - 1) // tile - first + 1, int(visit_empty))
    before = jnp.cumsum(visits) - visits
    visit = jnp.arange(tiles + groups - 1, dtype=jnp.int32)
    group = jnp.searchsorted(before + visits, visit, side="right", method="compare_all")
    group = jnp.minimum(group, groups - 1)
    tile_of_visit = jnp.clip(first[group] + visit - before[group], 0, tiles - 1)
    start, end = (bound[group] - tile_of_visit * tile for bound in (starts, ends))
    lists = (group, tile_of_visit, start, end, jnp.maximum(jnp.sum(visits), 1))
    return Schedule(*(values.astype(jnp.int32) for values in lists))
