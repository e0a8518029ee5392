"""Matrix product ``o = x @ y`` for an Ampere GPU: ``mma`` on registers, operands by ``cp.async``.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtypes: bfloat16 or float16; sums are float32.

Source: PTX ISA 7.0 and later, "Matrix multiply-accumulate operation using mma instruction" and
"cp.async". What Hopper does by itself is done by hand here:

- ``mma`` is synchronous, and its operands are registers. A warp multiplies ``16 x 16`` by ``16 x
  8``; the layouts ``MMA_LHS``, ``MMA_RHS`` and ``MMA_ACC`` say which thread holds which element.
  Four warps share the rows of a block, so each of them loads all of ``y``: with ``128 x 128`` sums
  in 128 registers of a thread, 32 columns of ``x`` and rows of ``y`` take 16 and 64 more.
- ``cp.async`` has no barrier in memory. A thread waits until at most so many of its own groups of
  copies are under way, and each copy is a group. So a step that has nothing to fetch any more
  fetches the last block once more: otherwise the count would be wrong.
- It does not stop at the end of an array, as TMA does. Operands are padded to whole blocks before.
- There is no copy out of shared memory. The output takes a way through it all the same: in the
  layout ``SMEM_GMEM_COPY`` neighboring threads hold neighbors of a row, and write whole sectors.

On newer GPUs the copies are those of TMA, with a barrier for each slot, and ``mma`` is the same; it
gets a fraction of what ``wgmma`` can do there (see ``hopper_matmul``).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _gpu, _require
from reference_kernels.mosaic_gpu import _tiles

_TMA = 9  # the compute capability from which on there is one
_SWIZZLE = 128  # bytes of a row of a tile of ``y`` and of the output


def _matmul_kernel(
    x_gmem: Any,
    y_gmem: Any,
    o_gmem: Any,
    x_smem: Any,
    y_smem: Any,
    o_smem: Any,
    *arrived: Any,
    steps: int,
) -> None:
    stages, block_m, block_k = x_smem.shape
    block_n, dtype = y_smem.shape[2], x_gmem.dtype
    rows = pl.ds(jax.lax.axis_index("row") * block_m, block_m)
    columns = pl.ds(jax.lax.axis_index("column") * block_n, block_n)

    def fetch(step: Any) -> None:
        slot = jax.lax.rem(step, stages)
        # Beyond the last step, the last block again, into a slot that nobody reads any more.
        terms = pl.ds(jnp.minimum(step, steps - 1) * block_k, block_k)
        for source, smem in ((x_gmem.at[rows, terms], x_smem), (y_gmem.at[terms, columns], y_smem)):
            if arrived:
                plgpu.copy_gmem_to_smem(source, smem.at[slot], arrived[0].at[slot])
            else:
                promise = plgpu.OOBFillMode.PROMISE_IN_BOUNDS
                plgpu.copy_gmem_to_smem(source, smem.at[slot], oob_mode=promise)

    def wait(step: Any) -> None:
        if arrived:
            plgpu.barrier_wait(arrived[0].at[jax.lax.rem(step, stages)])
        else:
            plgpu.wait_gmem_to_smem(2 * (stages - 2))  # those of x and y, of later steps

    def multiply(step: Any, total: jax.Array) -> jax.Array:
        wait(step)
        slot = jax.lax.rem(step, stages)
        # There is no optimized load of y, whose columns are along the lanes.
        x = plgpu.load(x_smem.at[slot], layout=plgpu.Layout.MMA_LHS(dtype), optimized=False)
        y = plgpu.load(y_smem.at[slot], layout=plgpu.Layout.MMA_RHS(dtype), optimized=False)
        if arrived:
            # The copy writes through another proxy than the one that threads read through.
            plgpu.commit_smem()
        fetch(step + stages - 1)  # into the slot of the step before
        return plgpu.mma(total, x, y)

    for step in range(stages - 1):
        fetch(jnp.int32(step))
    zeros = jnp.zeros((block_m, block_n), jnp.float32)
    total = plgpu.layout_cast(zeros, plgpu.Layout.MMA_ACC(dtype))
    total = jax.lax.fori_loop(0, steps, multiply, total)
    # Nothing may be under way at the end.
    if not arrived:
        plgpu.wait_gmem_to_smem(0)
    for step in range(steps, steps + stages - 1) if arrived else ():
        wait(jnp.int32(step))
    o_smem[...] = total.astype(dtype)
    by_rows = plgpu.Layout.SMEM_GMEM_COPY(o_smem.shape, dtype, _SWIZZLE)
    o_gmem[rows, columns] = plgpu.load(o_smem, layout=by_rows)


def ampere_matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    block_m: int = 128,
    block_n: int = 128,
    block_k: int = 32,
    stages: int = 3,
) -> jax.Array:
    """``x @ y`` on an Ampere GPU or a newer one. It can be vmapped.

    With the defaults a block takes 80 kB of shared memory, half of what an A100 has.

    Args:
      x: ``(m, k)``, bfloat16 or float16. It and ``y`` are copied first unless sizes are multiples
        of the blocks.
      y: ``(k, n)``, of the dtype of ``x``.
      block_m: rows of a block of the output, a multiple of 64.
      block_n: columns of it, a multiple of 64.
      block_k: terms of the sums in one step, 32 or 64.
      stages: how many steps fit in shared memory, at least 2.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not allowed.
    """
    m, k, n = _require.product(x, y)
    _tiles.check_dtype("x", x)
    _require.positive(block_m=block_m, block_n=block_n, block_k=block_k, stages=stages)
    for name, size in (("block_m", block_m), ("block_n", block_n)):
        if size % 64:
            raise ValueError(f"{name} must be a multiple of 64, but it is {size}")
    if block_k not in (32, 64):
        raise ValueError(f"block_k must be 32 or 64, but it is {block_k}")
    if stages < 2:
        raise ValueError(f"stages must be at least 2, but it is {stages}: nothing would overlap")
    grid, steps = (pl.cdiv(m, block_m), pl.cdiv(n, block_n)), pl.cdiv(k, block_k)
    x = jnp.pad(x, [(0, -m % block_m), (0, -k % block_k)])
    y = jnp.pad(y, [(0, -k % block_k), (0, -n % block_n)])
    barriers = [plgpu.Barrier(num_arrivals=2, num_barriers=stages)]
    return plgpu.kernel(
        functools.partial(_matmul_kernel, steps=steps),
        out_type=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype),
        scratch_types=[
            _smem((stages, block_m, block_k), x.dtype, block_k * x.dtype.itemsize),
            _smem((stages, block_k, block_n), x.dtype, _SWIZZLE),
            _smem((block_m, block_n), x.dtype, _SWIZZLE),
            *(barriers if _gpu.capability() >= _TMA else []),
        ],
        grid=grid,
        grid_names=("row", "column"),
    )(x, y)[:m, :n]


def _smem(shape: tuple[int, ...], dtype: Any, swizzle: int) -> Any:
    return plgpu.SMEM(shape, dtype, transforms=_tiles.transforms(dtype, swizzle))
