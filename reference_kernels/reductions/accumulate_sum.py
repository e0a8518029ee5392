"""Sum over the rows of a matrix: ``o[j] = sum_i x[i, j]``, kept in the block of the output.

Shapes: ``x (m, n)``, ``o (n,)``. Dtypes: float32 and bfloat16, summed in float32; int32, which
wraps around.

The output needs no accumulator beside it. Over the grid ``(n, m)`` in blocks, ``m`` innermost, the
programs of one block of columns follow each other and share one block of the output. Pallas leaves
a block in VMEM for as long as its index stays the same and writes it back when the index changes:
so the first program of a run clears it, all of them add to it, and it goes to HBM once. The output
is float32 for that reason, whatever ``x`` is, and rounded outside.

Only *consecutive* programs may share a block. ``accumulate_sum_by_rows`` has the loops the other
way around, as a kernel would in which another operand belongs to the rows and is fetched once for
each. Then every block of the output is left and visited again, and its buffer must be restored from
HBM first. ``RevisitMode.ANY`` asks for that: a DMA in both directions in each step, and no overlap
with the arithmetic, because such a block cannot be double buffered. Without it, the chip adds to
whatever the buffer had last.

The gradient of a sum is its cotangent in every row, which needs no kernel.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._tpu import LANES, ROWS, fit


def _sum_kernel(x_ref: Any, o_ref: Any, *, axis: int, rows: int) -> None:
    """Add a block's rows to the output; ``axis`` of the grid goes over blocks of rows."""
    step = pl.program_id(axis)

    @pl.when(step == 0)
    def _clear() -> None:
        o_ref[...] = jnp.zeros_like(o_ref)

    x = x_ref[...].astype(o_ref.dtype)
    block = x.shape[0]
    if rows % block:
        row = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
        x = jnp.where(row < rows - step * block, x, jnp.zeros_like(x))
    o_ref[...] += jnp.sum(x, axis=0, keepdims=True)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def _sum(x: jax.Array, block: tuple[int, int], rows_first: bool) -> jax.Array:
    m, n = x.shape
    rows, columns = pl.cdiv(m, block[0]), pl.cdiv(n, block[1])
    if rows_first:
        grid = (rows, columns)
        params = pltpu.CompilerParams(dimension_semantics=("arbitrary", "arbitrary"))
        in_spec = pl.BlockSpec(block, lambda i, j: (i, j))
        out_spec = pl.BlockSpec(
            (1, block[1]),
            lambda i, j: (0, j),
            pipeline_mode=pl.Buffered(1, revisit=pl.RevisitMode.ANY),
        )
    else:
        grid = (columns, rows)
        params = pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary"))
        in_spec = pl.BlockSpec(block, lambda j, i: (i, j))
        out_spec = pl.BlockSpec((1, block[1]), lambda j, i: (0, j))
    total = jnp.int32 if x.dtype == jnp.int32 else jnp.float32
    out = pl.pallas_call(
        functools.partial(_sum_kernel, axis=0 if rows_first else 1, rows=m),
        out_shape=jax.ShapeDtypeStruct((1, n), total),
        grid=grid,
        in_specs=[in_spec],
        out_specs=out_spec,
        compiler_params=params,
    )(x)
    return out.reshape(n).astype(x.dtype)


def _forward(x: jax.Array, block: tuple[int, int], rows_first: bool) -> tuple[jax.Array, jax.Array]:
    # An empty array that carries the number of rows.
    return _sum(x, block, rows_first), jnp.zeros((x.shape[0], 0))


def _backward(
    block: tuple[int, int], rows_first: bool, rows: jax.Array, do: jax.Array
) -> tuple[jax.Array]:
    del block, rows_first
    return (jnp.broadcast_to(do, (rows.shape[0], *do.shape)),)


_sum.defvjp(_forward, _backward)


def _checked(x: jax.Array, block_m: int, block_n: int) -> tuple[int, int]:
    """The sizes of a block of ``x``."""
    m, n = _require.axes("x", x, "m n")
    if x.dtype != jnp.int32:
        _require.floating("x", x)
    _require.positive(block_m=block_m, block_n=block_n)
    return fit(block_m, m, ROWS), fit(block_n, n, LANES)


def accumulate_sum(x: jax.Array, *, block_m: int = 512, block_n: int = 512) -> jax.Array:
    """The sum of the rows of ``x``. It can be differentiated, and vmapped.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32.
      block_m: rows in a block.
      block_n: columns in a block, which make a block of the output.

    Returns:
      ``(n,)``, of the dtype of ``x``.

    Raises:
      ValueError: ``x`` has a wrong rank, size or dtype, or a block size is not positive.
    """
    return _sum(x, _checked(x, block_m, block_n), False)


def accumulate_sum_by_rows(x: jax.Array, *, block_m: int = 512, block_n: int = 512) -> jax.Array:
    """``accumulate_sum`` with the rows in the outer loop: each block is visited again and again.

    Takes, returns and raises what ``accumulate_sum`` does.
    """
    return _sum(x, _checked(x, block_m, block_n), True)


def reference(x: jax.Array) -> jax.Array:
    """The sum of the rows, in float32 at least for floating dtypes."""
    wide = x.dtype if x.dtype == jnp.int32 else jnp.promote_types(x.dtype, jnp.float32)
    return jnp.sum(x.astype(wide), axis=0, dtype=wide).astype(x.dtype)
