"""Matrix product ``o = x @ y`` on a Hopper GPU by persistent, warp-specialized blocks in clusters.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtypes: bfloat16 or float16; sums are float32.

Source: the design is that of CUTLASS 3's "cooperative" kernels (Thakkar et al., 2023); the
instructions are those of ``hopper_matmul``, which is simpler: read it first. What is added here:

- Three warpgroups with a job each. One fetches: it waits for free slots and starts TMA copies. Two
  multiply, each half of the rows of a tile. None of them stops for another: ``arrived`` counts the
  bytes that have come, ``free`` the warpgroups that have read them.
- Registers follow the jobs. The fetching warpgroup gives back most of its own, so that a tile of
  ``128 x 256`` fits, 128 sums for each thread that multiplies. A tile that large asks for half the
  bytes of shared memory per operation that four of ``64 x 128`` would.
- Blocks are persistent: as many as there are multiprocessors, each takes one tile after the other.
  The next tile is fetched while the last one is rounded and written, which costs a tenth of the
  time if nothing hides it.
- Two blocks of a cluster work on tiles below each other, which need the same columns of ``y``. Each
  fetches half of them, and TMA writes that half into the shared memory of both (multicast): the
  traffic to the L2 cache is two thirds of what it was. A slot is free when both blocks say so.
- Tiles are taken along a snake, ``width`` tiles of clusters wide, instead of row by row: those that
  are in work at the same time share rows of ``x`` and columns of ``y``, which stay in L2.

At its end a block waits until all its slots are free. Without that it might be gone when the other
one's last words on ``free`` reach its shared memory.

Backward: ``dx = do @ y^T`` and ``dy = x^T @ do``, by the same kernel, which contracts whichever
axes it is told to. ``wgmma`` takes 16-bit operands either way, so nothing is transposed in memory.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _gpu, _require
from reference_kernels._refs import Ref
from reference_kernels.mosaic_gpu import _tiles

_MULTIPLYING = 2  # warpgroups, besides the one that fetches
_FEW_REGISTERS, _MANY_REGISTERS = 40, 232  # of a thread; 128 * (40 + 2 * 232) <= 65536


class _Buffers(NamedTuple):
    """Shared memory of a block of the grid.

    Attributes:
      x: blocks of ``x`` for ``stages`` steps, ``(stages, block_m, block_k)``, or the last two
        sizes the other way round, as the axes of ``x`` are.
      y: blocks of ``y``, ``(stages, block_k, block_n)``, or likewise.
      o: parts of the output on their way out, for each warpgroup; see ``_tiles.staging``.
    """

    x: Ref
    y: Ref
    o: Ref


class _Barriers(NamedTuple):
    """What the warpgroups owe each other.

    Attributes:
      arrived: ``(stages,)``: both blocks of a step have arrived in a slot.
      free: ``(stages,)``: all warpgroups that multiply have read a slot, in all blocks of the
        cluster.
    """

    arrived: Ref
    free: Ref


@dataclasses.dataclass(frozen=True)
class _Schedule:
    """The tiles of the output, and who works on which.

    Attributes:
      tiles: how many of clusters there are below each other, and beside each other.
      shape: rows and columns of the tile of a block.
      steps: of the sums.
      width: tiles of clusters below each other that are taken before the next column.
    """

    tiles: tuple[int, int]
    shape: tuple[int, int]
    steps: int
    width: int

    def mine(self) -> jax.Array:
        """How many of them this block works on."""
        cluster, clusters = jax.lax.axis_index("cluster"), jax.lax.axis_size("cluster")
        return (self.tiles[0] * self.tiles[1] - cluster + clusters - 1) // clusters

    def corner(self, turn: jax.Array) -> tuple[jax.Array, jax.Array, int]:
        """The first row, column and step of the tile that this block works on in its ``turn``."""
        index = jax.lax.axis_index("cluster") + turn * jax.lax.axis_size("cluster")
        i, j = plgpu.planar_snake(index, self.tiles, 0, self.width)
        block, blocks = jax.lax.axis_index("block"), jax.lax.axis_size("block")
        return (i * blocks + block) * self.shape[0], j * self.shape[1], 0


def _matmul_kernel(
    x: Ref,
    y: Ref,
    o: Ref,
    buffers: _Buffers,
    barriers: _Barriers,
    *,
    axes: tuple[int, int],
    schedule: _Schedule,
) -> None:
    """Tiles of this block: contract axis ``axes[0]`` of ``x`` with ``axes[1]`` of ``y``.

    Args:
      x: ``(m, k)``, or ``(k, m)``, in global memory.
      y: ``(k, n)``, or ``(n, k)``.
      o: ``(m, n)``.
      buffers: in shared memory.
      barriers: between the warpgroups.
      axes: which axis of each operand is contracted.
      schedule: of the tiles.
    """
    warpgroup, mine = jax.lax.axis_index("warpgroup"), schedule.mine()

    @pl.when(warpgroup == _MULTIPLYING)
    def _fetching() -> None:
        plgpu.set_max_registers(_FEW_REGISTERS, action="decrease")
        _fetch(x, y, buffers, barriers, axes, schedule, mine)

    @pl.when(warpgroup < _MULTIPLYING)
    def _multiplying() -> None:
        plgpu.set_max_registers(_MANY_REGISTERS, action="increase")
        rows = schedule.shape[0] // _MULTIPLYING

        @pl.loop(0, mine)
        def _tile(turn: jax.Array) -> None:
            row, column, _ = schedule.corner(turn)
            total = _sum_half(buffers, barriers, axes, schedule, turn, warpgroup)
            _tiles.store(total, buffers.o.at[warpgroup], o, row + warpgroup * rows, column)

        plgpu.wait_smem_to_gmem(0)


def _fetch(
    x: Ref,
    y: Ref,
    buffers: _Buffers,
    barriers: _Barriers,
    axes: tuple[int, int],
    schedule: _Schedule,
    mine: jax.Array,
) -> None:
    """Copy what the steps of ``mine`` tiles need, each step as soon as its slot is free."""
    stages, block_k = buffers.x.shape[0], buffers.x.shape[1 + axes[0]]
    block_m, block_n = schedule.shape

    @pl.loop(0, mine)
    def _tile(turn: jax.Array) -> None:
        row, column, first = schedule.corner(turn)

        @pl.loop(0, schedule.steps)
        def _step(step: jax.Array) -> None:
            fetched = turn * schedule.steps + step
            slot = jax.lax.rem(fetched, stages)
            pl.when(fetched >= stages)(lambda: plgpu.barrier_wait(barriers.free.at[slot]))
            terms = pl.ds((first + step) * block_k, block_k)
            plgpu.copy_gmem_to_smem(
                x.at[_placed(terms, pl.ds(row, block_m), axes[0])],
                buffers.x.at[slot],
                barriers.arrived.at[slot],
            )
            plgpu.copy_gmem_to_smem(
                y.at[_placed(terms, pl.ds(column, block_n), axes[1])],
                buffers.y.at[slot],
                barriers.arrived.at[slot],
                collective_axes="block" if jax.lax.axis_size("block") > 1 else None,
            )

    total = mine * schedule.steps

    @pl.loop(jnp.maximum(total - stages, 0), total)
    def _drain(step: jax.Array) -> None:
        plgpu.barrier_wait(barriers.free.at[jax.lax.rem(step, stages)])


def _sum_half(
    buffers: _Buffers,
    barriers: _Barriers,
    axes: tuple[int, int],
    schedule: _Schedule,
    turn: jax.Array,
    warpgroup: jax.Array,
) -> jax.Array:
    """The sums of a warpgroup's half of the rows of a tile, whose operands are being fetched."""
    stages, rows, begin = (
        buffers.x.shape[0],
        schedule.shape[0] // _MULTIPLYING,
        turn * schedule.steps,
    )
    half = _placed(slice(None), pl.ds(warpgroup * rows, rows), axes[0])

    def accumulate(acc: Ref) -> jax.Array:
        @pl.loop(0, schedule.steps)
        def _step(step: jax.Array) -> None:
            slot = jax.lax.rem(begin + step, stages)
            plgpu.barrier_wait(barriers.arrived.at[slot])
            x, y = buffers.x.at[slot, *half], buffers.y.at[slot]
            plgpu.wgmma(acc, x if axes[0] == 1 else x.T, y if axes[1] == 0 else y.T)
            plgpu.wgmma_wait(1)  # the product of the step before has read its slot
            before = jax.lax.rem(begin + step + (stages - 1), stages)
            pl.when(step > 0)(lambda: plgpu.barrier_arrive(barriers.free.at[before]))

        total = acc[...]
        plgpu.barrier_arrive(barriers.free.at[jax.lax.rem(begin + schedule.steps - 1, stages)])
        return total

    return pl.run_scoped(
        accumulate, plgpu.WGMMAAccumulatorRef((rows, schedule.shape[1]), jnp.float32)
    )


