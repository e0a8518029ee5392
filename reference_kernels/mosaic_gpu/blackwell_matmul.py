"""Matrix product ``o = x @ y`` on a Blackwell GPU, by ``tcgen05.mma`` with sums in tensor memory.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``, of any size. Dtypes: bfloat16 or float16, the same
for all three; or float8_e4m3fn, with ``o`` in bfloat16. Sums are float32. Float32 operands are
refused: the tensor cores would round them to tf32.

A warpgroup of Hopper holds its sums in registers and must wait for its products. On Blackwell the
sums are in tensor memory (TMEM): 512 columns of 128 rows of 32 bits for each SM. One thread starts
a product, and no registers take part. So three warpgroups of a block work side by side, and only
barriers connect them:

- ``_LOADS`` copies blocks of ``x`` and ``y`` by TMA to a ring of ``stages`` buffers.
- ``_PRODUCTS`` multiplies what has arrived, and adds it to a tile of sums in TMEM. The hardware
  arrives at ``consumed`` when a product no longer needs its buffers.
- ``_OUTPUT`` moves a finished tile to registers, to shared memory and, by TMA, to ``o``.

TMEM holds two tiles of 256 columns. While one is written out, the next one is summed, so the tensor
cores do not wait for the epilogue. The ring goes on from one tile to the next for the same reason:
the first blocks of a tile are loaded while the last ones of the tile before are multiplied. Roles
are whole warpgroups and not warps of one, as warps would have to meet at the end of every tile.

``pair``: two SMs of a cluster compute 256 rows together. Each loads half of ``x`` and half of
``y``, and the tensor cores of both read both halves of ``y``. That halves what is loaded of ``y``,
and leaves memory for more stages. The first SM starts the products of both, and the hardware
arrives at the barriers of both.

Blocks are persistent, and the ``schedule`` says who computes which tile. With ``"static"``, program
``i`` of ``p`` computes the tiles ``i, i + p, ...``. With ``"dynamic"`` there is a program for each
tile, and one that is done takes over another that has not been launched yet (cluster launch
control): an SM that starts late, or is slow, gets fewer tiles. Tiles follow each other in bands of
``band`` rows of tiles, so that those at work at a time share blocks of ``x`` and ``y`` in the L2
cache.

What a block has beyond the end of ``x`` and ``y`` TMA fills with zeros, and what a tile has beyond
the end of ``o`` it leaves out. It does so in whole tiles of 8 rows of 128 bytes only, so sizes that
are not multiples of them are padded before and cut off after. Along an axis of one tile JAX drops
the index of a copy: a block of ``y`` behind one is that tile again, and its sums are not stored.

NVIDIA, "PTX ISA" 8.7, sections "TensorCore 5th Generation Family Instructions" and
"clusterlaunchcontrol".
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _gpu, _require
from reference_kernels._refs import Ref
from reference_kernels.mosaic_gpu import _tiles

Schedule = Literal["static", "dynamic"]

_ROWS = 128  # of a tile in TMEM, one for each of its lanes
_COLUMNS = 512  # of TMEM
_LOADS, _PRODUCTS, _OUTPUT = range(3)  # what each warpgroup does


class _Buffers(NamedTuple):
    """Memory of a block of the grid.

    Attributes:
      x: blocks of ``x`` in shared memory, ``(stages, 128, block_k)``.
      y: blocks of ``y``, or halves of them, ``(stages, block_k, block_n)`` or
        ``(stages, block_k, block_n / 2)``.
      sums: two tiles in tensor memory, ``(128, 2 * block_n)``, float32.
      o: two parts of a tile on their way out, in shared memory, ``(2, 128, width)``.
    """

    x: Ref
    y: Ref
    sums: Ref
    o: Ref


class _Barriers(NamedTuple):
    """Who waits for what.

    Attributes:
      loaded: ``(stages,)``: both blocks of a step have arrived in a buffer. The products wait.
      consumed: ``(stages,)``: the tensor core has read a buffer. The loads wait.
      summed: ``(2,)``: the tensor core has finished a tile. The output waits.
      emptied: ``(2,)``: a tile has left tensor memory. The products wait.
    """

    loaded: Ref
    consumed: Ref
    summed: Ref
    emptied: Ref


class _Tile(NamedTuple):
    """A tile of the output.

    Attributes:
      turn: how many tiles this block has computed before.
      row: its first row.
      column: its first column.
    """

    turn: jax.Array
    row: jax.Array
    column: jax.Array

    @property
    def slot(self) -> jax.Array:
        """Which half of tensor memory has its sums."""
        return jax.lax.rem(self.turn, 2)


@dataclasses.dataclass(frozen=True)
class _Settings:
    """What a product is computed with, besides its operands.

    Attributes:
      tiles: how many there are below each other, and beside each other.
      steps: of the sums of a tile.
      pair: whether two blocks share a tile.
      schedule: who computes which tile.
      band: rows of tiles in a band.
    """

    tiles: tuple[int, int]
    steps: int
    pair: bool
    schedule: Schedule
    band: int

    @property
    def collective_axis(self) -> str | None:
        """The axis of the blocks that share a tile."""
        return "pair" if self.pair else None


def _matmul_kernel(
    x: Ref, y: Ref, o: Ref, buffers: _Buffers, barriers: _Barriers, *, settings: _Settings
) -> None:
    """The tiles of a block, or of a pair of them: each warpgroup does its part of all.

    Args:
      x: ``(m, k)``, in global memory.
      y: ``(k, n)``.
      o: ``(m, n)``.
      buffers: of this block.
      barriers: between the warpgroups.
      settings: of the product.
    """
    role = jax.lax.axis_index("role")
    rows, columns = _ROWS * (1 + settings.pair), buffers.sums.shape[1] // 2

    def compute_tile(info: plgpu.NDLoopInfo, carry: jax.Array) -> jax.Array:
        i, j = plgpu.planar_snake(info.index[0], settings.tiles, 0, settings.band)
        tile = _Tile(info.local_index, i * rows, j * columns)
        pl.when(role == _LOADS)(lambda: _load(x, y, buffers, barriers, tile, settings))
        pl.when(role == _PRODUCTS)(lambda: _multiply(buffers, barriers, tile, settings))
        pl.when(role == _OUTPUT)(lambda: _store(o, buffers, barriers, tile, settings))
        return carry + 1

    turns = _loop_over_tiles(settings)(compute_tile)
    # Nobody may leave while the tensor cores, or the other block of the pair, still arrive here.
    pl.when(role == _LOADS)(lambda: _see_last(barriers.consumed, turns * settings.steps))
    started = jnp.where(jax.lax.axis_index("pair") == 0, turns, 0) if settings.pair else turns
    pl.when(role == _PRODUCTS)(lambda: _see_last(barriers.emptied, started))
    pl.when(role == _OUTPUT)(lambda: plgpu.wait_smem_to_gmem(0))


def _loop_over_tiles(settings: _Settings) -> Any:
    """A loop over the tiles of a block that counts them: call it with a body."""
    if settings.schedule == "static":
        count = settings.tiles[0] * settings.tiles[1]
        return plgpu.nd_loop((count,), collective_axes="tile", init_carry=jnp.int32(0))
    return plgpu.dynamic_scheduling_loop(
        ("tile",),
        thread_axis="role",
        cluster_axes=("pair",) if settings.pair else (),
        init_carry=jnp.int32(0),
    )


def _load(
    x: Ref, y: Ref, buffers: _Buffers, barriers: _Barriers, tile: _Tile, settings: _Settings
) -> None:
    """Copy the blocks that a tile needs to the ring, each as soon as its buffer is free."""
    stages, _, block_k = buffers.x.shape
    rows, columns = _ROWS * (1 + settings.pair), buffers.sums.shape[1] // 2

    @pl.loop(0, settings.steps)
    def _step(step: jax.Array) -> None:
        count = tile.turn * settings.steps + step
        stage = jax.lax.rem(count, stages)
        pl.when(count >= stages)(lambda: plgpu.barrier_wait(barriers.consumed.at[stage]))
        terms = pl.ds(step * block_k, block_k)
        copies = (
            (x.at[pl.ds(tile.row, rows), terms], buffers.x),
            (y.at[terms, pl.ds(tile.column, columns)], buffers.y),
        )
        for axis, (block, smem) in enumerate(copies):
            plgpu.copy_gmem_to_smem(
                block,
                smem.at[stage],
                barriers.loaded.at[stage],
                collective_axes=settings.collective_axis,
                leader_tracked=plgpu.CopyPartition.PARTITIONED(axis) if settings.pair else None,
            )


def _multiply(buffers: _Buffers, barriers: _Barriers, tile: _Tile, settings: _Settings) -> None:
    """Sum the products of a tile in its half of tensor memory; of a pair, the first does."""
    stages, columns = buffers.x.shape[0], buffers.sums.shape[1] // 2
    slot, collective_axis = tile.slot, settings.collective_axis

    @pl.when(jax.lax.axis_index("pair") == 0)
    def _first_of_pair() -> None:
        pl.when(tile.turn >= 2)(lambda: plgpu.barrier_wait(barriers.emptied.at[slot]))

        @pl.loop(0, settings.steps)
        def _step(step: jax.Array) -> None:
            stage = jax.lax.rem(tile.turn * settings.steps + step, stages)
            plgpu.barrier_wait(barriers.loaded.at[stage])
            plgpu.tcgen05_mma(
                buffers.sums.at[:, pl.ds(slot * columns, columns)],
                buffers.x.at[stage],
                buffers.y.at[stage],
                barriers.consumed.at[stage],
                accumulate=step > 0,
                collective_axis=collective_axis,
            )

        plgpu.tcgen05_commit_arrive(barriers.summed.at[slot], collective_axis=collective_axis)


def _store(
    o: Ref, buffers: _Buffers, barriers: _Barriers, tile: _Tile, settings: _Settings
) -> None:
    """Round a tile, or this block's half of it, and copy it to the output part by part."""
    columns, width = buffers.sums.shape[1] // 2, buffers.o.shape[2]
    # No part begins behind an output of one tile of columns: see ``_tiles.store``.
    slot, parts = tile.slot, min(columns, o.shape[1]) // width
    member = jax.lax.axis_index("pair")
    mine = pl.ds(tile.row + member * _ROWS, _ROWS)
    plgpu.barrier_wait(barriers.summed.at[slot])
    for part in range(parts):
        sums = buffers.sums.at[:, pl.ds(slot * columns + part * width, width)]
        piece = plgpu.async_load_tmem(sums)
        half = jax.lax.rem(tile.turn * parts + part, 2)
        plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # all but the last have left their half
        buffers.o[half] = piece.astype(o.dtype)
        plgpu.commit_smem()
        here = mine, pl.ds(tile.column + part * width, width)
        plgpu.copy_smem_to_gmem(buffers.o.at[half], o.at[here])
    plgpu.wait_load_tmem()
    plgpu.barrier_arrive(barriers.emptied.at[slot])
    if settings.pair:
        # The second one starts no products. Who waits must arrive as well, or the barrier could
        # go on by two phases before it looks.
        pl.when(member == 1)(lambda: plgpu.barrier_wait(barriers.emptied.at[slot]))


