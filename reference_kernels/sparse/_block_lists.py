"""Lists of blocks: the sparse side of the block-sparse products.

A block-sparse matrix is ``values (blocks, p, q)`` with the ``rows`` and ``columns``, counted in
blocks, at which they lie, both ``(blocks,)`` int32. The first ``count`` entries are the matrix; the
others are padding, because the shapes of arrays are fixed where the number of blocks is data.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from reference_kernels import _require


def check_list(values: Any, rows: Any, columns: Any, count: Any, *, blocks: int) -> None:
    """Raise ValueError unless ``rows``, ``columns`` and ``count`` describe ``blocks`` blocks.

    Args:
      values: what has the blocks, as a word for messages.
      rows: ``(blocks,)`` int32.
      columns: ``(blocks,)`` int32.
      count: ``(1,)`` int32.
      blocks: how many blocks there is room for.
    """
    for name, operand in (("rows", rows), ("columns", columns)):
        (length,) = _require.axes(name, operand, "blocks")
        _require.same_size("blocks", (values, blocks), (name, length))
    for name, operand in (("rows", rows), ("columns", columns), ("count", count)):
        if operand.dtype != jnp.int32:
            raise ValueError(f"{name} must be int32, but its dtype is {operand.dtype}")
    if count.shape != (1,):
        raise ValueError(f"count must have the shape (1,), but its shape is {count.shape}")


def listed(
    rows: jax.Array, columns: jax.Array, count: jax.Array, grid: tuple[int, int]
) -> jax.Array:
    """Which entries are blocks of a matrix of ``grid`` blocks; the others are padding."""
    inside = (rows >= 0) & (rows < grid[0]) & (columns >= 0) & (columns < grid[1])
    return inside & (jnp.arange(rows.shape[0]) < count[0])


def in_order(
    rows: jax.Array, columns: jax.Array, count: jax.Array, grid: tuple[int, int]
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The steps of a walk over the listed blocks, row by row, that visits the empty rows as well.

    Returns:
      For each step the entry that it reads, -1 to read none because its row is empty; its row, and
      one more that is no row, so that every row has an end; its column; and how many steps there
      are, a scalar. Behind those stands padding.
    """
    blocks = rows.shape[0]
    valid = listed(rows, columns, count, grid)
    filled = jnp.zeros(grid[0], bool).at[jnp.where(valid, rows, grid[0])].set(True, mode="drop")
    row_stride, column_stride = pl.strides_from_shape(grid)
    position = jnp.where(valid, rows * row_stride + columns * column_stride, grid[0] * row_stride)
    empty = jnp.where(filled, grid[0], jnp.arange(grid[0])) * row_stride
    key = jnp.concatenate([position, empty])
    order = jnp.argsort(key).astype(jnp.int32)
    key = key[order].astype(jnp.int32)
    row = jnp.append(key // row_stride, jnp.int32(grid[0]))
    column = key % row_stride // column_stride
    steps = valid.sum() + grid[0] - filled.sum()
    return jnp.where(order < blocks, order, -1), row, column, steps.astype(jnp.int32)
