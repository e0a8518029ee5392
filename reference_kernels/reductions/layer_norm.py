"""Layer norm over the last axis: ``o[i, j] = (x[i, j] - m_i) r_i w_j + b_j``, with the mean
``m_i`` of row ``i`` and ``r_i = 1 / sqrt(mean_j (x[i, j] - m_i)^2 + eps)``.

Ba, Kiros and Hinton, "Layer Normalization", 2016 (arXiv:1607.06450).

Shapes: ``x`` and ``o`` are ``(..., n)``, ``w`` and ``b`` are ``(n,)``. Dtypes: float32 or bfloat16,
which ``w`` and ``b`` may have apart from ``x``; computed in float32, rounded once.

The whole row is in VMEM, so the variance is taken of ``x - m`` in a second pass over it. The
formula that needs one pass, ``mean(x^2) - m^2``, cancels where the mean is large: with a mean of
4096 and a deviation of 1, nothing is left of it in float32. A block is exactly as wide as a row, so
that the lanes beyond ``n`` are the compiler's business.

Backward, with ``y = (x - m) r`` and ``g = do w``: ``dx = r (g - mean_j g - y mean_j(g y))``,
``dw = sum_i do y`` and ``db = sum_i do``. The last two sum over all rows: their blocks of the
output are the same in every grid step, which makes the grid sequential.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels.reductions._rows import add_rows, check, fit_rows

Operands = tuple[jax.Array, jax.Array, jax.Array]


def _mean(x: jax.Array) -> jax.Array:
    return jnp.mean(x, axis=1, keepdims=True)


def _normalized(x: jax.Array, eps: float) -> tuple[jax.Array, jax.Array]:
    """Every row of ``x`` with mean 0 and variance 1, and the factor ``(rows, 1)`` it took."""
    centered = x - _mean(x)
    scale = jax.lax.rsqrt(_mean(centered * centered) + eps)
    return centered * scale, scale


def _forward_kernel(x_ref: Any, w_ref: Any, b_ref: Any, o_ref: Any, *, eps: float) -> None:
    y, _ = _normalized(x_ref[...].astype(jnp.float32), eps)
    o = y * w_ref[...].astype(jnp.float32) + b_ref[...].astype(jnp.float32)
    o_ref[...] = o.astype(o_ref.dtype)


def _backward_kernel(
    x_ref: Any,
    w_ref: Any,
    do_ref: Any,
    dx_ref: Any,
    dw_ref: Any,
    db_ref: Any,
    *,
    eps: float,
    rows: int,
) -> None:
    do = do_ref[...].astype(jnp.float32)
    y, scale = _normalized(x_ref[...].astype(jnp.float32), eps)
    g = do * w_ref[...].astype(jnp.float32)
    dx = scale * (g - _mean(g) - y * _mean(g * y))
    dx_ref[...] = dx.astype(dx_ref.dtype)
    add_rows(dw_ref, do * y, rows)
    add_rows(db_ref, do, rows)


@functools.partial(jax.custom_vjp, nondiff_argnums=(3, 4))
def _layer_norm(x: jax.Array, w: jax.Array, b: jax.Array, eps: float, block: int) -> jax.Array:
    rows, n = x.shape
    by_rows = pl.BlockSpec((block, n), lambda i: (i, 0))
    once = pl.BlockSpec((1, n), lambda i: (0, 0))
    return pl.pallas_call(
        functools.partial(_forward_kernel, eps=eps),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(rows, block),),
        in_specs=[by_rows, once, once],
        out_specs=by_rows,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, w.reshape(1, n), b.reshape(1, n))


def _forward(
    x: jax.Array, w: jax.Array, b: jax.Array, eps: float, block: int
) -> tuple[jax.Array, Operands]:
    return _layer_norm(x, w, b, eps, block), (x, w, b)


def _backward(eps: float, block: int, operands: Operands, do: jax.Array) -> Operands:
    x, w, b = operands
    rows, n = x.shape
    by_rows = pl.BlockSpec((block, n), lambda i: (i, 0))
    once = pl.BlockSpec((1, n), lambda i: (0, 0))
    total = jax.ShapeDtypeStruct((1, n), jnp.float32)
    dx, dw, db = pl.pallas_call(
        functools.partial(_backward_kernel, eps=eps, rows=rows),
        out_shape=(jax.ShapeDtypeStruct(x.shape, x.dtype), total, total),
        grid=(pl.cdiv(rows, block),),
        in_specs=[by_rows, once, by_rows],
        out_specs=(by_rows, once, once),
        # Every step adds to the same blocks of dw and db.
        compiler_params=pltpu.CompilerParams(dimension_semantics=("arbitrary",)),
    )(x, w.reshape(1, n), do)
    return dx, dw.reshape(n).astype(w.dtype), db.reshape(n).astype(b.dtype)


_layer_norm.defvjp(_forward, _backward)


def layer_norm(
    x: jax.Array,
    w: jax.Array,
    b: jax.Array,
    *,
    eps: float = 1e-5,
    block_rows: int | None = None,
) -> jax.Array:
    """Layer norm over the last axis. It can be differentiated by all operands, and vmapped.

    Args:
      x: ``(..., n)`` with at least one axis, float32 or bfloat16.
      w: the scale ``(n,)``, float32 or bfloat16.
      b: the shift ``(n,)``, float32 or bfloat16.
      eps: added to the variance of a row; positive, so that a row of equal numbers gives ``b``.
      block_rows: rows in a block; by default a power of two that makes about half a mebibyte of
        float32. A row and its buffers must fit in VMEM.

    Returns:
      The shape and dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, ``eps`` is not positive, or
        ``block_rows`` is not a positive integer.
    """
    rows, n = check(x, eps, block_rows, w=w, b=b)
    block = fit_rows(block_rows, rows, n)
    return _layer_norm(x.reshape(rows, n), w, b, eps, block).reshape(x.shape)


def reference(x: jax.Array, w: jax.Array, b: jax.Array, *, eps: float = 1e-5) -> jax.Array:
    """Layer norm over the last axis, in float32 at least."""
    wide = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    centered = wide - jnp.mean(wide, axis=-1, keepdims=True)
    variance = jnp.mean(centered * centered, axis=-1, keepdims=True)
    y = centered / jnp.sqrt(variance + eps)
    return (y * w.astype(wide.dtype) + b.astype(wide.dtype)).astype(x.dtype)
