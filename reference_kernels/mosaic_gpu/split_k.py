"""Matrix product ``o = x @ y`` whose sums are split among blocks of a Hopper GPU.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtypes: bfloat16 or float16; ``o`` is float32.

A product with few rows and columns but long sums has few tiles of the output: ``512 x 512`` is 16
of ``128 x 128``, and an H200 has 132 multiprocessors. So each sum is cut into ``splits`` ranges of
``k``, which are blocks of the grid. A block multiplies its range as ``hopper_matmul_persistent``
does: a warpgroup fetches, two multiply half the rows each, and the blocks of a cluster share what
they fetch of ``y``. Three ways to add the parts of a sum are here:

- ``"sum"``: each block writes its part beside those of the others, and XLA adds them in order. The
  answer is the same in every run.
- ``"tma"``: the last thing that a block does is to add its part to the output in global memory,
  which begins as zero. The copy from shared memory is told to add (``cp.reduce.async.bulk``, PTX
  ISA 8.0).
- ``"atomic"``: likewise, but threads add (``red.global.add.f32``). A part goes through shared
  memory first, so that the 32 threads of a warp have neighbors of a row.

The last two write and read an eighth of the memory of the first for its eight ranges, but a kernel
must write the zeros before, and their answers are not the same in every run: additions of floats by
several blocks happen in any order, and each order rounds differently. That is also why the output
is float32: to round to 16 bits at every addition would lose much more.

Source: Osama et al., "Stream-K", 2023 (arXiv:2301.03598), section 3: "fixed-split".
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels._refs import Ref
from reference_kernels.mosaic_gpu import _tiles, _warpgroups
from reference_kernels.mosaic_gpu._warpgroups import MULTIPLYING

Addition = Literal["sum", "tma", "atomic"]

#: Of ``_tiles.PART``: the 32 lanes of a warp have neighbors of a row, each of four warps a row.
_LINES = plgpu.Layout.TILED(
    plgpu.Tiling(((4, 32), (1,))), warp_dims=(-3,), lane_dims=(-2,), vector_dim=-1
)


@dataclasses.dataclass(frozen=True)
class _Range:
    """The tile and the range of the sums of a block.

    Attributes:
      shape: rows and columns of the tile.
      steps: of the range.
    """

    shape: tuple[int, int]
    steps: int

    def corner(self, turn: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
        """The first row, column and step; there is one ``turn``."""
        del turn
        block, blocks = jax.lax.axis_index("block"), jax.lax.axis_size("block")
        row = (jax.lax.axis_index("row") * blocks + block) * self.shape[0]
        column = jax.lax.axis_index("column") * self.shape[1]
        return row, column, jax.lax.axis_index("split") * self.steps


def _split_k_kernel(
    x: Ref,
    y: Ref,
    o: Ref,
    buffers: _warpgroups.Buffers,
    barriers: _warpgroups.Barriers,
    *,
    part: _Range,
    by: Addition,
) -> None:
    """Multiply the terms of a range, and write or add them.

    Args:
      x: ``(m, k)``, in global memory.
      y: ``(k, n)``.
      o: whole tiles, ``(m, n)``; for ``"sum"`` of each range, ``(splits, m, n)``.
      buffers: in shared memory.
      barriers: between the warpgroups.
      part: the tile and range of this block.
      by: see above.
    """
    rows = part.shape[0] // MULTIPLYING

    def multiply(warpgroup: jax.Array) -> None:
        row, column, _ = part.corner(0)
        row += warpgroup * rows
        total = _warpgroups.sum_half(buffers, barriers, (1, 0), part, 0, warpgroup)
        parts = buffers.o.at[warpgroup]
        if by == "atomic":
            _add_atomically(total, parts, o, row, column)
        else:
            out = o.at[jax.lax.axis_index("split")] if by == "sum" else o
            reduction = None if by == "sum" else "add"
            _tiles.store(total, parts, out, row, column, reduction=reduction)
            plgpu.wait_smem_to_gmem(0)

    _warpgroups.roles(
        fetch=lambda: _warpgroups.fetch(x, y, buffers, barriers, (1, 0), part, 1),
        multiply=multiply,
    )


def _add_atomically(total: jax.Array, parts: Ref, o: Ref, row: Any, column: Any) -> None:
    """Add ``total`` to ``o`` from ``row`` and ``column`` on, a part of it after the other."""
    rows, columns = _tiles.PART
    part = parts.at[0]
    for i in range(0, total.shape[0], rows):
        for j in range(0, total.shape[1], columns):
            part[...] = total[i : i + rows, j : j + columns]
            lines = plgpu.load(part, layout=_LINES, optimized=False)
            plgpu.atomic_add(o.at[pl.ds(row + i, rows), pl.ds(column + j, columns)], lines)


def split_k_matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    splits: int = 8,
    by: Addition = "sum",
    block_m: int = 128,
    block_n: int = 128,
    block_k: int = 64,
    stages: int = 6,
    cluster: int = 2,
) -> jax.Array:
    """``x @ y`` for long sums.

    The defaults are for 512 rows and columns on an H100 or H200.

    Args:
      x: ``(m, k)``, bfloat16 or float16. It and ``y`` are copied first unless sizes are whole tiles
        (see ``hopper_matmul``).
      y: ``(k, n)``, of the dtype of ``x``.
      splits: ranges of ``k``, at most as many as there are steps; so many that there is about one
        block for each multiprocessor.
      by: how parts are added: ``"sum"`` after the kernel; ``"tma"`` by a copy that adds, or
        ``"atomic"`` by an atomic addition of each element, whose last bits differ from run to run.
      block_m: rows of a tile of the output, a multiple of 128: two warpgroups have half of them
        each.
      block_n: columns of it, a multiple of 64, at most 256.
      block_k: terms of the sums in one step, a multiple of 64.
      stages: how many steps fit in shared memory, at least 2.
      cluster: blocks that share what they fetch of ``y``, 1, 2 or 4. On an H200, clusters of 4 do
        not leave room for 32 of them at a time.

    Returns:
      ``(m, n)``, float32.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, a block size is not allowed, or ``by``
        is unknown.
    """
    m, k, n = _require.product(x, y)
    _tiles.check_dtype("x", x)
    _tiles.check_blocks(x.dtype, block_m=block_m, block_n=block_n, block_k=block_k, stages=stages)
    _warpgroups.check(block_m, cluster)
    _require.positive(splits=splits)
    if by not in get_args(Addition):
        raise ValueError(f"by must be one of {get_args(Addition)}, but it is {by!r}")
    x, y = _tiles.aligned(x), _tiles.aligned(y)
    steps = pl.cdiv(k, block_k)
    each = pl.cdiv(steps, splits)
    grid = pl.cdiv(m, block_m * cluster), pl.cdiv(n, block_n), pl.cdiv(steps, each)
    # Whole tiles: an atomic addition beyond the end is not left out as a copy is.
    shape = grid[0] * cluster * block_m, grid[1] * block_n
    settings: dict[str, Any] = {}
    if by == "sum":
        settings["out_type"] = jax.ShapeDtypeStruct((grid[2], *shape), jnp.float32)
    sums = [] if by == "sum" else [jax.new_ref(jnp.zeros(shape, jnp.float32))]
    parts = plgpu.kernel(
        functools.partial(_split_k_kernel, part=_Range((block_m, block_n), each), by=by),
        scratch_types=(
            _warpgroups.Buffers(
                x=_tiles.smem((stages, block_m, block_k), x.dtype),
                y=_tiles.smem((stages, block_k, block_n), x.dtype),
                o=_tiles.staging(jnp.float32, MULTIPLYING, slots=1),
            ),
            _warpgroups.barriers(stages, cluster),
        ),
        grid=grid,
        grid_names=("row", "column", "split"),
        cluster=(cluster,),
        cluster_names=("block",),
        num_threads=MULTIPLYING + 1,
        thread_name="warpgroup",
        kernel_name="split_k_matmul",
        **settings,
    )(x, y, *sums)
    total = jnp.sum(parts, axis=0) if by == "sum" else jax.freeze(*sums)
    return total[:m, :n]


def reference(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x @ y`` in float32 at least."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.dot(x, y, precision="highest", preferred_element_type=wide)
