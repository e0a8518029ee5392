"""Matrix product ``o = x @ y`` by a kernel that owns its cores and its pipeline.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtypes: float32 or bfloat16, the same for both.

``pl.kernel`` has no grid and no blocks. Its body runs once on every core of the mesh, with all
operands in HBM, and here it is a single ``emit_pipeline`` over blocks ``(m, n, k)``, which the
cores divide among themselves along a ``PARALLEL`` dimension: ``core_axis_name`` is the axis of the
mesh. The steps along ``k`` follow each other on one core, so that their float32 sum stays in a
scratch of that core and is rounded once.

With the same blocks, a ``pallas_call`` (see ``matmul``) leaves the loop and its division to the
compiler. What a kernel of its own can do besides is to run several pipelines, or something between
them.

A pipeline would read beyond the end of an operand where the last block hangs over, so operands are
padded to whole blocks first; zeros add nothing to the sums. Sizes that are whole blocks are not
copied.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._tpu import LANES, ROWS, fit, precision_for


def _matmul_step(x_ref: Any, y_ref: Any, o_ref: Any, *, sum_ref: Any) -> None:
    step = pl.program_id(2)

    @pl.when(step == 0)
    def _clear() -> None:
        sum_ref[...] = jnp.zeros_like(sum_ref)

    sum_ref[...] += jnp.dot(
        x_ref[...],
        y_ref[...],
        precision=precision_for(x_ref.dtype),
        preferred_element_type=jnp.float32,
    )

    @pl.when(step == pl.num_programs(2) - 1)
    def _round() -> None:
        o_ref[...] = sum_ref[...].astype(o_ref.dtype)


def kernel_matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    mesh: Any = None,
    block_m: int = 512,
    block_n: int = 512,
    block_k: int = 512,
) -> jax.Array:
    """``x @ y``, summed in float32.

    Args:
      x: ``(m, k)``, float32 or bfloat16.
      y: ``(k, n)``, of the dtype of ``x``.
      mesh: a ``pltpu.TensorCoreMesh``, one core by default. Two are for chips on which two cores
        act as one device, v4 and v5p.
      block_m: rows of a block of the output.
      block_n: columns of a block of the output.
      block_k: how much of ``k`` a step contracts.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, a block size is not positive, or the
        mesh is not of TensorCores.
    """
    m, k, n = _require.product(x, y, block_m=block_m, block_n=block_n, block_k=block_k)
    mesh = pltpu.TensorCoreMesh(axis_name="core", num_cores=1) if mesh is None else mesh
    core_type = getattr(mesh, "core_type", None)
    if core_type is not pltpu.CoreType.TC:
        raise ValueError(f"mesh must be a pltpu.TensorCoreMesh, but it is {mesh!r}")
    bm, bn, bk = fit(block_m, m, ROWS), fit(block_n, n, LANES), fit(block_k, k, LANES)
    grid = (pl.cdiv(m, bm), pl.cdiv(n, bn), pl.cdiv(k, bk))
    x = jnp.pad(x, ((0, -m % bm), (0, -k % bk)))
    y = jnp.pad(y, ((0, -k % bk), (0, -n % bn)))

    @pl.kernel(
        out_type=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype),
        mesh=mesh,
        scratch_types=[pltpu.VMEM((bm, bn), jnp.float32)],
    )
    def product(x_ref: Any, y_ref: Any, o_ref: Any, sum_ref: Any) -> None:
        def step(*blocks: Any) -> None:
            _matmul_step(*blocks, sum_ref=sum_ref)

        pltpu.emit_pipeline(
            step,
            grid=grid,
            in_specs=[
                pl.BlockSpec((bm, bk), lambda i, j, step: (i, step)),
                pl.BlockSpec((bk, bn), lambda i, j, step: (step, j)),
            ],
            out_specs=[pl.BlockSpec((bm, bn), lambda i, j, step: (i, j))],
            core_axis_name=mesh.axis_name if mesh.num_cores > 1 else None,
            dimension_semantics=(pltpu.PARALLEL, pltpu.PARALLEL, pltpu.ARBITRARY),
        )(x_ref, y_ref, o_ref)

    return product(x, y)[:m, :n]
