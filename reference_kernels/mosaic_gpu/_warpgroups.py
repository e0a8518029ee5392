"""Products by three warpgroups of a Hopper GPU: one that fetches, and two that multiply.

A block works on tiles of the output, one after the other; the blocks of a cluster on tiles below
each other. See ``hopper_matmul_persistent``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels._refs import Ref

MULTIPLYING = 2  # warpgroups, besides the one that fetches
_FEW_REGISTERS, _MANY_REGISTERS = 40, 232  # of a thread; 128 * (40 + 2 * 232) <= 65536


class Buffers(NamedTuple):
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


class Barriers(NamedTuple):
    """What the warpgroups owe each other.

    Attributes:
      arrived: ``(stages,)``: both blocks of a step have arrived in a slot.
      free: ``(stages,)``: all warpgroups that multiply have read a slot, in all blocks of the
        cluster.
    """

    arrived: Ref
    free: Ref


class Tiles(Protocol):
    """The tiles of the output that a block works on.

    Attributes:
      shape: rows and columns of a tile.
      steps: of the sums of a tile.
    """

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def steps(self) -> int: ...

    def corner(self, turn: Any) -> tuple[Any, Any, Any]:
        """The first row, column and step of the tile that this block works on in its ``turn``."""


def check(block_m: int, cluster: int) -> None:
    """Raise ValueError unless warpgroups can share the rows, and blocks of a cluster ``y``."""
    if block_m % (64 * MULTIPLYING):
        raise ValueError(
            f"block_m must be a multiple of {64 * MULTIPLYING}, 64 rows for each warpgroup, "
            f"but it is {block_m}"
        )
    _require.positive(cluster=cluster)
    if cluster not in (1, 2, 4):
        raise ValueError(f"cluster must be 1, 2 or 4, but it is {cluster}")


def barriers(stages: int, cluster: int) -> Barriers:
    """The barriers of blocks with ``stages`` slots, in clusters of ``cluster`` blocks."""
    free: Any = plgpu.Barrier(num_arrivals=MULTIPLYING, num_barriers=stages)
    if cluster > 1:
        free = plgpu.ClusterBarrier(
            collective_axes=("block",), num_arrivals=MULTIPLYING, num_barriers=stages
        )
    return Barriers(arrived=plgpu.Barrier(num_arrivals=2, num_barriers=stages), free=free)


def roles(fetch: Callable[[], None], multiply: Callable[[jax.Array], None]) -> None:
    """Let the last warpgroup fetch, and the others multiply with its registers."""
    warpgroup = jax.lax.axis_index("warpgroup")

    @pl.when(warpgroup == MULTIPLYING)
    def _fetching() -> None:
        plgpu.set_max_registers(_FEW_REGISTERS, action="decrease")
        fetch()

    @pl.when(warpgroup < MULTIPLYING)
    def _multiplying() -> None:
        plgpu.set_max_registers(_MANY_REGISTERS, action="increase")
        multiply(warpgroup)


def fetch(
    x: Ref,
    y: Ref,
    buffers: Buffers,
    barriers: Barriers,
    axes: tuple[int, int],
    schedule: Tiles,
    mine: int | jax.Array,
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
                x.at[placed(terms, pl.ds(row, block_m), axes[0])],
                buffers.x.at[slot],
                barriers.arrived.at[slot],
            )
            plgpu.copy_gmem_to_smem(
                y.at[placed(terms, pl.ds(column, block_n), axes[1])],
                buffers.y.at[slot],
                barriers.arrived.at[slot],
                collective_axes="block" if jax.lax.axis_size("block") > 1 else None,
            )

    total = mine * schedule.steps

    @pl.loop(jnp.maximum(total - stages, 0), total)
    def _drain(step: jax.Array) -> None:
        plgpu.barrier_wait(barriers.free.at[jax.lax.rem(step, stages)])


def sum_half(
    buffers: Buffers,
    barriers: Barriers,
    axes: tuple[int, int],
    schedule: Tiles,
    turn: int | jax.Array,
    warpgroup: jax.Array,
) -> jax.Array:
    """The sums of a warpgroup's half of the rows of a tile, whose operands are being fetched."""
    stages, rows, begin = (
        buffers.x.shape[0],
        schedule.shape[0] // MULTIPLYING,
        turn * schedule.steps,
    )
    half = placed(slice(None), pl.ds(warpgroup * rows, rows), axes[0])

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


def placed(terms: Any, others: Any, axis: int) -> tuple[Any, Any]:
    """Both in the order of an operand's axes, of which ``axis`` has the terms of the sums."""
    return (terms, others) if axis == 0 else (others, terms)
