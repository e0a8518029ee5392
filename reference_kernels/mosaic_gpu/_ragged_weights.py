"""The gradient of the weights of a grouped product: ``dw[g] = x_g^T @ do_g`` for the rows of each
group.

Here the rows are the terms of the sums, and it is the *length* of the sums that is known only while
the program runs. A block has a tile of one group's ``dw``, and goes over the rows of its group.
These begin at any row, but a copy into swizzled shared memory only at every eighth. So the first
step may have rows of the group before, and the last one of the group after. Threads replace them
with zeros before ``wgmma`` reads them. They do so in both operands: zero times what is not a number
is none.

A group without rows has no step, and its weights get zeros.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels.mosaic_gpu import _tiles


def _kernel(
    starts_gmem: Any,
    ends_gmem: Any,
    x_gmem: Any,
    y_gmem: Any,
    o_gmem: Any,
    x_smem: Any,
    y_smem: Any,
    o_smem: Any,
    arrived: Any,
) -> None:
    stages, block_k, block_m = x_smem.shape
    block_n = y_smem.shape[2]
    group = jax.lax.axis_index("group")
    row, column = jax.lax.axis_index("row") * block_m, jax.lax.axis_index("column") * block_n
    start, end = starts_gmem[group], ends_gmem[group]
    base = start - jax.lax.rem(start, jnp.int32(_tiles.ROWS))
    steps = jax.lax.div(end - base + (block_k - 1), jnp.int32(block_k))
    steps = jnp.where(start < end, steps, 0)

    def fetch(step: Any) -> None:
        slot = jax.lax.rem(step, stages)
        terms = pl.ds(pl.multiple_of(base + step * block_k, _tiles.ROWS), block_k)
        for gmem, smem, columns in (
            (x_gmem, x_smem, pl.ds(row, block_m)),
            (y_gmem, y_smem, pl.ds(column, block_n)),
        ):
            plgpu.copy_gmem_to_smem(gmem.at[terms, columns], smem.at[slot], arrived.at[slot])

    def clear_others(slot: Any, first: Any) -> None:
        """Zeros instead of the rows of other groups in a step whose row is ``first``."""
        for smem in (x_smem, y_smem):
            here = smem.at[slot]
            term = plgpu.broadcasted_iota(jnp.int32, here.shape, 0, layout=plgpu.Layout.WGMMA)
            mine = jnp.logical_and(term >= start - first, term < end - first)
            value = plgpu.load(here, layout=plgpu.Layout.WGMMA)
            here[...] = jnp.where(mine, value, jnp.zeros_like(value))
        plgpu.commit_smem()

    def accumulate(acc: Any) -> jax.Array:
        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            slot, first = jax.lax.rem(step, stages), base + step * block_k
            plgpu.barrier_wait(arrived.at[slot])
            shared = jnp.logical_or(first < start, first + block_k > end)
            pl.when(shared)(lambda: clear_others(slot, first))
            plgpu.wgmma(acc, x_smem.at[slot].T, y_smem.at[slot])
            plgpu.wgmma_wait(1)  # the product of the step before is done: its slot is free
            ahead = step + stages - 1
            pl.when(jnp.logical_and(step > 0, ahead < steps))(lambda: fetch(ahead))

        return acc[...]

    pl.loop(0, jnp.minimum(stages, steps))(fetch)
    total = pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef((block_m, block_n), jnp.float32))
    _tiles.store(total, o_smem, o_gmem.at[group], row, column)
    plgpu.wait_smem_to_gmem(0)


def products_of_groups(
    x: jax.Array,
    y: jax.Array,
    group_sizes: jax.Array,
    *,
    block_m: int,
    block_n: int,
    block_k: int,
    stages: int,
) -> jax.Array:
    """``x_g^T @ y_g`` for each group ``g`` of rows.

    Args:
      x: ``(m, k)``, bfloat16 or float16, rows sorted by group.
      y: ``(m, n)``, of the dtype of ``x``.
      group_sizes: ``(groups,)``, int32, not negative.
      block_m: rows of a tile of the output, which are columns of ``x``.
      block_n: columns of it.
      block_k: rows of ``x`` and ``y`` in one step.
      stages: steps whose operands fit in shared memory.

    Returns:
      ``(groups, k, n)``, of the dtype of ``x``; zero for a group without rows.
    """
    m, k, n, groups = x.shape[0], x.shape[1], y.shape[1], group_sizes.size
    ends = jnp.minimum(jnp.cumsum(group_sizes, dtype=jnp.int32), m)
    starts = jnp.concatenate([jnp.zeros(1, jnp.int32), ends[:-1]])
    x, y = _tiles.aligned(x), _tiles.aligned(y)
    return plgpu.kernel(
        _kernel,
        out_type=jax.ShapeDtypeStruct((groups, *_tiles.whole((k, n), x.dtype)), x.dtype),
        scratch_types=[
            _tiles.smem((stages, block_k, block_m), x.dtype),
            _tiles.smem((stages, block_k, block_n), x.dtype),
            _tiles.staging(x.dtype),
            plgpu.Barrier(num_arrivals=2, num_barriers=stages),
        ],
        grid=(groups, pl.cdiv(k, block_m), pl.cdiv(n, block_n)),
        grid_names=("group", "row", "column"),
    )(starts, ends, x, y)[:, :k, :n]
