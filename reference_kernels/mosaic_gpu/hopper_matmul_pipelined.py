"""Matrix product ``o = x @ y`` on a Hopper GPU, by the pipelines that Pallas emits.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtypes: bfloat16 or float16; sums are float32.

``hopper_matmul`` and ``hopper_matmul_persistent`` start every copy and wait at every barrier
themselves. Here the same is said by block specs, as on a TPU: which block of an operand a step
needs, and how it lies in shared memory.

- ``specialize=False``: ``plgpu.emit_pipeline``. One warpgroup copies ahead and multiplies. A
  ``wgmma`` is still under way when its step ends, so a block is released one step later
  (``delay_release``).
- ``specialize=True``: ``plgpu.emit_pipeline_warp_specialized``. A warpgroup of its own copies, two
  multiply half a tile each. Blocks are persistent, and the pipelines of their tiles are chained
  (``PipelinePipeline``): the first fills the buffers, each of the others goes on in buffers that
  are full, and the last empties them. So the copies of a tile begin while the tile before is
  written. A chain needs tiles of equally many steps, a multiple of the buffers: beyond the end of
  ``k`` TMA reads zeros.

``overlap=True`` uses programmatic dependent launch (PTX ISA, griddepcontrol). ``y`` holds weights,
which no kernel before this one writes. So a block asks for its first blocks of ``y`` to be brought
into the L2 cache (PTX ISA, cp.async.bulk.prefetch.tensor), and then waits for the kernel that
writes ``x``.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _gpu, _require
from reference_kernels._refs import Ref
from reference_kernels.mosaic_gpu import _tiles

_MULTIPLYING = 2  # warpgroups, besides the one that copies
_COPY_REGISTERS = 40


@dataclasses.dataclass(frozen=True)
class _Blocks:
    """Sizes of blocks, and how many steps and buffers there are.

    Attributes:
      m: rows of a tile of the output.
      n: columns of it.
      k: terms of the sums in a step.
      steps: of the sums.
      stages: steps that there are buffers for.
    """

    m: int
    n: int
    k: int
    steps: int
    stages: int

    def specs(self, row: Any, column: Any, dtype: Any, *, delay_release: int = 0) -> list[Any]:
        """Blocks of ``x`` and ``y`` for the tile at ``row`` and ``column``, counted in tiles."""
        settings: dict[str, Any] = {
            "transforms": _tiles.transforms(dtype),
            "memory_space": plgpu.SMEM,
            "delay_release": delay_release,
        }
        return [
            plgpu.BlockSpec((self.m, self.k), lambda step: (row, step), **settings),
            plgpu.BlockSpec((self.k, self.n), lambda step: (step, column), **settings),
        ]


def _kernel(x: Ref, y: Ref, o: Ref, parts: Ref, *, blocks: _Blocks, overlap: bool) -> None:
    """A tile of the output, by one warpgroup that copies ahead and multiplies.

    Args:
      x: ``(m, k)``, in global memory.
      y: ``(k, n)``.
      o: ``(m, n)``.
      parts: of the tile on their way out; see ``_tiles.staging``.
      blocks: their sizes.
      overlap: whether the kernel before may still write ``x``.
    """
    row, column = jax.lax.axis_index("row"), jax.lax.axis_index("column")
    if overlap:
        _prefetch(y, column, blocks)
        plgpu.griddepcontrol_wait()
    total = _sum_steps(x, y, row, column, blocks)
    _tiles.store(total, parts, o, row * blocks.m, column * blocks.n)
    plgpu.wait_smem_to_gmem(0)
    if overlap:
        plgpu.griddepcontrol_launch_dependents()


def _prefetch(y: Ref, column: jax.Array, blocks: _Blocks) -> None:
    """Bring the blocks of ``y`` that the first steps need into the L2 cache."""

    @pl.loop(0, min(blocks.stages, blocks.steps))
    def _step(step: jax.Array) -> None:
        here = pl.ds(step * blocks.k, blocks.k), pl.ds(column * blocks.n, blocks.n)
        plgpu.async_prefetch(y.at[here])


def _sum_steps(x: Ref, y: Ref, row: jax.Array, column: jax.Array, blocks: _Blocks) -> jax.Array:
    """The sums of the tile at ``row`` and ``column``, counted in tiles."""

    def accumulate(acc: Ref) -> jax.Array:
        def multiply(_: Any, x_block: Ref, y_block: Ref) -> None:
            plgpu.wgmma(acc, x_block, y_block)
            plgpu.wgmma_wait(1)  # the product of the step before has read its blocks

        plgpu.emit_pipeline(
            multiply,
            grid=(blocks.steps,),
            in_specs=blocks.specs(row, column, x.dtype, delay_release=1),
            max_concurrent_steps=blocks.stages,
        )(x, y)
        return acc[...]

    return pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef((blocks.m, blocks.n), jnp.float32))


def _specialized_kernel(
    x: Ref, y: Ref, o: Ref, parts: Ref, *, blocks: _Blocks, tiles: tuple[int, int]
) -> None:
    """Tiles of a persistent block, by a warpgroup that copies and two that multiply.

    Args:
      x: ``(m, k)``, in global memory.
      y: ``(k, n)``.
      o: ``(m, n)``.
      parts: of a tile on their way out, for each of the two.
      blocks: their sizes.
      tiles: how many there are below each other, and beside each other.
    """

    def all_tiles(allocations: Any) -> None:
        @plgpu.nd_loop(tiles, collective_axes="block")
        def _tile(info: plgpu.NDLoopInfo) -> None:
            row, column = info.index
            run = _pipeline(
                blocks,
                x.dtype,
                (row, column),
                body=_multiply_half,
                context=functools.partial(_sum_and_store, o, parts, row, column, blocks),
                state=_place_in_chain(info),
            )
            run(x, y, allocations=allocations)

    # What is computed does not matter for the allocations.
    any_tile = _pipeline(blocks, x.dtype, (0, 0), body=_nothing, context=_nothing, state=None)
    pl.run_scoped(all_tiles, any_tile.get_allocations(x, y), collective_axes="warpgroup")
    plgpu.wait_smem_to_gmem(0)


def _pipeline(
    blocks: _Blocks,
    dtype: Any,
    tile: tuple[Any, Any],
    *,
    body: Callable[..., Any],
    context: Callable[..., None],
    state: jax.Array | None,
) -> Any:
    """The pipeline of a tile.

    Args:
      blocks: their sizes.
      dtype: of the operands.
      tile: its row and column, counted in tiles.
      body: what the warpgroups that multiply do in a step.
      context: what they do around all steps, which it is called with.
      state: the place of the pipeline in the chain; None to ask for allocations only.
    """
    return plgpu.emit_pipeline_warp_specialized(
        body,
        grid=(blocks.steps,),
        memory_registers=_COPY_REGISTERS,
        in_specs=blocks.specs(*tile, dtype),
        max_concurrent_steps=blocks.stages,
        wg_axis="warpgroup",
        num_compute_wgs=_MULTIPLYING,
        pipeline_state=state,
        compute_context=context,
    )


def _place_in_chain(info: plgpu.NDLoopInfo) -> jax.Array:
    """The first pipeline fills the buffers, and the last one empties them."""
    states, last = plgpu.PipelinePipeline, info.local_index == info.num_local_steps - 1
    state = jnp.where(last, states.STOP, states.STEADY)
    # Of a single tile nobody empties the buffers: nothing comes after it.
    return jnp.where(info.local_index == 0, states.START, state)


def _multiply_half(_: Any, x_block: Ref, y_block: Ref, acc: Ref) -> Ref:
    """Add the product of a step, for half of its rows, to ``acc``."""
    rows = x_block.shape[0] // _MULTIPLYING
    half = pl.ds(jax.lax.axis_index("warpgroup") * rows, rows)
    plgpu.wgmma(acc, x_block.at[half], y_block)
    plgpu.wgmma_wait(0)
    return acc


def _sum_and_store(
    o: Ref,
    parts: Ref,
    row: jax.Array,
    column: jax.Array,
    blocks: _Blocks,
    steps: Callable[[Ref], Any],
) -> None:
    """Run the ``steps`` of a tile, and write a warpgroup's half of it."""
    warpgroup, rows = jax.lax.axis_index("warpgroup"), blocks.m // _MULTIPLYING

    def accumulate(acc: Ref) -> jax.Array:
        steps(acc)
        return acc[...]

    total = pl.run_scoped(accumulate, plgpu.WGMMAAccumulatorRef((rows, blocks.n), jnp.float32))
    first = row * blocks.m + warpgroup * rows
    _tiles.store(total, parts.at[warpgroup], o, first, column * blocks.n)


