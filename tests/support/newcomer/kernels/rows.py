"""Kernels over blocks of rows."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def _by_rows(body, x, rows, steps):
    block = pl.BlockSpec((rows, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(steps,),
        in_specs=[block],
        out_specs=block,
    )(x)


def layer_norm(x, *, rows=16):
    """Rows of x with mean 0 and variance 1."""

    def body(x_ref, o_ref):
        x = x_ref[...].astype(jnp.float32)
        centered = x - x.mean(axis=-1, keepdims=True)
        variance = (centered * centered).mean(axis=-1, keepdims=True)
        o_ref[...] = (centered * jax.lax.rsqrt(variance + 1e-5)).astype(o_ref.dtype)

    return _by_rows(body, x, rows, pl.cdiv(x.shape[0], rows))


def layer_norm_reference(x):
    centered = x - x.mean(axis=-1, keepdims=True)
    variance = (centered * centered).mean(axis=-1, keepdims=True)
    return centered * jax.lax.rsqrt(variance + 1e-5)


def wrong_layer_norm(x, *, rows=16):
    """The last rows are forgotten where they fill no block."""

    def body(x_ref, o_ref):
        x = x_ref[...].astype(jnp.float32)
        centered = x - x.mean(axis=-1, keepdims=True)
        variance = (centered * centered).mean(axis=-1, keepdims=True)
        o_ref[...] = (centered * jax.lax.rsqrt(variance + 1e-5)).astype(o_ref.dtype)

    return _by_rows(body, x, rows, max(1, x.shape[0] // rows))


def softmax(x, *, rows=8):
    """The softmax of each row."""

    def body(x_ref, o_ref):
        x = x_ref[...].astype(jnp.float32)
        powers = jnp.exp(x - x.max(axis=-1, keepdims=True))
        o_ref[...] = (powers / powers.sum(axis=-1, keepdims=True)).astype(o_ref.dtype)

    return _by_rows(body, x, rows, pl.cdiv(x.shape[0], rows))


def wrong_softmax(x, *, rows=8):
    """The maximum is taken over the block, so that rows of small numbers underflow."""

    def body(x_ref, o_ref):
        x = x_ref[...].astype(jnp.float32)
        powers = jnp.exp(x - x.max())
        o_ref[...] = (powers / powers.sum(axis=-1, keepdims=True)).astype(o_ref.dtype)

    return _by_rows(body, x, rows, pl.cdiv(x.shape[0], rows))
