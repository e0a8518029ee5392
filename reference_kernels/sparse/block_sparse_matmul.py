"""Products with a block-sparse matrix, which is never made dense.

A block-sparse matrix ``S`` is a list of blocks, ``values (blocks, p, q)``, and the block row and
the block column of each. The products are named as in MegaBlocks (Gale et al., arXiv:2211.15841),
by output, left and right operand, sparse or dense:

- ``dsd``: ``o = S @ y``, with ``S (m, k)`` sparse and ``y (k, n)`` and ``o (m, n)`` dense. Block
  row ``r`` of ``o`` is the sum of ``values[b] @ y[columns[b]]`` over the entries ``b`` of that row,
  and zero if there is none.
- ``sdd``: the listed blocks of ``x @ y``, with ``x (m, k)`` and ``y (k, n)`` dense.

Dtypes: float32 or bfloat16, the same for both operands. Lists have a fixed length, because shapes
must be known at compile time; ``count`` says how many of the entries are real.

Each is the other's gradient: with the cotangents ``do`` of ``o`` and ``G`` of the blocks,

    dsd:  dS = sdd(do, y^T)     dy = dsd(S^T, do)
    sdd:  dx = dsd(G, y^T)      dy = dsd(G^T, x)^T

``S^T`` is the same list with rows and columns exchanged; the kernel contracts the other axis of
each block. The kernels themselves are in ``_block_products``.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from reference_kernels import _require
from reference_kernels._tpu import LANES, fit, precision_for
from reference_kernels.sparse._block_lists import check_list, listed
from reference_kernels.sparse._block_products import dsd_call, sdd_call


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _dsd(
    values: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    count: jax.Array,
    y: jax.Array,
    m: int,
    block_n: int,
) -> jax.Array:
    return dsd_call(values, rows, columns, count, y, m=m, block_n=block_n)


def _dsd_forward(*arguments: Any) -> tuple[jax.Array, tuple[Any, ...]]:
    return _dsd(*arguments), arguments[:5]


def _dsd_backward(
    m: int, block_n: int, operands: tuple[Any, ...], do: jax.Array
) -> tuple[Any, ...]:
    values, rows, columns, count, y = operands
    lists, k = (rows, columns, count), y.shape[0]
    dvalues = sdd_call(do, y, *lists, block=values.shape[1:], block_k=block_n, axis=1)
    dy = dsd_call(values, columns, rows, count, do, m=k, block_n=block_n, axes=(0, 0))
    return dvalues, None, None, None, dy


_dsd.defvjp(_dsd_forward, _dsd_backward)


@functools.partial(jax.custom_vjp, nondiff_argnums=(5, 6))
def _sdd(
    x: jax.Array,
    y: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    count: jax.Array,
    block: tuple[int, int],
    block_k: int,
) -> jax.Array:
    return sdd_call(x, y, rows, columns, count, block=block, block_k=block_k)


def _sdd_forward(*arguments: Any) -> tuple[jax.Array, tuple[Any, ...]]:
    return _sdd(*arguments), arguments[:5]


def _sdd_backward(
    block: tuple[int, int], block_k: int, operands: tuple[Any, ...], g: jax.Array
) -> tuple[Any, ...]:
    x, y, rows, columns, count = operands
    dx = dsd_call(g, rows, columns, count, y, m=x.shape[0], block_n=block_k, axes=(1, 1))
    dy = dsd_call(g, columns, rows, count, x, m=y.shape[1], block_n=block_k, axes=(0, 0))
    return dx, dy.T, None, None, None


_sdd.defvjp(_sdd_forward, _sdd_backward)


def dsd(
    values: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    count: jax.Array,
    y: jax.Array,
    *,
    m: int,
    block_n: int = 1024,
) -> jax.Array:
    """``S @ y`` for a block-sparse ``S`` of ``m`` rows. It can be differentiated by both.

    Args:
      values: ``(blocks, p, q)``, float32 or bfloat16. What a block has beyond the edges of ``S``
        does not matter. A TPU wants ``p`` and ``q`` to be multiples of 8 (16 for bfloat16).
      rows: ``(blocks,)`` int32: the row of each block, counted in blocks. In any order; blocks at
        the same place are added.
      columns: ``(blocks,)`` int32, likewise.
      count: ``(1,)`` int32: how many entries are real. The others, and entries that lie outside of
        ``S``, are left out.
      y: ``(k, n)``, of the dtype of ``values``.
      m: rows of ``S`` and of the output.
      block_n: columns of a block of ``y`` and of the output.

    Returns:
      ``(m, n)``, of the dtype of ``values``; zero in block rows without an entry.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a size is not positive.
    """
    blocks, _, _ = _require.axes("values", values, "blocks p q")
    _, n = _require.axes("y", y, "k n")
    check_list("values", rows, columns, count, blocks=blocks)
    _require.floating("values", values)
    _require.same_dtype(values=values, y=y)
    _require.positive(m=m, block_n=block_n)
    return _dsd(values, rows, columns, count, y, m, fit(block_n, n, LANES))


def sdd(
    x: jax.Array,
    y: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    count: jax.Array,
    *,
    block: tuple[int, int] = (128, 128),
    block_k: int = 1024,
) -> jax.Array:
    """The listed blocks of ``x @ y``. It can be differentiated by both.

    Args:
      x: ``(m, k)``, float32 or bfloat16.
      y: ``(k, n)``, of the dtype of ``x``.
      rows: ``(blocks,)`` int32: the row of each block, counted in blocks.
      columns: ``(blocks,)`` int32, likewise.
      count: ``(1,)`` int32: how many entries are real.
      block: rows and columns ``(p, q)`` of a block. It is the unit of ``rows`` and ``columns``, so
        it is not cut to size. A TPU wants a multiple of 8 (16 for bfloat16) and one of 128.
      block_k: how much of ``k`` a program contracts.

    Returns:
      ``(blocks, p, q)``, of the dtype of ``x``; zero in entries that are padding or lie outside of
      the product, and beyond its edges.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a size is not positive.
    """
    _, k = _require.axes("x", x, "m k")
    y_k, _ = _require.axes("y", y, "k n")
    _require.same_size("k", ("x", k), ("y", y_k))
    (blocks,) = _require.axes("rows", rows, "blocks")
    check_list("rows", rows, columns, count, blocks=blocks)
    _require.floating("x", x)
    _require.same_dtype(x=x, y=y)
    block = _require.pair("block", block)
    _require.positive(block_k=block_k)
    return _sdd(x, y, rows, columns, count, block, fit(block_k, k, LANES))


def _tiles(matrix: jax.Array, axis: int, size: int) -> jax.Array:
    """``matrix`` cut into tiles of ``size`` along ``axis``, stacked; the last is padded."""
    padding = [(0, 0), (0, 0)]
    padding[axis] = (0, -matrix.shape[axis] % size)
    padded = jnp.moveaxis(jnp.pad(matrix, padding), axis, 0)
    tiles = padded.reshape(-1, size, padded.shape[1])
    return tiles if axis == 0 else tiles.transpose(0, 2, 1)


def _block_products(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x[b] @ y[b]`` for every ``b``, accumulated in float32 at least and not rounded."""
    return jnp.matmul(
        x,
        y,
        precision=precision_for(x.dtype),
        preferred_element_type=jnp.promote_types(x.dtype, jnp.float32),
    )


