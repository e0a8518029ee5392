"""The kernels of the block-sparse products: what is computed stands in ``block_sparse_matmul``.

The lists are scalar prefetch operands, so index maps choose blocks of HBM by them and the pipeline
fetches ahead through them.

``dsd`` walks its list row by row, so the sum of a row stays in VMEM and each output block is
written once. A row without blocks is one step that only writes zeros. How many steps there are is
known at run time only: it is a dynamic dimension of the grid, so padding costs nothing. ``sdd``
visits every entry, since every block of its output has to be written; for padding it skips the
products and writes zeros.

Gradients contract other axes than the products themselves. Which axes is an argument, so that
nothing is transposed in HBM.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels._tpu import product
from reference_kernels.sparse._block_lists import in_order, listed


def _first(count: Any, x: jax.Array, axis: int) -> jax.Array:
    """``x`` with zeros after the first ``count`` elements along ``axis``."""
    inside = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) < count
    # In float32, because Mosaic cannot select bfloat16 of less than 5 rows (JAX 0.12.0.1).
    return jnp.where(inside, x.astype(jnp.float32), 0.0).astype(x.dtype)


def _dsd_kernel(
    entry_ref: Any,
    row_ref: Any,
    column_ref: Any,
    values_ref: Any,
    y_ref: Any,
    o_ref: Any,
    sum_ref: Any,
    *,
    axes: tuple[int, int],
    length: int,
) -> None:
    """Contract ``axes[0]`` of the block with ``axes[1]`` of ``y``, ``length`` long as a whole."""
    step = pl.program_id(1)
    row = row_ref[step]

    @pl.when((step == 0) | (row_ref[jnp.maximum(step - 1, 0)] != row))
    def _clear() -> None:
        sum_ref[...] = jnp.zeros_like(sum_ref)

    @pl.when(entry_ref[step] >= 0)
    def _add() -> None:
        values, y = values_ref[...], y_ref[...]
        if length % y.shape[axes[1]]:
            left = length - column_ref[step] * y.shape[axes[1]]
            values, y = _first(left, values, axes[0]), _first(left, y, axes[1])
        sum_ref[...] += product(values, y, axes)

    @pl.when(row_ref[step + 1] != row)
    def _round() -> None:
        o_ref[...] = sum_ref[...].astype(o_ref.dtype)


def dsd_call(
    values: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    count: jax.Array,
    y: jax.Array,
    *,
    m: int,
    block_n: int,
    axes: tuple[int, int] = (1, 0),
) -> jax.Array:
    """``S @ y``.

    Contracting axis 0 of the blocks makes it ``S^T @ y``, where ``rows`` and ``columns`` are those
    of ``S^T``, and contracting axis 1 of ``y`` makes it ``S @ y^T``.
    """
    sides, k, n = values.shape[1:], y.shape[axes[1]], y.shape[1 - axes[1]]
    p, q = sides[1 - axes[0]], sides[axes[0]]
    entry, row, column, steps = in_order(rows, columns, count, (pl.cdiv(m, p), pl.cdiv(k, q)))
    if axes[1] == 0:
        y_spec = pl.BlockSpec((q, block_n), lambda j, s, entry, row, column: (column[s], j))
    else:
        y_spec = pl.BlockSpec((block_n, q), lambda j, s, entry, row, column: (j, column[s]))
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(pl.cdiv(n, block_n), steps),
        in_specs=[
            pl.BlockSpec((None, *sides), lambda j, s, entry, *_: (jnp.maximum(entry[s], 0), 0, 0)),
            y_spec,
        ],
        out_specs=pl.BlockSpec((p, block_n), lambda j, s, entry, row, column: (row[s], j)),
        scratch_shapes=[pltpu.VMEM((p, block_n), jnp.float32)],
    )
    return pl.pallas_call(
        functools.partial(_dsd_kernel, axes=axes, length=k),
        out_shape=jax.ShapeDtypeStruct((m, n), values.dtype),
        grid_spec=grid_spec,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(entry, row, column, values, y)


def _sdd_kernel(
    row_ref: Any,
    column_ref: Any,
    listed_ref: Any,
    x_ref: Any,
    y_ref: Any,
    o_ref: Any,
    sum_ref: Any,
    *,
    sizes: tuple[int, int, int],
    axis: int,
) -> None:
    """Contract ``axis`` of ``y``; ``sizes`` are ``m``, ``k`` and ``n`` of the whole operands."""
    entry, step = pl.program_id(0), pl.program_id(1)
    m, k, n = sizes

    @pl.when(step == 0)
    def _clear() -> None:
        sum_ref[...] = jnp.zeros_like(sum_ref)

    @pl.when(listed_ref[entry] == 1)
    def _add() -> None:
        x, y = x_ref[...], y_ref[...]
        if k % x.shape[1]:
            left = k - step * x.shape[1]
            x, y = _first(left, x, 1), _first(left, y, axis)
        sum_ref[...] += product(x, y, (1, axis))

    @pl.when(step == pl.num_programs(1) - 1)
    def _round() -> None:
        total = sum_ref[...]
        for axis, size, ref in ((0, m, row_ref), (1, n, column_ref)):
            if size % total.shape[axis]:
                total = _first(size - ref[entry] * total.shape[axis], total, axis)
        o_ref[...] = total.astype(o_ref.dtype)


def sdd_call(
    x: jax.Array,
    y: jax.Array,
    rows: jax.Array,
    columns: jax.Array,
    count: jax.Array,
    *,
    block: tuple[int, int],
    block_k: int,
    axis: int = 0,
) -> jax.Array:
    """``x @ y`` at the listed blocks; contracting axis 1 of ``y``, ``x @ y^T``."""
    (m, k), n, (p, q) = x.shape, y.shape[1 - axis], block
    valid = listed(rows, columns, count, (pl.cdiv(m, p), pl.cdiv(n, q)))
    # Padding names block 0 in every step, so that at most one is fetched for all of it.
    scalars = (jnp.where(valid, rows, 0), jnp.where(valid, columns, 0), valid.astype(jnp.int32))
    if axis == 0:
        y_spec = pl.BlockSpec(
            (block_k, q), lambda b, s, row, column, real: (s * real[b], column[b])
        )
    else:
        y_spec = pl.BlockSpec(
            (q, block_k), lambda b, s, row, column, real: (column[b], s * real[b])
        )
    grid_spec = pltpu.PrefetchScalarGridSpec(
        num_scalar_prefetch=3,
        grid=(rows.shape[0], pl.cdiv(k, block_k)),
        in_specs=[
            pl.BlockSpec((p, block_k), lambda b, s, row, column, real: (row[b], s * real[b])),
            y_spec,
        ],
        out_specs=pl.BlockSpec((None, p, q), lambda b, s, *_: (b, 0, 0)),
        scratch_shapes=[pltpu.VMEM(block, jnp.float32)],
    )
    return pl.pallas_call(
        functools.partial(_sdd_kernel, sizes=(m, k, n), axis=axis),
        out_shape=jax.ShapeDtypeStruct((rows.shape[0], p, q), x.dtype),
        grid_spec=grid_spec,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(*scalars, x, y)