def _nothing(*_: Any) -> None:
    """A body of a pipeline that is asked for its allocations only."""


def hopper_matmul_pipelined(
    x: jax.Array,
    y: jax.Array,
    *,
    specialize: bool = True,
    overlap: bool = False,
    block_m: int | None = None,
    block_n: int = 128,
    block_k: int = 64,
    stages: int | None = None,
    programs: int | None = None,
) -> jax.Array:
    """``x @ y``. It can be vmapped.

    Args:
      x: ``(m, k)``, bfloat16 or float16. It and ``y`` are copied first unless sizes are whole tiles
        (see ``hopper_matmul``).
      y: ``(k, n)``, of the dtype of ``x``.
      specialize: let a warpgroup of its own copy, and blocks take one tile after the other.
      overlap: launch the kernel by programmatic dependent launch; not with ``specialize``. ``y``
        must not be written by the kernel before.
      block_m: rows of a tile of the output, a multiple of 64, or of 128 with ``specialize``; by
        default 128, or 256 with ``specialize``.
      block_n: columns of it, a multiple of 64, at most 256.
      block_k: terms of the sums in one step, a multiple of 64.
      stages: how many steps fit in shared memory, at least 2; by default 3, which leave room for
        two blocks on a multiprocessor, or 4 with ``specialize``.
      programs: how many blocks take tiles, with ``specialize``; by default one for each SM.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, a block size is not allowed, or
        ``overlap`` is asked for with ``specialize``.
    """
    m, k, n = _require.product(x, y)
    _tiles.check_dtype("x", x)
    block_m = (128 * _MULTIPLYING if specialize else 128) if block_m is None else block_m
    stages = (4 if specialize else 3) if stages is None else stages
    _tiles.check_blocks(x.dtype, block_m=block_m, block_n=block_n, block_k=block_k, stages=stages)
    if specialize and overlap:
        raise ValueError("overlap must be False with specialize, but both are True")
    if specialize and block_m % (64 * _MULTIPLYING):
        raise ValueError(
            f"block_m must be a multiple of {64 * _MULTIPLYING}, 64 rows for each warpgroup, "
            f"but it is {block_m}"
        )
    x, y = _tiles.aligned(x), _tiles.aligned(y)
    tiles = pl.cdiv(m, block_m), pl.cdiv(n, block_n)
    steps = pl.cdiv(k, block_k)
    settings: dict[str, Any] = {
        "out_type": jax.ShapeDtypeStruct(_tiles.whole((m, n), x.dtype), x.dtype)
    }
    if not specialize:
        blocks = _Blocks(block_m, block_n, block_k, steps, max(2, min(stages, steps)))
        return plgpu.kernel(
            functools.partial(_kernel, blocks=blocks, overlap=overlap),
            scratch_types=[_tiles.staging(x.dtype)],
            grid=tiles,
            grid_names=("row", "column"),
            **settings,
        )(x, y)[:m, :n]
    programs = _gpu.multiprocessors() if programs is None else programs
    _require.positive(programs=programs)
    stages = min(stages, steps)
    blocks = _Blocks(block_m, block_n, block_k, pl.cdiv(steps, stages) * stages, stages)
    return plgpu.kernel(
        functools.partial(_specialized_kernel, blocks=blocks, tiles=tiles),
        scratch_types=[_tiles.staging(x.dtype, _MULTIPLYING)],
        grid=(min(programs, tiles[0] * tiles[1]),),
        grid_names=("block",),
        num_threads=_MULTIPLYING + 1,
        thread_name="warpgroup",
        **settings,
    )(x, y)[:m, :n]
