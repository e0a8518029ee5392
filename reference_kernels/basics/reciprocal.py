"""Reciprocals, ``o = 1 / x``: divided, or approximated and improved by Newton's method.

Shapes: ``x`` and ``o`` are ``(m, n)``. Dtypes: float32 and bfloat16.

The chip looks an approximation ``r`` up, of which no more than about 8 bits are promised here.
Newton's method for the zero of ``1 / r - x`` improves it by ``r <- r (2 - x r)``: an error ``x r =
1 - e`` becomes ``1 - e^2``, so each step doubles the digits, and two of them give the 24 bits of
float32. For a bfloat16 answer one is enough.

``pltpu.reciprocal(x)`` does as much as is needed for the last digit and for 0, infinities and NaN.
The steps here are cheaper and do not care: 0 gives NaN, since ``x r`` is 0 times infinity.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require, _tpu


def _reciprocal_kernel(x_ref: Any, o_ref: Any, *, steps: int | None) -> None:
    # Not every chip has a reciprocal of bfloat16 (v5e has none), so all of it is float32.
    x = x_ref[...].astype(jnp.float32)
    r = pltpu.reciprocal(x, approx=steps is not None)
    for _ in range(steps or 0):
        r = r * (2 - x * r)
    o_ref[...] = r.astype(o_ref.dtype)


def reciprocal(x: jax.Array, *, newton: bool = False, block_rows: int = 256) -> jax.Array:
    """``1 / x``.

    Args:
      x: ``(m, n)``, float32 or bfloat16. With ``newton``, of magnitudes from 2^-125 to 2^125.
      newton: whether to start from an approximation and improve it.
      block_rows: rows of a block; a multiple of 8 (bfloat16: 16) for a TPU, or all of them.

    Raises:
      ValueError: ``x`` is not a matrix, is empty or has another dtype, or ``block_rows`` is not a
        positive integer.
    """
    m, n = _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows)
    if x.dtype not in (jnp.float32, jnp.bfloat16):
        raise ValueError(f"x must be of float32 or bfloat16, but its dtype is {x.dtype}")
    steps = (2 if x.dtype == jnp.float32 else 1) if newton else None
    block = _tpu.fit(block_rows, m, _tpu.ROWS)
    spec = pl.BlockSpec((block, n), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(_reciprocal_kernel, steps=steps),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(pl.cdiv(m, block),),
        in_specs=[spec],
        out_specs=spec,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
        cost_estimate=pl.CostEstimate(
            flops=3 * (steps or 0) * x.size, transcendentals=x.size, bytes_accessed=2 * x.nbytes
        ),
    )(x)


def reference(x: jax.Array, *, newton: bool = False) -> jax.Array:
    """``1 / x``."""
    del newton
    return 1 / x
