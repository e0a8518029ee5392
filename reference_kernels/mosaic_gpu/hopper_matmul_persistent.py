"""Matrix product ``o = x @ y`` on a Hopper GPU by persistent, warp-specialized blocks in clusters.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtypes: bfloat16 or float16; sums are float32.

Source: the design is that of CUTLASS 3's "cooperative" kernels (Thakkar et al., 2023); the
instructions are those of ``hopper_matmul``, which is simpler: read it first. What is added here:

- Three warpgroups with a job each (``_warpgroups``). One fetches: it waits for free slots and
  starts TMA copies. Two multiply, each half of the rows of a tile. None of them stops for another:
  ``arrived`` counts the bytes that have come, ``free`` the warpgroups that have read them.
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

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _gpu, _require
from reference_kernels._refs import Ref
from reference_kernels.mosaic_gpu import _tiles, _warpgroups
from reference_kernels.mosaic_gpu._warpgroups import MULTIPLYING, Barriers, Buffers, placed


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
        return jax.lax.div(self.tiles[0] * self.tiles[1] - cluster + clusters - 1, clusters)

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
    buffers: Buffers,
    barriers: Barriers,
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
    mine = schedule.mine()

    def multiply(warpgroup: jax.Array) -> None:
        rows = schedule.shape[0] // MULTIPLYING

        @pl.loop(0, mine)
        def _tile(turn: jax.Array) -> None:
            row, column, _ = schedule.corner(turn)
            total = _warpgroups.sum_half(buffers, barriers, axes, schedule, turn, warpgroup)
            _tiles.store(total, buffers.o.at[warpgroup], o, row + warpgroup * rows, column)

        plgpu.wait_smem_to_gmem(0)

    _warpgroups.roles(
        fetch=lambda: _warpgroups.fetch(x, y, buffers, barriers, axes, schedule, mine),
        multiply=multiply,
    )


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
    return plgpu.kernel(
        functools.partial(_matmul_kernel, axes=axes, schedule=schedule),
        out_type=jax.ShapeDtypeStruct(_tiles.whole((m, n), x.dtype), x.dtype),
        scratch_types=(
            Buffers(
                x=_tiles.smem((stages, *placed(block_k, block_m, axes[0])), x.dtype),
                y=_tiles.smem((stages, *placed(block_k, block_n, axes[1])), x.dtype),
                o=_tiles.staging(x.dtype, MULTIPLYING),
            ),
            _warpgroups.barriers(stages, cluster),
        ),
        grid=(min(settings.clusters, math.prod(schedule.tiles)),),
        grid_names=("cluster",),
        cluster=(cluster,),
        cluster_names=("block",),
        num_threads=MULTIPLYING + 1,
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
    _warpgroups.check(block_m, cluster)
    _require.positive(width=width)
    if clusters is None:
        clusters = max(_gpu.multiprocessors() // cluster, 1)
    _require.positive(clusters=clusters)
    settings = _Settings(block_m, block_n, block_k, stages, cluster, width, clusters)
    return _matmul(x, y, settings)
