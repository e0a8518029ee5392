"""RMS norm over the last axis: ``o[i, j] = x[i, j] * r_i * w_j``, with
``r_i = 1 / sqrt(mean_j x[i, j]^2 + eps)``.

Zhang and Sennrich, "Root Mean Square Layer Normalization", 2019 (arXiv:1910.07467): a layer norm
that leaves the mean alone.

Shapes: ``x`` and ``o`` are ``(..., n)``, ``w (n,)``. Dtypes: float32 or bfloat16, which ``w`` may
have apart from ``x``; computed in float32, rounded once.

A program has whole rows, so one pass over HBM is enough. A block is exactly as wide as a row: then
the lanes of the last tile that lie beyond ``n`` are the compiler's business, and no mask is needed.

Backward, with ``y = x r`` and ``g = do w``: ``dx = r (g - y mean_j(g y))`` and ``dw = sum_i do y``.
The statistics are computed again from ``x``, which has to be read anyway. ``dw`` sums over all
rows: its block of the output is the same in every grid step, which makes the grid sequential.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels.reductions._rows import add_rows, check, fit_rows


def _scale_of(x: jax.Array, eps: float) -> jax.Array:
    """``1 / sqrt(mean(x^2) + eps)`` of every row, ``(rows, 1)``."""
    return jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + eps)


def _forward_kernel(x_ref: Any, w_ref: Any, o_ref: Any, *, eps: float) -> None:
    x = x_ref[...].astype(jnp.float32)
    o = x * _scale_of(x, eps) * w_ref[...].astype(jnp.float32)
    o_ref[...] = o.astype(o_ref.dtype)


def _backward_kernel(
    x_ref: Any, w_ref: Any, do_ref: Any, dx_ref: Any, dw_ref: Any, *, eps: float, rows: int
) -> None:
    x, do = x_ref[...].astype(jnp.float32), do_ref[...].astype(jnp.float32)
    scale = _scale_of(x, eps)
    y = x * scale
    g = do * w_ref[...].astype(jnp.float32)
    dx = scale * (g - y * jnp.mean(g * y, axis=1, keepdims=True))
    dx_ref[...] = dx.astype(dx_ref.dtype)
    add_rows(dw_ref, do * y, rows)


@functools.partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _rms_norm(x: jax.Array, w: jax.Array, eps: float, block: int) -> jax.Array:
    rows, n = x.shape
    by_rows = pl.BlockSpec((block, n), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(_forward_kernel, eps=eps),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(rows, block),),
        in_specs=[by_rows, pl.BlockSpec((1, n), lambda i: (0, 0))],
        out_specs=by_rows,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, w.reshape(1, n))


def _forward(
    x: jax.Array, w: jax.Array, eps: float, block: int
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return _rms_norm(x, w, eps, block), (x, w)


def _backward(
    eps: float, block: int, operands: tuple[jax.Array, jax.Array], do: jax.Array
) -> tuple[jax.Array, jax.Array]:
    x, w = operands
    rows, n = x.shape
    by_rows = pl.BlockSpec((block, n), lambda i: (i, 0))
    once = pl.BlockSpec((1, n), lambda i: (0, 0))
    dx, dw = pl.pallas_call(
        functools.partial(_backward_kernel, eps=eps, rows=rows),
        out_shape=(
            jax.ShapeDtypeStruct(x.shape, x.dtype),
            jax.ShapeDtypeStruct((1, n), jnp.float32),
        ),
        grid=(pl.cdiv(rows, block),),
        in_specs=[by_rows, once, by_rows],
        out_specs=(by_rows, once),
        # Every step adds to the same block of dw.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
    )(x, w.reshape(1, n), do)
    return dx, dw.reshape(n).astype(w.dtype)


_rms_norm.defvjp(_forward, _backward)


def rms_norm(
    x: jax.Array, w: jax.Array, *, eps: float = 1e-6, block_rows: int | None = None
) -> jax.Array:
    """RMS norm over the last axis. It can be differentiated by both operands, and vmapped.

    Args:
      x: ``(..., n)`` with at least one axis, float32 or bfloat16.
      w: ``(n,)``, float32 or bfloat16.
      eps: added to the mean square of a row; positive, so that a row of zeros gives zeros.
      block_rows: rows in a block; by default a power of two that makes about half a mebibyte of
        float32. A row and its buffers must fit in VMEM.

    Returns:
      The shape and dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, ``eps`` is not positive, or
        ``block_rows`` is not a positive integer.
    """
    rows, n = check(x, eps, block_rows, w=w)
    block = fit_rows(block_rows, rows, n)
    return _rms_norm(x.reshape(rows, n), w, eps, block).reshape(x.shape)


def reference(x: jax.Array, w: jax.Array, *, eps: float = 1e-6) -> jax.Array:
    """RMS norm over the last axis, in float32 at least."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    square = jnp.mean(wide * wide, axis=-1, keepdims=True)
    return (wide / jnp.sqrt(square + eps) * w.astype(wide.dtype)).astype(x.dtype)
