"""RMS normalisation of rows, fused into one pass over HBM."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

_LANES = 128


def _kernel(x_ref, weight_ref, o_ref, *, n, eps):
    x = x_ref[...].astype(jnp.float32)
    # The block is wider than the row: what lies beyond is unspecified, and must not be summed.
    inside = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) < n
    mean_square = jnp.sum(jnp.where(inside, x * x, 0.0), axis=1, keepdims=True) / n
    scaled = x * jax.lax.rsqrt(mean_square + eps) * weight_ref[...].astype(jnp.float32)
    o_ref[...] = scaled.astype(o_ref.dtype)


def rms_norm(
    x: jax.Array, weight: jax.Array, *, eps: float = 1e-6, block_rows: int = 256
) -> jax.Array:
    """``x * weight / sqrt(mean(x**2, axis=-1) + eps)``, computed in float32.

    Args:
      x: ``(m, n)``, float32 or bfloat16. Neither ``m`` nor ``n`` need be a multiple of anything.
      weight: ``(n,)``, of the dtype of ``x``.
      eps: added to the mean square.
      block_rows: rows in a block; a block and its buffers must fit in VMEM.

    Returns:
      ``(m, n)`` of the dtype of ``x``.
    """
    m, n = x.shape
    rows, width = min(block_rows, m), pl.cdiv(n, _LANES) * _LANES
    return pl.pallas_call(
        functools.partial(_kernel, n=n, eps=eps),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(m, rows),),
        in_specs=[
            pl.BlockSpec((rows, width), lambda i: (i, 0)),
            pl.BlockSpec((1, width), lambda i: (0, 0)),
        ],
        out_specs=pl.BlockSpec((rows, width), lambda i: (i, 0)),
    )(x, weight.reshape(1, n))