def _see_last(barriers: Ref, count: jax.Array) -> None:
    """Wait for the last of ``count`` arrivals, which nobody has waited for.

    Args:
      barriers: which take turns.
      count: of all arrivals.
    """
    slots = barriers.shape[0]

    @pl.loop(jnp.maximum(count - slots, 0), count)
    def _arrival(each: jax.Array) -> None:
        plgpu.barrier_wait(barriers.at[jax.lax.rem(each, slots)])


def blackwell_matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    pair: bool = True,
    schedule: Schedule = "dynamic",
    block_n: int = 256,
    block_k: int | None = None,
    stages: int | None = None,
    band: int = 8,
    programs: int | None = None,
) -> jax.Array:
    """``x @ y``.

    Args:
      x: ``(m, k)``, bfloat16, float16 or float8_e4m3fn.
      y: ``(k, n)``, of the dtype of ``x``.
      pair: two SMs share a tile of 256 rows; else each has its own of 128.
      schedule: ``"static"`` or ``"dynamic"``; see above. ``"dynamic"`` cannot be vmapped.
      block_n: columns of a tile: a multiple of 128 bytes, twice as many with ``pair``; at most 256.
      block_k: how much of ``k`` a step contracts: a multiple of 128 bytes, which is the default.
      stages: buffers in the ring; by default as many as fit: 4, or 6 with ``pair``.
      band: rows of tiles in a band.
      programs: for ``"static"``: how many blocks, or pairs of them, are launched; by default one
        for each SM, or pair of SMs.

    Returns:
      ``(m, n)``, of the dtype of ``x``, or bfloat16 if that is float8.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a setting is not as above.
    """
    m, k = _require.axes("x", x, "m k")
    y_k, n = _require.axes("y", y, "k n")
    _require.same_size("k", ("x", k), ("y", y_k))
    _tiles.check_dtype("x", x, float8=True)
    _require.same_dtype(x=x, y=y)
    width = _tiles.width(x.dtype)
    block_k = width if block_k is None else block_k
    stages = 4 + 2 * pair if stages is None else stages
    _check(width, pair=pair, block_n=block_n, block_k=block_k, stages=stages, band=band)
    if schedule not in get_args(Schedule):
        raise ValueError(f"schedule must be one of {get_args(Schedule)}, but it is {schedule!r}")
    members = 1 + pair
    dtype = _tiles.out_dtype(x.dtype)
    tiles = (pl.cdiv(m, _ROWS * members), pl.cdiv(n, block_n))
    count = tiles[0] * tiles[1]
    if schedule == "static":
        programs = _gpu.multiprocessors() // members if programs is None else programs
        _require.positive(programs=programs)
        count = min(count, programs)
    x, y = _tiles.aligned(x), _tiles.aligned(y)
    settings = _Settings(tiles, pl.cdiv(k, block_k), pair, schedule, band)
    o = plgpu.kernel(
        functools.partial(_matmul_kernel, settings=settings),
        out_type=jax.ShapeDtypeStruct(_tiles.whole((m, n), dtype), dtype),
        scratch_types=(
            _Buffers(
                x=_tiles.smem((stages, _ROWS, block_k), x.dtype),
                y=_tiles.smem((stages, block_k, block_n // members), x.dtype),
                sums=plgpu.TMEM((_ROWS, 2 * block_n), jnp.float32, collective=pair),
                o=_tiles.smem((2, _ROWS, _tiles.width(dtype)), dtype),
            ),
            _Barriers(
                loaded=plgpu.Barrier(num_arrivals=2, num_barriers=stages),
                consumed=plgpu.Barrier(num_barriers=stages, orders_tensor_core=True),
                summed=plgpu.Barrier(num_barriers=2, orders_tensor_core=True),
                emptied=_emptied(pair),
            ),
        ),
        grid=(count,),
        grid_names=("tile",),
        cluster=(members,),
        cluster_names=("pair",),
        num_threads=3,
        thread_name="role",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(x, y)
    return o[:m, :n]


def _emptied(pair: bool) -> Any:
    """Says that sums have left TMEM; of a pair, to the first that they have left both."""
    if not pair:
        return plgpu.Barrier(num_barriers=2, orders_tensor_core=True)
    return plgpu.ClusterBarrier(collective_axes=("pair",), num_barriers=2, orders_tensor_core=True)


def _check(width: int, *, pair: bool, block_n: int, block_k: int, stages: int, band: int) -> None:
    _require.positive(block_n=block_n, block_k=block_k, stages=stages, band=band)
    for name, size, multiple in (
        ("block_n", block_n, width * (1 + pair)),
        ("block_k", block_k, width),
    ):
        if size % multiple:
            raise ValueError(f"{name} must be a multiple of {multiple}, but it is {size}")
    if block_n > _COLUMNS // 2:
        raise ValueError(
            f"block_n must be at most {_COLUMNS // 2}, as two tiles share tensor memory, but it is "
            f"{block_n}"
        )
    if stages < 2:
        raise ValueError(f"stages must be at least 2, but it is {stages}: nothing would overlap")


def reference(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x @ y``, summed in float32 at least and rounded once."""
    dtype = _tiles.out_dtype(x.dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    product = jnp.dot(x.astype(wide), y.astype(wide), precision=jax.lax.Precision.HIGHEST)
    return product.astype(dtype)