def _placed(terms: Any, others: Any, axis: int) -> tuple[Any, Any]:
    """Both in the order of an operand's axes, of which ``axis`` has the terms of the sums."""
    return (terms, others) if axis == 0 else (others, terms)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a product is computed with, besides its operands.

    Attributes:
      block_m: rows of a tile.
      block_n: columns of it.
      block_k: terms of the sums in one step.
      stages: steps whose operands fit in shared memory.
      cluster: blocks that share what they fetch of ``y``.
      width: see ``_Schedule``.
      clusters: how many run.
    """

    block_m: int
    block_n: int
    block_k: int
    stages: int
    cluster: int
    width: int
    clusters: int


def _contract(x: jax.Array, y: jax.Array, axes: tuple[int, int], settings: _Settings) -> jax.Array:
    """``x`` and ``y`` contracted over ``axes``."""
    m, n, k = x.shape[1 - axes[0]], y.shape[1 - axes[1]], x.shape[axes[0]]
    block_m, block_n, block_k = settings.block_m, settings.block_n, settings.block_k
    stages, cluster = settings.stages, settings.cluster
    schedule = _Schedule(
        tiles=(pl.cdiv(m, block_m * cluster), pl.cdiv(n, block_n)),
        shape=(block_m, block_n),
        steps=pl.cdiv(k, block_k),
        width=settings.width,
    )
    x, y = _tiles.aligned(x), _tiles.aligned(y)
    free: Any = plgpu.Barrier(num_arrivals=_MULTIPLYING, num_barriers=stages)
    if cluster > 1:
        free = plgpu.ClusterBarrier(
            collective_axes=("block",), num_arrivals=_MULTIPLYING, num_barriers=stages
        )
    return plgpu.kernel(
        functools.partial(_matmul_kernel, axes=axes, schedule=schedule),
        out_type=jax.ShapeDtypeStruct(_tiles.whole((m, n), x.dtype), x.dtype),
        scratch_types=(
            _Buffers(
                x=_tiles.smem((stages, *_placed(block_k, block_m, axes[0])), x.dtype),
                y=_tiles.smem((stages, *_placed(block_k, block_n, axes[1])), x.dtype),
                o=_tiles.staging(x.dtype, _MULTIPLYING),
            ),
            _Barriers(arrived=plgpu.Barrier(num_arrivals=2, num_barriers=stages), free=free),
        ),
        grid=(min(settings.clusters, math.prod(schedule.tiles)),),
        grid_names=("cluster",),
        cluster=(cluster,),
        cluster_names=("block",),
        num_threads=_MULTIPLYING + 1,
        thread_name="warpgroup",
    )(x, y)[:m, :n]


@functools.partial(jax.custom_vjp, nondiff_argnums=(2,))
def _matmul(x: jax.Array, y: jax.Array, settings: _Settings) -> jax.Array:
    return _contract(x, y, (1, 0), settings)


def _forward(
    x: jax.Array, y: jax.Array, settings: _Settings
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _matmul(x, y, settings), (x, y)


def _backward(
    settings: _Settings, operands: tuple[jax.Array, jax.Array], do: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, y = operands
    return _contract(do, y, (1, 1), settings), _contract(x, do, (0, 0), settings)


_matmul.defvjp(_forward, _backward)


def hopper_matmul_persistent(
    x: jax.Array,
    y: jax.Array,
    *,
    block_m: int = 128,
    block_n: int = 256,
    block_k: int = 64,
    stages: int = 4,
    cluster: int = 2,
    width: int = 8,
    clusters: int | None = None,
) -> jax.Array:
    """``x @ y``. It can be differentiated by both operands, and vmapped.

    The defaults are for products of thousands of rows and columns on an H100 or H200: they take
    224 of the 227 kB of shared memory.

    Args:
      x: ``(m, k)``, bfloat16 or float16. Operands whose last size is not a multiple of 64, or whose
        other one is not a multiple of 8, are copied first.
      y: ``(k, n)``, of the dtype of ``x``.
      block_m: rows of a tile, a multiple of 128: two warpgroups have half of them each.
      block_n: columns of a tile, a multiple of 64, at most 256.
      block_k: terms of the sums in one step, a multiple of 64.
      stages: how many steps fit in shared memory, at least 2.
      cluster: blocks that share what they fetch of ``y``, 1, 2 or 4.
      width: how many clusters' tiles below each other are taken before the next column.
      clusters: how many clusters run. By default as many as the GPU has room for.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not allowed.
    """
    _require.product(x, y)
    _tiles.check_dtype("x", x)
    _tiles.check_blocks(x.dtype, block_m=block_m, block_n=block_n, block_k=block_k, stages=stages)
    if block_m % (64 * _MULTIPLYING):
        raise ValueError(
            f"block_m must be a multiple of {64 * _MULTIPLYING}, 64 rows for each warpgroup, "
            f"but it is {block_m}"
        )
    _require.positive(cluster=cluster, width=width)
    if cluster not in (1, 2, 4):
        raise ValueError(f"cluster must be 1, 2 or 4, but it is {cluster}")
    if clusters is None:
        clusters = max(_gpu.multiprocessors() // cluster, 1)
    _require.positive(clusters=clusters)
    settings = _Settings(block_m, block_n, block_k, stages, cluster, width, clusters)
    return _matmul(x, y, settings)
