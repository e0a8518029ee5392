"""A tile of a product on a Blackwell GPU by three warpgroups, for operands with something extra.

Scaled operands bring their scales, sparse ones the places of their elements. Both go the way of the
operands: by TMA to a ring of slots in shared memory, and from there to tensor memory, right before
the product that needs them. The rest is here: who does what, and who waits for whom. A block of the
grid computes one tile of ``TILE`` rows and columns; ``blackwell_matmul`` goes on to the next.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels._refs import Ref
from reference_kernels.mosaic_gpu import _tiles

#: Rows and columns of the output that a block computes.
TILE = 128

_LOADS, _PRODUCTS, _OUTPUT = range(3)  # what each warpgroup does

#: What is done for a step, with a slot.
Step = Callable[[jax.Array, jax.Array], None]


class Barriers(NamedTuple):
    """Who waits for what.

    Attributes:
      loaded: ``(stages,)``: all copies of a step have arrived in a slot. The products wait for it.
      consumed: ``(stages,)``: the tensor core has read a slot, and arrives. The loads wait for it.
      summed: one: the tensor core has finished all products, and arrives. The output waits for it.
    """

    loaded: Ref
    consumed: Ref
    summed: Ref


class Result(NamedTuple):
    """The tile on its way out.

    Attributes:
      sums: in tensor memory, ``(128, 128)``, float32.
      smem: in shared memory, rounded, ``(128, 128)``.
    """

    sums: Ref
    smem: Ref


def run_roles(
    o: Ref, result: Result, barriers: Barriers, *, steps: int, load: Step, multiply: Step
) -> None:
    """Give each of the three warpgroups its role.

    Args:
      o: the output in global memory, ``(m, n)``.
      result: its tile.
      barriers: between the warpgroups.
      steps: of the sums.
      load: starts the copies of a step to a slot.
      multiply: starts what the tensor core does with a slot.
    """
    role = jax.lax.axis_index("role")
    pl.when(role == _LOADS)(lambda: _load_steps(barriers, steps, load))
    pl.when(role == _PRODUCTS)(lambda: _multiply_steps(barriers, steps, multiply))
    pl.when(role == _OUTPUT)(lambda: _store(o, result, barriers))


def _load_steps(barriers: Barriers, steps: int, load: Step) -> None:
    """Load the steps, each as soon as its slot is free, and stay until all are read."""
    consumed, stages = barriers.consumed, barriers.consumed.shape[0]

    @pl.loop(0, steps)
    def _step(step: jax.Array) -> None:
        slot = jax.lax.rem(step, stages)
        pl.when(step >= stages)(lambda: plgpu.barrier_wait(consumed.at[slot]))
        load(step, slot)

    @pl.loop(max(steps - stages, 0), steps)
    def _last(step: jax.Array) -> None:  # before which the block may not end
        plgpu.barrier_wait(consumed.at[jax.lax.rem(step, stages)])


def _multiply_steps(barriers: Barriers, steps: int, multiply: Step) -> None:
    """Multiply what has been loaded."""

    @pl.loop(0, steps)
    def _step(step: jax.Array) -> None:
        slot = jax.lax.rem(step, barriers.loaded.shape[0])
        plgpu.barrier_wait(barriers.loaded.at[slot])
        multiply(step, slot)

    plgpu.tcgen05_commit_arrive(barriers.summed)


def _store(o: Ref, result: Result, barriers: Barriers) -> None:
    """Round the sums and copy them to the output."""
    plgpu.barrier_wait(barriers.summed)
    result.smem[...] = plgpu.async_load_tmem(result.sums).astype(o.dtype)
    plgpu.commit_smem()
    row, column = jax.lax.axis_index("row"), jax.lax.axis_index("column")
    plgpu.copy_smem_to_gmem(result.smem, o.at[pl.ds(row * TILE, TILE), pl.ds(column * TILE, TILE)])
    plgpu.wait_smem_to_gmem(0)


def call(
    kernel: Callable[..., None],
    operands: tuple[jax.Array, ...],
    *,
    out: jax.ShapeDtypeStruct,
    buffers: Any,
    extra: Any,
    copies: int,
    stages: int,
) -> jax.Array:
    """Run ``kernel(*operands, o, buffers, extra, result, barriers)`` for each tile of the output.

    Args:
      kernel: the body.
      operands: its operands.
      out: shape and dtype of the output; the shape is a multiple of ``TILE``.
      buffers: shared memory for ``stages`` steps.
      extra: tensor memory for what the operands bring.
      copies: how many copies a step has.
      stages: slots of the ring.
    """
    m, n = out.shape
    result = Result(
        sums=plgpu.TMEM((TILE, TILE), jnp.float32), smem=_tiles.smem((TILE, TILE), out.dtype)
    )
    barriers = Barriers(
        loaded=plgpu.Barrier(num_arrivals=copies, num_barriers=stages),
        consumed=plgpu.Barrier(num_barriers=stages, orders_tensor_core=True),
        summed=plgpu.Barrier(orders_tensor_core=True),
    )
    return plgpu.kernel(
        kernel,
        out_type=out,
        scratch_types=(buffers, extra, result, barriers),
        grid=(m // TILE, n // TILE),
        grid_names=("row", "column"),
        num_threads=3,
        thread_name="role",
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )(*operands)


def check_multiples(*sizes: tuple[str, str, int, int]) -> None:
    """Raise ValueError unless each size is a multiple.

    Args:
      *sizes: names of an operand and an axis, its size, and what that must be a multiple of.
    """
    for name, axis, size, multiple in sizes:
        if size % multiple:
            raise ValueError(
                f"the {axis} of {name} must be a multiple of {multiple}, but it is {size}"
            )


def check_stages(stages: int) -> None:
    """Raise ValueError unless there are two slots at least."""
    _require.positive(stages=stages)
    if stages < 2:
        raise ValueError(f"stages must be at least 2, but it is {stages}: nothing would overlap")
