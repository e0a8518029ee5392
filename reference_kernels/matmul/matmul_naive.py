"""Matrix product ``o = x @ y`` over a 2-D grid: each program contracts the whole of ``k``.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtypes: float32 or bfloat16, the same for both;
the product is accumulated in float32.

This is the matmul of the Pallas quickstart (a 2 x 2 grid there) for any sizes. Program ``(i, j)``
gets ``block_m`` whole rows of ``x`` and ``block_n`` whole columns of ``y``, so ``k`` is limited by
VMEM; ``matmul`` has a grid over ``k`` as well. Rows and columns beyond the end hold unspecified
numbers, but they reach only rows and columns of the output that are dropped.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels._blocks import LANES, ROWS, fit
from reference_kernels._mxu import precision_for
from reference_kernels.matmul._operands import check_operands


def _matmul_kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    product = jnp.dot(
        x_ref[...],
        y_ref[...],
        precision=precision_for(x_ref.dtype),
        preferred_element_type=jnp.float32,
    )
    o_ref[...] = product.astype(o_ref.dtype)


def matmul_naive(
    x: jax.Array, y: jax.Array, *, block_m: int = 256, block_n: int = 256
) -> jax.Array:
    """``x @ y`` for a ``k`` small enough that whole rows and columns fit in VMEM.

    Args:
      x: ``(m, k)``, float32 or bfloat16.
      y: ``(k, n)``, of the dtype of ``x``.
      block_m: rows of ``x`` in a block.
      block_n: columns of ``y`` in a block. VMEM holds ``2 k (block_m + block_n)`` elements of the
        operands: 4 MB of bfloat16 at ``k = 2048`` with the defaults. In float32, a ``k`` of 2048
        is too much for the 16 MB of a v5e.

    Returns:
      ``(m, n)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    m, k, n = check_operands(x, y, block_m=block_m, block_n=block_n)
    block_m, block_n = fit(block_m, m, ROWS), fit(block_n, n, LANES)
    return pl.pallas_call(
        _matmul_kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(pl.cdiv(m, block_m), pl.cdiv(n, block_n)),
        in_specs=[
            pl.BlockSpec((block_m, k), lambda i, j: (i, 0)),
            pl.BlockSpec((k, block_n), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, j)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(x, y)
