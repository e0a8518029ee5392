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
are not multiples of them are padded before and cut off after.

NVIDIA, "PTX ISA" 8.7, sections "TensorCore 5th Generation Family Instructions" and
"clusterlaunchcontrol".
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

Schedule = Literal["static", "dynamic"]

_ROWS = 128  # of a tile in TMEM, one for each of its lanes
_COLUMNS = 512  # of TMEM
_LOADS, _PRODUCTS, _OUTPUT = range(3)  # what each warpgroup does


def _matmul_kernel(
    x_gmem: Any,
    y_gmem: Any,
    o_gmem: Any,
    x_smem: Any,
    y_smem: Any,
    o_smem: Any,
    sums: Any,
    loaded: Any,
    consumed: Any,
    summed: Any,
    emptied: Any,
    *,
    tiles: tuple[int, int],
    steps: int,
    pair: bool,
    schedule: Schedule,
    band: int,
) -> None:
    role, member = jax.lax.axis_index("role"), jax.lax.axis_index("pair")
    stages, _, block_k = x_smem.shape
    rows, columns = _ROWS * (1 + pair), sums.shape[1] // 2
    collective_axis = "pair" if pair else None

    def load(turn: Any, row: Any, column: Any) -> None:
        @pl.loop(0, steps)
        def _step(step: Any) -> None:
            count = turn * steps + step
            slot = jax.lax.rem(count, stages)
            pl.when(count >= stages)(lambda: plgpu.barrier_wait(consumed.at[slot]))
            terms = pl.ds(step * block_k, block_k)
            x, y = x_gmem.at[pl.ds(row, rows), terms], y_gmem.at[terms, pl.ds(column, columns)]
            for axis, (block, smem) in enumerate(((x, x_smem), (y, y_smem))):
                part = plgpu.CopyPartition.PARTITIONED(axis) if pair else None
                plgpu.copy_gmem_to_smem(
                    block,
                    smem.at[slot],
                    loaded.at[slot],
                    collective_axes=collective_axis,
                    leader_tracked=part,
                )

    def multiply(turn: Any, slot: Any) -> None:
        @pl.when(member == 0)
        def _first_of_pair() -> None:
            pl.when(turn >= 2)(lambda: plgpu.barrier_wait(emptied.at[slot]))

            @pl.loop(0, steps)
            def _step(step: Any) -> None:
                stage = jax.lax.rem(turn * steps + step, stages)
                plgpu.barrier_wait(loaded.at[stage])
                plgpu.tcgen05_mma(
                    sums.at[:, pl.ds(slot * columns, columns)],
                    x_smem.at[stage],
                    y_smem.at[stage],
                    consumed.at[stage],
                    accumulate=step > 0,
                    collective_axis=collective_axis,
                )

            plgpu.tcgen05_commit_arrive(summed.at[slot], collective_axis=collective_axis)

    def store(turn: Any, slot: Any, row: Any, column: Any) -> None:
        parts, width = columns // o_smem.shape[2], o_smem.shape[2]
        mine = pl.ds(row + member * _ROWS, _ROWS)
        plgpu.barrier_wait(summed.at[slot])
        for part in range(parts):
            piece = plgpu.async_load_tmem(sums.at[:, pl.ds(slot * columns + part * width, width)])
            half = jax.lax.rem(turn * parts + part, 2)
            plgpu.wait_smem_to_gmem(1, wait_read_only=True)  # all but the last have left their half
            o_smem[half] = piece.astype(o_gmem.dtype)
            plgpu.commit_smem()
            here = mine, pl.ds(column + part * width, width)
            plgpu.copy_smem_to_gmem(o_smem.at[half], o_gmem.at[here])
        plgpu.wait_load_tmem()
        plgpu.barrier_arrive(emptied.at[slot])
        if pair:
            # The second one starts no products. Who waits must arrive as well, or the barrier could
            # go on by two phases before it looks.
            pl.when(member == 1)(lambda: plgpu.barrier_wait(emptied.at[slot]))

    def compute_tile(info: Any, carry: Any) -> Any:
        turn = info.local_index
        row, column = plgpu.planar_snake(info.index[0], tiles, 0, band)
        row, column, slot = row * rows, column * columns, jax.lax.rem(turn, 2)
        pl.when(role == _LOADS)(lambda: load(turn, row, column))
        pl.when(role == _PRODUCTS)(lambda: multiply(turn, slot))
        pl.when(role == _OUTPUT)(lambda: store(turn, slot, row, column))
        return carry + 1

    if schedule == "static":
        loop = plgpu.nd_loop(
            (tiles[0] * tiles[1],), collective_axes="tile", init_carry=jnp.int32(0)
        )
    else:
        loop = plgpu.dynamic_scheduling_loop(
            ("tile",),
            thread_axis="role",
            cluster_axes=("pair",) if pair else (),
            init_carry=jnp.int32(0),
        )
    turns = loop(compute_tile)

    # Nobody may leave while the tensor cores, or the other block of the pair, still arrive here.
    def see_last(barriers: Any, count: Any) -> None:
        slots = barriers.shape[0]

        @pl.loop(jnp.maximum(count - slots, 0), count)
        def _arrival(each: Any) -> None:
            plgpu.barrier_wait(barriers.at[jax.lax.rem(each, slots)])

    pl.when(role == _LOADS)(lambda: see_last(consumed, turns * steps))
    own = jnp.where(member == 0, turns, 0) if pair else turns
    pl.when(role == _PRODUCTS)(lambda: see_last(emptied, own))
    pl.when(role == _OUTPUT)(lambda: plgpu.wait_smem_to_gmem(0))


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
    dtype = _out_dtype(x.dtype)
    tiles = (pl.cdiv(m, _ROWS * members), pl.cdiv(n, block_n))
    count = tiles[0] * tiles[1]
    if schedule == "static":
        programs = _gpu.multiprocessors() // members if programs is None else programs
        _require.positive(programs=programs)
        count = min(count, programs)
    x, y = _tiles.aligned(x), _tiles.aligned(y)
    part, rows = _tiles.width(dtype), _tiles.ROWS
    o = plgpu.kernel(
        functools.partial(
            _matmul_kernel,
            tiles=tiles,
            steps=pl.cdiv(k, block_k),
            pair=pair,
            schedule=schedule,
            band=band,
        ),
        out_type=jax.ShapeDtypeStruct((pl.cdiv(m, rows) * rows, pl.cdiv(n, part) * part), dtype),
        scratch_types={
            "x_smem": _tiles.smem((stages, _ROWS, block_k), x.dtype),
            "y_smem": _tiles.smem((stages, block_k, block_n // members), x.dtype),
            "o_smem": _tiles.smem((2, _ROWS, part), dtype),
            "sums": plgpu.TMEM((_ROWS, 2 * block_n), jnp.float32, collective=pair),
            "loaded": plgpu.Barrier(num_arrivals=2, num_barriers=stages),
            "consumed": plgpu.Barrier(num_barriers=stages, orders_tensor_core=True),
            "summed": plgpu.Barrier(num_barriers=2, orders_tensor_core=True),
            "emptied": _emptied(pair),
        },
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


def _out_dtype(dtype: Any) -> Any:
    return jnp.dtype(jnp.bfloat16) if jnp.dtype(dtype).itemsize == 1 else jnp.dtype(dtype)


def reference(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x @ y``, summed in float32 at least and rounded once."""
    dtype = _out_dtype(x.dtype)
    wide = jnp.promote_types(dtype, jnp.float32)
    product = jnp.dot(x.astype(wide), y.astype(wide), precision=jax.lax.Precision.HIGHEST)
    return product.astype(dtype)
