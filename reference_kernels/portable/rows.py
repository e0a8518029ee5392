"""Softmax, RMS norm and layer norm of rows, by kernels for TPUs and GPUs.

Shapes: ``x`` and ``o`` are ``(m, n)``; ``w`` and ``b`` are ``(n,)``. Dtypes: float32, bfloat16 or
float16, computed in float32 and rounded once.

A program has whole rows, padded to a power of two: what Triton's blocks are, and so many lanes of
a TPU. The padding must not reach the result: for the softmax it is ``-inf``, whose weight is zero;
sums are divided by ``n`` and not by the width; and the deviations from a mean are set to zero
there, as the mean itself is not.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from reference_kernels import _require
from reference_kernels.portable._blocks import (
    LEAST_COLUMNS,
    LEAST_ROWS,
    padded,
    power_of_two,
    require_power_of_two,
)


def _softmax_kernel(x_ref: Any, o_ref: Any) -> None:
    x = x_ref[...].astype(jnp.float32)
    top = jnp.max(x, axis=1, keepdims=True)
    weights = jnp.exp(x - jnp.where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(weights, axis=1, keepdims=True)
    o_ref[...] = (weights / jnp.where(total == 0.0, 1.0, total)).astype(o_ref.dtype)


def _rms_norm_kernel(x_ref: Any, w_ref: Any, o_ref: Any, *, n: int, eps: float) -> None:
    x = x_ref[...].astype(jnp.float32)
    mean = jnp.sum(x * x, axis=1, keepdims=True) / n
    o = x * jax.lax.rsqrt(mean + eps) * w_ref[...].astype(jnp.float32)
    o_ref[...] = o.astype(o_ref.dtype)


def _layer_norm_kernel(
    x_ref: Any, w_ref: Any, b_ref: Any, o_ref: Any, *, n: int, eps: float
) -> None:
    x = x_ref[...].astype(jnp.float32)
    inside = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) < n
    centered = jnp.where(inside, x - jnp.sum(x, axis=1, keepdims=True) / n, 0.0)
    variance = jnp.sum(centered * centered, axis=1, keepdims=True) / n
    o = centered * jax.lax.rsqrt(variance + eps)
    o = o * w_ref[...].astype(jnp.float32) + b_ref[...].astype(jnp.float32)
    o_ref[...] = o.astype(o_ref.dtype)


def _by_rows(
    kernel: Callable[..., None],
    x: jax.Array,
    *weights: jax.Array,
    block_rows: int,
    padding: float = 0.0,
) -> jax.Array:
    """Run ``kernel`` over blocks of whole rows; each has all of the ``weights``, a row each."""
    m, n = _require.axes("x", x, "m n")
    _require.floating("x", x)
    require_power_of_two(block_rows=block_rows)
    width = power_of_two(n, LEAST_COLUMNS)
    x = padded(x, block_rows, width, value=padding)
    rows = pl.BlockSpec((block_rows, width), lambda i: (i, 0))
    row = pl.BlockSpec((1, width), lambda i: (0, 0))
    out = pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.shape[0] // block_rows,),
        in_specs=[rows, *(row for _ in weights)],
        out_specs=rows,
    )(x, *(padded(weight[None], 1, width) for weight in weights))
    return out[:m, :n]


def _check_weights(x: jax.Array, **weights: jax.Array) -> None:
    _, n = _require.axes("x", x, "m n")
    for name, weight in weights.items():
        (size,) = _require.axes(name, weight, "n")
        _require.same_size("n", ("x", n), (name, size))
        _require.floating(name, weight)


def portable_softmax(x: jax.Array, *, block_rows: int = LEAST_ROWS) -> jax.Array:
    """Softmax of each row; a row that is all ``-inf`` becomes all zeros.

    Args:
      x: ``(m, n)``, floating. A block, ``n`` rounded up to a power of two, is in registers on a
        GPU: with 16 rows of 1024 a thread of 128 has 128 of them.
      block_rows: rows in a block, a power of two of at least 16.

    Raises:
      ValueError: ``x`` is not a matrix, is empty or not floating, or ``block_rows`` is no such
        number.
    """
    return _by_rows(_softmax_kernel, x, block_rows=block_rows, padding=-jnp.inf)


def portable_rms_norm(
    x: jax.Array, w: jax.Array, *, eps: float = 1e-6, block_rows: int = LEAST_ROWS
) -> jax.Array:
    """``x / sqrt(mean(x^2) + eps) * w`` for each row.

    Args:
      x: ``(m, n)``, floating.
      w: ``(n,)``, floating.
      eps: added to the mean square.
      block_rows: as of ``portable_softmax``.

    Raises:
      ValueError: as ``portable_softmax``, or ``w`` does not fit ``x``.
    """
    _check_weights(x, w=w)
    kernel = functools.partial(_rms_norm_kernel, n=x.shape[1], eps=eps)
    return _by_rows(kernel, x, w, block_rows=block_rows)


def portable_layer_norm(
    x: jax.Array, w: jax.Array, b: jax.Array, *, eps: float = 1e-5, block_rows: int = LEAST_ROWS
) -> jax.Array:
    """``(x - mean) / sqrt(variance + eps) * w + b`` for each row.

    Args:
      x: ``(m, n)``, floating.
      w: ``(n,)``, floating.
      b: ``(n,)``, floating.
      eps: added to the variance.
      block_rows: as of ``portable_softmax``.

    Raises:
      ValueError: as ``portable_softmax``, or ``w`` or ``b`` does not fit ``x``.
    """
    _check_weights(x, w=w, b=b)
    kernel = functools.partial(_layer_norm_kernel, n=x.shape[1], eps=eps)
    return _by_rows(kernel, x, w, b, block_rows=block_rows)
