"""Matrix product ``o = (scales x) @ y`` on a Blackwell GPU with its left operand in tensor memory.

Shapes: ``x (m, k)``, ``scales (m,)`` or none, ``y (k, n)``, ``o (m, n)``. Dtypes: ``y`` is
bfloat16, as is ``o``; ``x`` is int8 with float32 ``scales``, or bfloat16 without; sums are float32.
int8 for weights, one scale for each row, is the usual quantization of large models; the product is
then that of the transposed matrices.

``tcgen05.mma`` multiplies operands of one dtype. So int8 must become bfloat16 on the way, and
threads do that in registers. In ``blackwell_matmul`` both operands lie in shared memory. The left
one may lie in tensor memory (TMEM) instead, 128 lanes of 512 columns of 32 bits, which threads
reach faster and which shared memory need not find room for:

- int8: threads load a block from shared memory, convert it and store it to TMEM
  (``async_store_tmem``). The store is asynchronous: ``commit_tmem`` waits for it, so that the
  tensor core, which works beside the threads, reads what was written.
- bfloat16: nothing is to be converted, and a copy without threads is enough
  (``async_copy_smem_to_tmem``, PTX ISA "tcgen05.cp"). The tensor core does copies and products in
  the order of their issue, so neither needs a wait.

TMEM has two blocks of ``x``: the next is written while the product of the last one runs. One
warpgroup does everything, as in ``hopper_matmul``; but only one of its warps starts copies
(``warp_map``), so that the others need not come together for each.

NVIDIA, "PTX ISA" 8.7, section "TensorCore 5th Generation Family Instructions".
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels.mosaic_gpu import _tiles

_ROWS = 128  # of a tile: the lanes of TMEM


def _kernel(
    x_gmem: Any,
    scales_gmem: Any,
    y_gmem: Any,
    o_gmem: Any,
    x_smem: Any,
    y_smem: Any,
    o_smem: Any,
    x_tmem: Any,
    sums: Any,
    loaded: Any,
    consumed: Any,
    *,
    steps: int,
) -> None:
    stages, _, block_k = x_smem.shape
    block_n = y_smem.shape[2]
    row, column = jax.lax.axis_index("row") * _ROWS, jax.lax.axis_index("column") * block_n

    def fetch(step: Any) -> None:
        slot, terms = jax.lax.rem(step, stages), pl.ds(step * block_k, block_k)

        def by_one_warp(warp: Any) -> None:
            @pl.when(warp == 0)
            def _copy() -> None:
                for block, smem in (
                    (x_gmem.at[pl.ds(row, _ROWS), terms], x_smem),
                    (y_gmem.at[terms, pl.ds(column, block_n)], y_smem),
                ):
                    plgpu.copy_gmem_to_smem(block, smem.at[slot], loaded.at[slot])

        plgpu.warp_map(by_one_warp)

    pl.loop(0, min(stages, steps))(fetch)

    @pl.loop(0, steps)
    def _step(step: Any) -> None:
        slot = jax.lax.rem(step, stages)
        here = x_tmem.at[:, pl.ds(jax.lax.rem(step, 2) * block_k, block_k)]
        plgpu.barrier_wait(loaded.at[slot])
        if x_smem.dtype == y_smem.dtype:
            plgpu.async_copy_smem_to_tmem(x_smem.at[slot], here)
        else:
            x = plgpu.load(x_smem.at[slot], layout=plgpu.Layout.TCGEN05, optimized=False)
            plgpu.async_store_tmem(here, x.astype(y_smem.dtype))
            plgpu.commit_tmem()
            plgpu.commit_smem()  # all threads have read: a copy may write here
        plgpu.tcgen05_mma(sums, here, y_smem.at[slot], consumed.at[slot], accumulate=step > 0)

        @pl.when(step > 0)
        def _refill() -> None:
            before = step - 1  # its slot, and its half of TMEM, are free when its product is done
            plgpu.barrier_wait(consumed.at[jax.lax.rem(before, stages)])
            pl.when(before + stages < steps)(lambda: fetch(before + stages))

    # The tensor core arrives there once this product and all before it are done.
    plgpu.barrier_wait(consumed.at[(steps - 1) % stages])
    value = plgpu.async_load_tmem(sums)
    plgpu.wait_load_tmem()
    if scales_gmem is not None:
        layout = plgpu.Layout.TCGEN05.reduce(1)
        scales = plgpu.load(scales_gmem.at[pl.ds(row, _ROWS)], layout=layout, optimized=False)
        value *= jax.lax.broadcast_in_dim(scales, value.shape, (0,))
    o_smem[...] = value.astype(o_gmem.dtype)
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[pl.ds(row, _ROWS), pl.ds(column, block_n)])
    plgpu.wait_smem_to_gmem(0)


def blackwell_mixed_matmul(
    x: jax.Array,
    y: jax.Array,
    scales: jax.Array | None = None,
    *,
    block_n: int = 128,
    block_k: int = 64,
    stages: int = 4,
) -> jax.Array:
    """``x @ y``, or ``(scales[:, None] * x) @ y``. It can be vmapped.

    Args:
      x: ``(m, k)``, int8 with ``scales``, or bfloat16 without. It and ``y`` are copied first unless
        sizes are whole tiles (see ``hopper_matmul``).
      y: ``(k, n)``, bfloat16.
      scales: ``(m,)``, float32.
      block_n: columns of a tile of the output, a multiple of 64, at most 256.
      block_k: terms of the sums in one step, a multiple of 64, at most 128.
      stages: how many steps fit in shared memory, at least 2.

    Returns:
      ``(m, n)``, bfloat16.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a setting is not as above.
    """
    m, k = _require.axes("x", x, "m k")
    y_k, n = _require.axes("y", y, "k n")
    _require.same_size("k", ("x", k), ("y", y_k))
    wanted = jnp.bfloat16 if scales is None else jnp.int8
    if x.dtype != wanted:
        given = "without scales" if scales is None else "with scales"
        raise ValueError(f"x must be {jnp.dtype(wanted)} {given}, but its dtype is {x.dtype}")
    if y.dtype != jnp.bfloat16:
        raise ValueError(f"y must be bfloat16, but its dtype is {y.dtype}")
    if scales is not None:
        (rows,) = _require.axes("scales", scales, "m")
        _require.same_size("m", ("x", m), ("scales", rows))
        if scales.dtype != jnp.float32:
            raise ValueError(f"scales must be float32, but its dtype is {scales.dtype}")
        scales = jnp.pad(scales, (0, -m % _ROWS))
    _tiles.check_blocks(y.dtype, block_m=_ROWS, block_n=block_n, block_k=block_k, stages=stages)
    if block_k > 128:
        raise ValueError(f"block_k must be at most 128, but it is {block_k}")
    x, y = _tiles.aligned(x), _tiles.aligned(y)

    def kernel(x_gmem: Any, *refs: Any, **scratch: Any) -> None:
        scales_gmem, y_gmem, o_gmem = refs if scales is not None else (None, *refs)
        _kernel(x_gmem, scales_gmem, y_gmem, o_gmem, **scratch, steps=pl.cdiv(k, block_k))

    swizzle = plgpu.find_swizzle(block_k * 8 * x.dtype.itemsize, "x")
    return plgpu.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(_tiles.whole((m, n), y.dtype), y.dtype),
        scratch_types={
            "x_smem": _tiles.smem((stages, _ROWS, block_k), x.dtype, swizzle),
            "y_smem": _tiles.smem((stages, block_k, block_n), y.dtype),
            "o_smem": _tiles.smem((_ROWS, block_n), y.dtype),
            "x_tmem": plgpu.TMEM((_ROWS, 2 * block_k), y.dtype, packed=True),
            "sums": plgpu.TMEM((_ROWS, block_n), jnp.float32),
            "loaded": plgpu.Barrier(num_arrivals=2, num_barriers=stages),
            "consumed": plgpu.Barrier(num_barriers=stages, orders_tensor_core=True),
        },
        grid=(pl.cdiv(m, _ROWS), pl.cdiv(n, block_n)),
        grid_names=("row", "column"),
    )(*([x, y] if scales is None else [x, scales, y]))[:m, :n]


def reference(x: jax.Array, y: jax.Array, scales: jax.Array | None = None) -> jax.Array:
    """The product, summed in float32 at least and rounded once."""
    wide = jnp.promote_types(y.dtype, jnp.float32)
    product = jnp.dot(x.astype(wide), y.astype(wide), precision=jax.lax.Precision.HIGHEST)
    return (product if scales is None else scales[:, None] * product).astype(y.dtype)
