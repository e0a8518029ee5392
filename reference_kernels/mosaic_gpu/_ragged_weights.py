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

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels._refs import Ref
from reference_kernels.mosaic_gpu import _tiles


class _Buffers(NamedTuple):
    """Shared memory of a block of the grid.

    Attributes:
      x: blocks of ``x`` for ``stages`` steps, ``(stages, block_k, block_m)``.
      y: blocks of ``y``, ``(stages, block_k, block_n)``.
      o: parts of the output on their way out; see ``_tiles.staging``.
    """

    x: Ref
    y: Ref
    o: Ref


def _kernel(
    starts: Ref, ends: Ref, x: Ref, y: Ref, o: Ref, buffers: _Buffers, arrived: Ref
) -> None:
    """A block of the product of a group: the rows are the terms of its sums.

    Args:
      starts: ``(groups,)``, the first row of each group, in global memory like ``x``.
      ends: ``(groups,)``, the end of its rows.
      x: ``(m, k)``.
      y: ``(m, n)``.
      o: ``(groups, k, n)``.
      buffers: in shared memory.
      arrived: barriers, ``(stages,)``: both blocks of a step have arrived in a slot.
    """
    _, block_k, block_m = buffers.x.shape
    block_n = buffers.y.shape[2]
    group = jax.lax.axis_index("group")
    row, column = jax.lax.axis_index("row") * block_m, jax.lax.axis_index("column") * block_n
    start, end = starts[group], ends[group]
    base = start - jax.lax.rem(start, jnp.int32(_tiles.ROWS))
    steps = jax.lax.div(end - base + (block_k - 1), jnp.int32(block_k))
    steps = jnp.where(start < end, steps, 0)

    def fetch(step: jax.Array, slot: jax.Array) -> None:
        terms = pl.ds(pl.multiple_of(base + step * block_k, _tiles.ROWS), block_k)
        for gmem, smem, columns in (
            (x, buffers.x, pl.ds(row, block_m)),
            (y, buffers.y, pl.ds(column, block_n)),
        ):
            plgpu.copy_gmem_to_smem(gmem.at[terms, columns], smem.at[slot], arrived.at[slot])

    def multiply(acc: Ref, step: jax.Array, slot: jax.Array) -> None:
        first = base + step * block_k
        left, right = buffers.x.at[slot], buffers.y.at[slot]
        shared = jnp.logical_or(first < start, first + block_k > end)
        pl.when(shared)(lambda: _clear_others(left, right, start - first, end - first))
        plgpu.wgmma(acc, left.T, right)

    total = _tiles.sum_steps((block_m, block_n), arrived, steps, fetch=fetch, multiply=multiply)
    _tiles.store(total, buffers.o, o.at[group], row, column)
    plgpu.wait_smem_to_gmem(0)


def _clear_others(left: Ref, right: Ref, start: jax.Array, end: jax.Array) -> None:
    """Zeros instead of the rows that other groups have in both operands of a step."""
    for here in (left, right):
        term = plgpu.broadcasted_iota(jnp.int32, here.shape, 0, layout=plgpu.Layout.WGMMA)
        mine = jnp.logical_and(term >= start, term < end)
        value = plgpu.load(here, layout=plgpu.Layout.WGMMA)
        here[...] = jnp.where(mine, value, jnp.zeros_like(value))
    plgpu.commit_smem()


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
        scratch_types=(
            _Buffers(
                x=_tiles.smem((stages, block_k, block_m), x.dtype),
                y=_tiles.smem((stages, block_k, block_n), x.dtype),
                o=_tiles.staging(x.dtype),
            ),
            plgpu.Barrier(num_arrivals=2, num_barriers=stages),
        ),
        grid=(groups, pl.cdiv(k, block_m), pl.cdiv(n, block_n)),
        grid_names=("group", "row", "column"),
    )(starts, ends, x, y)[:, :k, :n]
