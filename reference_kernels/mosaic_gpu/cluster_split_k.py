"""Matrix product ``o = x @ y`` whose sums are split among the blocks of a cluster.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtypes: bfloat16 or float16; sums are float32 and
rounded once.

``split_k`` lets blocks add their parts of a sum in global memory, by atomic operations: float32,
and different in its last bits from run to run. The blocks of a Hopper cluster run at the same time
and reach each other's shared memory (distributed shared memory; PTX ISA, "st.async" and "mapa"). So
here the blocks of a cluster share a tile of the output, each multiplies its range of ``k``, and
each finishes the columns of the tile that are its own, ``block_n / cluster`` of them:

- ``by="push"``: a block stores what it has of the columns of others into their shared memory.
  The stores are asynchronous: they count their bytes at a barrier of the receiver, which waits for
  nothing else.
- ``by="pull"``: a block leaves its part in its own shared memory. When all have, which a barrier
  of the cluster says, each loads its columns from the others. Nobody may leave before all have
  loaded, so the blocks meet a second time.

Parts are added in the order of ``k``, whoever comes first: the answer is the same in every run.
They lie where the operands were, which nobody needs when all blocks have multiplied.

The pipeline of a block is that of ``hopper_matmul``; read it first.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _gpu, _require
from reference_kernels.mosaic_gpu import _tiles

Transport = Literal["push", "pull"]

_NEW = "barrier_arrive_and_wait"  # in JAX 0.12


def _kernel(
    x_gmem: Any,
    y_gmem: Any,
    o_gmem: Any,
    buffers: Any,
    o_smem: Any,
    arrived: Any,
    received: Any,
    met: Any,
    *,
    steps: int,
    by: Transport,
) -> None:
    (x_smem, y_smem), parts_smem = buffers
    block_m, block_n = x_smem.shape[1], y_smem.shape[2]
    row, column = jax.lax.axis_index("row") * block_m, jax.lax.axis_index("column") * block_n
    mine, members = jax.lax.axis_index("part"), jax.lax.axis_size("part")
    width = block_n // members
    each = pl.cdiv(steps, members)
    first = mine * each

    total = _tiles.sum_over(
        *(x_gmem, y_gmem, _tiles.Operands(x_smem, y_smem, arrived)),
        row=row,
        column=column,
        first=first,
        # The last blocks have fewer steps, or none.
        steps=jnp.clip(steps - first, 0, each) if steps % members else each,
    )

    def columns_of(member: int) -> jax.Array:
        return total[:, member * width : (member + 1) * width]

    if by == "push":
        plgpu.barrier_arrive_and_wait(met)  # all have multiplied: their operands may go
        for member in range(members):

            @pl.when(mine != member)
            def _push(member: int = member) -> None:
                plgpu.async_store_smem(
                    columns_of(member),
                    parts_smem.at[mine],
                    received,
                    cluster_idx=jnp.int32(member),
                    cluster_dim="part",
                )

        pl.when(members > 1)(lambda: plgpu.barrier_wait(received))
    else:
        for member in range(members):
            parts_smem[member] = columns_of(member)
        plgpu.barrier_arrive_and_wait(met)

    def part(source: int, own: int) -> jax.Array:
        """What ``source`` has of the columns that are this block's ``own``."""
        if source == own:
            return columns_of(own)
        ref = parts_smem.at[source]
        if by == "pull":
            ref = plgpu.cluster_ref(parts_smem.at[own], {"part": jnp.int32(source)})
        return plgpu.load(ref, layout=plgpu.Layout.WGMMA, optimized=False)

    for own in range(members):

        @pl.when(mine == own)
        def _finish(own: int = own) -> None:
            value = functools.reduce(jnp.add, [part(source, own) for source in range(members)])
            o_smem[...] = value.astype(o_gmem.dtype)

    if by == "pull":
        plgpu.barrier_arrive_and_wait(met)  # the others have loaded what is here
    plgpu.commit_smem()
    start = column + mine * width

    @pl.when(start < o_gmem.shape[1])  # or it would overwrite an output of one tile of columns
    def _store() -> None:
        here = (pl.ds(row, block_m), pl.ds(start, width))
        plgpu.copy_smem_to_gmem(o_smem, o_gmem.at[here])
        plgpu.wait_smem_to_gmem(0)


def cluster_split_k(
    x: jax.Array,
    y: jax.Array,
    *,
    cluster: int = 2,
    by: Transport = "push",
    block_m: int = 64,
    block_n: int = 128,
    block_k: int = 64,
    stages: int = 3,
) -> jax.Array:
    """``x @ y`` for few rows and columns, and long sums. It can be vmapped.

    Args:
      x: ``(m, k)``, bfloat16 or float16. It and ``y`` are copied first unless sizes are whole tiles
        (see ``hopper_matmul``).
      y: ``(k, n)``, of the dtype of ``x``.
      cluster: blocks that share the sums of a tile: 1, 2, 4 or 8.
      by: how parts of sums go from block to block.
      block_m: rows of a tile of the output, a multiple of 64.
      block_n: columns of it, a multiple of 64 and of ``32 * cluster``, at most 256.
      block_k: terms of the sums in one step, a multiple of 64.
      stages: how many steps fit in shared memory, at least 2.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, a block size is not allowed, or
        ``cluster`` or ``by`` is not as above.
      NotImplementedError: before JAX 0.12.
    """
    _gpu.check_names("cluster_split_k", _NEW)
    m, k, n = _require.product(x, y)
    _tiles.check_dtype("x", x)
    _tiles.check_blocks(x.dtype, block_m=block_m, block_n=block_n, block_k=block_k, stages=stages)
    if cluster not in (1, 2, 4, 8):
        raise ValueError(f"cluster must be 1, 2, 4 or 8, but it is {cluster}")
    if by not in get_args(Transport):
        raise ValueError(f"by must be one of {get_args(Transport)}, but it is {by!r}")
    if block_n % (32 * cluster):
        raise ValueError(
            f"block_n must be a multiple of {32 * cluster}, 32 columns for each block of the "
            f"cluster, but it is {block_n}"
        )
    x, y = _tiles.aligned(x), _tiles.aligned(y)
    width = block_n // cluster
    return plgpu.kernel(
        functools.partial(_kernel, steps=pl.cdiv(k, block_k), by=by),
        out_type=jax.ShapeDtypeStruct(_tiles.whole((m, n), x.dtype), x.dtype),
        scratch_types=[
            plgpu.RefUnion(
                [
                    _tiles.smem((stages, block_m, block_k), x.dtype),
                    _tiles.smem((stages, block_k, block_n), x.dtype),
                ],
                _tiles.smem((cluster, block_m, width), jnp.float32),
            ),
            # As wide a swizzle as the columns of a block allow.
            _tiles.smem((block_m, width), x.dtype, plgpu.find_swizzle(width * 16)),
            plgpu.Barrier(num_arrivals=2, num_barriers=stages),
            plgpu.Barrier(num_arrivals=max(cluster - 1, 1)),
            plgpu.ClusterBarrier(collective_axes=("part",)),
        ],
        grid=(pl.cdiv(m, block_m), pl.cdiv(n, block_n)),
        grid_names=("row", "column"),
        cluster=(cluster,),
        cluster_names=("part",),
    )(x, y)[:m, :n]
