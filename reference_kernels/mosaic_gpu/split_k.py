"""Matrix product ``o = x @ y`` whose sums are split among blocks of a Hopper GPU, by atomic sums.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtypes: bfloat16 or float16; ``o`` is float32.

A product with few rows and columns but long sums has few blocks of the output: ``128 x 512`` is
four of them, and an H200 has 132 multiprocessors. So each sum is cut into ``splits`` ranges of
``k``, which are blocks of the grid, and the last thing that a block does is to add its part to the
output in global memory, which begins as zero. Two ways to add it are here:

- ``"tma"``: the copy from shared memory is told to add (``cp.reduce.async.bulk``, PTX ISA 8.0).
- ``"atomic"``: each thread adds the sums in its registers (``red.global.add.f32``).

Additions of floats by several blocks happen in any order, and each order rounds differently. The
answer is not the same in every run, and the check ``determinism`` is off. That is also why the
output is float32: to round to 16 bits at every addition would lose much more.

Source: Osama et al., "Stream-K", 2023 (arXiv:2301.03598), section 3: "fixed-split".
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require
from reference_kernels.mosaic_gpu import _tiles


def _split_k_kernel(
    x_gmem: Any,
    y_gmem: Any,
    o_gmem: Any,
    x_smem: Any,
    y_smem: Any,
    o_smem: Any,
    arrived: Any,
    *,
    steps: int,
) -> None:
    """Add the product of the terms of one range, of at most ``steps`` steps, to a block."""
    block_m, block_n = x_smem.shape[1], y_smem.shape[2]
    row, column = jax.lax.axis_index("row") * block_m, jax.lax.axis_index("column") * block_n
    first = jax.lax.axis_index("split") * steps

    total = _tiles.sum_over(
        *(x_gmem, y_gmem, _tiles.Operands(x_smem, y_smem, arrived)),
        row=row,
        column=column,
        first=first,
        steps=steps,
    )
    if o_smem is None:
        here = (pl.ds(row, block_m), pl.ds(column, block_n))
        plgpu.atomic_add(o_gmem.at[here], total)
    else:
        _tiles.store(total, o_smem, o_gmem, row, column, reduction="add")
        plgpu.wait_smem_to_gmem(0)


def split_k_matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    splits: int = 8,
    by: Literal["tma", "atomic"] = "tma",
    block_m: int = 128,
    block_n: int = 128,
    block_k: int = 64,
    stages: int = 3,
) -> jax.Array:
    """``x @ y`` for long sums. Its last bits differ from run to run.

    Args:
      x: ``(m, k)``, bfloat16 or float16. It and ``y`` are copied first unless sizes are whole tiles
        (see ``hopper_matmul``).
      y: ``(k, n)``, of the dtype of ``x``.
      splits: ranges of ``k``, at most as many as there are steps; so many that there are about two
        blocks for each multiprocessor.
      by: how parts are added, by a TMA copy that adds or by an atomic addition of each element.
      block_m: rows of a block of the output, a multiple of 64.
      block_n: columns of it, a multiple of 64, at most 256.
      block_k: terms of the sums in one step, a multiple of 64.
      stages: how many steps fit in shared memory, at least 2.

    Returns:
      ``(m, n)``, float32.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, a block size is not allowed, or ``by``
        is neither ``"tma"`` nor ``"atomic"``.
    """
    m, k, n = _require.product(x, y)
    _tiles.check_dtype("x", x)
    _tiles.check_blocks(x.dtype, block_m=block_m, block_n=block_n, block_k=block_k, stages=stages)
    _require.positive(splits=splits)
    if by not in ("tma", "atomic"):
        raise ValueError(f"by must be 'tma' or 'atomic', but it is {by!r}")
    x, y = _tiles.aligned(x), _tiles.aligned(y)
    steps = pl.cdiv(k, block_k)
    each = pl.cdiv(steps, splits)
    grid = pl.cdiv(m, block_m), pl.cdiv(n, block_n), pl.cdiv(steps, each)
    # Whole blocks: an atomic addition beyond the end is not left out as a copy is.
    total = jax.new_ref(jnp.zeros((grid[0] * block_m, grid[1] * block_n), jnp.float32))

    def body(x_gmem: Any, y_gmem: Any, o_gmem: Any, x_smem: Any, y_smem: Any, *rest: Any) -> None:
        *staging, arrived = rest
        o_smem = staging[0] if staging else None
        _split_k_kernel(x_gmem, y_gmem, o_gmem, x_smem, y_smem, o_smem, arrived, steps=each)

    plgpu.kernel(
        body,
        scratch_types=[
            _tiles.smem((stages, block_m, block_k), x.dtype),
            _tiles.smem((stages, block_k, block_n), x.dtype),
            *([_tiles.staging(jnp.float32)] if by == "tma" else []),
            plgpu.Barrier(num_arrivals=2, num_barriers=stages),
        ],
        grid=grid,
        grid_names=("row", "column", "split"),
    )(x, y, total)
    return jax.freeze(total)[:m, :n]


def reference(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x @ y`` in float32 at least."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.dot(x, y, precision="highest", preferred_element_type=wide)
