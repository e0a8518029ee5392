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

from reference_kernels import _require


def _matmul_kernel(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
    product = _dot(x_ref[...], y_ref[...], dtype=jnp.float32)
    o_ref[...] = product.astype(o_ref.dtype)


def _dot(x: jax.Array, y: jax.Array, *, dtype: Any) -> jax.Array:
    # By default a TPU rounds float32 operands to bfloat16. Those of bfloat16 are not rounded, and
    # Mosaic refuses HIGHEST for them.
    precision = "default" if x.dtype == jnp.bfloat16 else "highest"
    return jnp.dot(x, y, precision=precision, preferred_element_type=dtype)


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
    m, k, n = _require.product(x, y, block_m=block_m, block_n=block_n)
    # Whole tiles, of 16 rows and 128 columns, and not more of them than there are.
    block_m, block_n = min(block_m, pl.cdiv(m, 16) * 16), min(block_n, pl.cdiv(n, 128) * 128)
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


def reference(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x @ y``, accumulated in float32 at least and rounded once."""
    return _dot(x, y, dtype=jnp.promote_types(x.dtype, jnp.float32)).astype(x.dtype)
