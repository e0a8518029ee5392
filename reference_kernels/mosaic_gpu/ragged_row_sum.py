"""Sums over the beginnings of rows on a Blackwell GPU: ``o[i] = sum_{j < lengths[i]} x[i, j]``.

Shapes: ``x (m, n)``, ``lengths (m,)``, ``o (m,)``. Dtypes: float32 or bfloat16, int32 for
``lengths``; sums are float32 and rounded once.

The rows need different times, and nobody knows before which. With a share of the rows for each
block, fixed in advance, the block with the longest rows ends last. So there is a block for each
row, and one that is done takes over another that has not been launched yet (cluster launch
control):

1. ``try_cluster_cancel`` asks the hardware to cancel a launch. That takes a while, so the block
   sums its own row meanwhile. The answer arrives at a barrier like a copy.
2. ``query_cluster_cancel`` reads it: the row of the block that will not be launched, if there was
one.

Blocks that take over rows save what a launch costs, and go on where they are.
``dynamic_scheduling_loop``, which ``blackwell_matmul`` uses, is this loop for several warpgroups.

NVIDIA, "PTX ISA" 8.7, section "clusterlaunchcontrol".
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require

_CHUNK = 512  # elements at a time, four for each thread


def _kernel(x_gmem: Any, lengths_gmem: Any, o_gmem: Any, answer: Any, answered: Any) -> None:
    layout = plgpu.Layout.WG_STRIDED((_CHUNK,), vec_size=4)
    place = plgpu.broadcasted_iota(jnp.int32, (_CHUNK,), 0, layout=layout)

    def sum_up(row: Any) -> None:
        length = lengths_gmem[row]

        def add(chunk: Any, total: jax.Array) -> jax.Array:
            start = chunk * _CHUNK
            x = plgpu.load(x_gmem.at[row, pl.ds(start, _CHUNK)], layout=layout)
            return total + jnp.where(place < length - start, x.astype(jnp.float32), 0.0)

        zeros = plgpu.layout_cast(jnp.zeros((_CHUNK,), jnp.float32), layout)
        chunks = jax.lax.div(length + (_CHUNK - 1), jnp.int32(_CHUNK))
        total = jax.lax.fori_loop(0, chunks, add, zeros)
        o_gmem[row] = jnp.sum(total).astype(o_gmem.dtype)

    def one_row(state: Any) -> Any:
        row, _ = state
        plgpu.try_cluster_cancel(answer, answered)
        sum_up(row)
        plgpu.barrier_wait(answered)
        (row,), another = plgpu.query_cluster_cancel(answer, grid_names=("row",))
        plgpu.commit_smem()  # all threads have read the answer: the next may be written
        return row, another

    jax.lax.while_loop(lambda state: state[1], one_row, (jax.lax.axis_index("row"), jnp.bool_(1)))


def ragged_row_sum(x: jax.Array, lengths: jax.Array) -> jax.Array:
    """The sum of the first ``lengths[i]`` elements of each row ``i``.

    Args:
      x: ``(m, n)``, float32 or bfloat16. Columns that are not a multiple of 512 are padded, in a
        copy.
      lengths: ``(m,)``, int32, from 0 to ``n``; others are as the nearest of these.

    Returns:
      ``(m,)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype.
    """
    m, n = _require.axes("x", x, "m n")
    (rows,) = _require.axes("lengths", lengths, "m")
    _require.same_size("m", ("x", m), ("lengths", rows))
    if x.dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"x must be float32 or bfloat16, but its dtype is {x.dtype}")
    if lengths.dtype != jnp.int32:
        raise ValueError(f"lengths must be int32, but its dtype is {lengths.dtype}")
    return plgpu.kernel(
        _kernel,
        out_type=jax.ShapeDtypeStruct((m,), x.dtype),
        scratch_types={"answer": plgpu.TryClusterCancelResult(), "answered": plgpu.Barrier()},
        grid=(m,),
        grid_names=("row",),
    )(jnp.pad(x, ((0, 0), (0, -n % _CHUNK))), jnp.clip(lengths, 0, n))


def reference(x: jax.Array, lengths: jax.Array) -> jax.Array:
    """The sums in float32 at least, rounded once."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    inside = jnp.arange(x.shape[1]) < lengths[:, None]
    return jnp.sum(jnp.where(inside, wide, 0.0), axis=1).astype(x.dtype)