def reference_dsd(
    values: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    count: jax.Array,
    y: jax.Array,
    *,
    m: int,
) -> jax.Array:
    """The products of all listed blocks, added up row by row."""
    _, p, q = values.shape
    y_tiles = _tiles(y, 0, q)
    grid = (pl.cdiv(m, p), y_tiles.shape[0])
    real = listed(rows, columns, count, grid)
    here = jnp.where(real, columns, 0)
    inside = here[:, None] * q + jnp.arange(q) < y.shape[0]
    values = jnp.where(real[:, None, None] & inside[:, None, :], values, 0)
    products = _block_products(values, y_tiles[here])
    total = jnp.zeros((grid[0], p, y.shape[1]), products.dtype)
    total = total.at[jnp.where(real, rows, 0)].add(products)
    return total.reshape(-1, y.shape[1])[:m].astype(y.dtype)


def reference_sdd(
    x: jax.Array,
    y: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    count: jax.Array,
    *,
    block: tuple[int, int],
) -> jax.Array:
    """The product of a tile of ``x`` and a tile of ``y`` for each listed block."""
    x_tiles, y_tiles = _tiles(x, 0, block[0]), _tiles(y, 1, block[1])
    real = listed(rows, columns, count, (x_tiles.shape[0], y_tiles.shape[0]))
    rows, columns = jnp.where(real, rows, 0), jnp.where(real, columns, 0)
    products = _block_products(x_tiles[rows], y_tiles[columns])
    return jnp.where(real[:, None, None], products, 0).astype(x.dtype)
