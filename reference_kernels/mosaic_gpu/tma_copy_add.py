"""``o = x + 1`` on a GPU with asynchronous copies between global and shared memory.

Shapes: ``x`` and ``o`` are ``(m, n)``, ``n`` a multiple of 128. Dtypes: float32, bfloat16 or int32.

A block of the grid copies ``block_rows x 128`` elements to shared memory by TMA, the copy engine of
Hopper and later, which moves at most 256 elements along each dimension. The copy arrives at a
barrier, and waiting on that barrier is the only proof that the data is there. After the addition,
``commit_smem`` makes what the threads wrote visible to the engine, which then copies it back; the
block may end only when that copy is done.

The blocks of the last ``m % block_rows`` rows use the first rows of their shared memory, so that
nothing beyond the end is read or written.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require

_COLUMNS = 128  # of a block: one for each thread of a warpgroup
_MOST = 256  # elements of one TMA copy along a dimension


def _copy_add_kernel(x_gmem: Any, o_gmem: Any, smem: Any, barrier: Any, *, block_rows: int) -> None:
    block = jax.lax.axis_index("row")
    columns = pl.ds(jax.lax.axis_index("column") * _COLUMNS, _COLUMNS)
    whole, tail = divmod(x_gmem.shape[0], block_rows)

    def add_one(rows: int) -> None:
        here = (pl.ds(block * block_rows, rows), columns)
        buffer = smem if rows == block_rows else smem.at[pl.ds(0, rows)]
        plgpu.copy_gmem_to_smem(x_gmem.at[here], buffer, barrier)
        plgpu.barrier_wait(barrier)
        buffer[...] = buffer[...] + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(buffer, o_gmem.at[here])
        plgpu.wait_smem_to_gmem(0)

    pl.when(block < whole)(lambda: add_one(block_rows))
    if tail:
        pl.when(block == whole)(lambda: add_one(tail))


def tma_copy_add(x: jax.Array, *, block_rows: int = 64) -> jax.Array:
    """``x + 1`` through shared memory.

    Args:
      x: ``(m, n)`` with ``n`` a multiple of 128; float32, bfloat16 or int32.
      block_rows: rows in a block, at most 256. The default takes 32 kB of shared memory in
        float32, so that several blocks share an SM and hide each other's copies.

    Raises:
      ValueError: ``x`` is not a matrix, is empty or has an ``n`` that is not a multiple of 128, or
        ``block_rows`` is not between 1 and 256.
    """
    m, n = _require.axes("x", x, "m n")
    if n % _COLUMNS:
        raise ValueError(f"x must have an n that is a multiple of {_COLUMNS}, but n is {n}")
    _require.positive(block_rows=block_rows)
    if block_rows > _MOST:
        raise ValueError(f"block_rows must be at most {_MOST}, but it is {block_rows}")
    block_rows = min(block_rows, m)
    return plgpu.kernel(
        functools.partial(_copy_add_kernel, block_rows=block_rows),
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        scratch_types=[plgpu.SMEM((block_rows, _COLUMNS), x.dtype), plgpu.Barrier()],
        grid=(pl.cdiv(m, block_rows), n // _COLUMNS),
        grid_names=("row", "column"),
    )(x)


def reference(x: jax.Array) -> jax.Array:
    """``x + 1``."""
    return x + 1
