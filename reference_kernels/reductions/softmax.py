"""Softmax over the last axis: ``o[i, j] = exp(x[i, j] - max_i) / sum_j exp(x[i, j] - max_i)``.

Shapes: ``x`` and ``o`` are ``(..., n)``. Dtypes: float32 or bfloat16, computed in float32.

Taking the maximum of the row first keeps ``exp`` from overflowing. An entry of ``-inf`` gets the
weight zero; a row that has nothing else has no softmax, and is all zeros here, which is what
attention wants of a fully masked row (``jax.nn.softmax`` gives NaN).

A program has whole rows, so one pass over HBM is enough. The block is as wide as the row, rounded
up to 128 lanes; the lanes beyond ``n`` hold unspecified numbers, and are set to ``-inf`` before
they can reach the maximum and the sum.

Backward: ``dx = o (do - sum_j o do)``. The kernel computes ``o`` again from ``x``: that reads as
many bytes as a saved ``o`` would, and has no rounding of ``o`` to bfloat16 in it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require

#: Columns of a whole tile.
_LANES = 128

_BLOCK_ELEMENTS = 256 * 1024


def _rows_of(x: jax.Array, n: int) -> jax.Array:
    """Softmax of the first ``n`` columns of ``x``, in float32; the columns beyond are zero."""
    inside = jax.lax.broadcasted_iota(jnp.int32, x.shape, 1) < n
    x = jnp.where(inside, x.astype(jnp.float32), -jnp.inf)
    top = jnp.max(x, axis=1, keepdims=True)
    weights = jnp.exp(x - jnp.where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(weights, axis=1, keepdims=True)
    # One reciprocal a row. The compiler makes the same code of a division by a column.
    return weights * pltpu.reciprocal(jnp.where(total == 0.0, 1.0, total))


def _forward_kernel(x_ref: Any, o_ref: Any, *, n: int) -> None:
    o_ref[...] = _rows_of(x_ref[...], n).astype(o_ref.dtype)


def _backward_kernel(x_ref: Any, do_ref: Any, dx_ref: Any, *, n: int) -> None:
    o = _rows_of(x_ref[...], n)
    # o is zero beyond n, but zero times NaN is not.
    inside = jax.lax.broadcasted_iota(jnp.int32, o.shape, 1) < n
    do = jnp.where(inside, do_ref[...].astype(jnp.float32), 0.0)
    dx = o * (do - jnp.sum(o * do, axis=1, keepdims=True))
    dx_ref[...] = dx.astype(dx_ref.dtype)


def _by_rows(
    kernel: Callable[..., None], block_rows: int | None, *operands: jax.Array
) -> jax.Array:
    """Run ``kernel`` over blocks of whole rows of ``operands``, which are alike in shape."""
    shape, dtype = operands[0].shape, operands[0].dtype
    n = shape[-1]
    width = pl.cdiv(n, _LANES) * _LANES
    flat = [operand.reshape(-1, n) for operand in operands]
    rows = flat[0].shape[0]
    # A mebibyte of float32 for a block, but 8 rows at least, and not more than there are.
    block = min(block_rows or max(8, _BLOCK_ELEMENTS // width // 32 * 32), rows)
    spec = pl.BlockSpec((block, width), lambda i: (i, 0))
    out = pl.pallas_call(
        functools.partial(kernel, n=n),
        out_shape=jax.ShapeDtypeStruct((rows, n), dtype),
        grid=(pl.cdiv(rows, block),),
        in_specs=[spec] * len(flat),
        out_specs=spec,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(*flat)
    return out.reshape(shape)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1,))
def _softmax(x: jax.Array, block_rows: int | None) -> jax.Array:
    return _by_rows(_forward_kernel, block_rows, x)


def _forward(x: jax.Array, block_rows: int | None) -> tuple[jax.Array, jax.Array]:
    return _softmax(x, block_rows), x


def _backward(block_rows: int | None, x: jax.Array, do: jax.Array) -> tuple[jax.Array]:
    return (_by_rows(_backward_kernel, block_rows, x, do),)


_softmax.defvjp(_forward, _backward)


def softmax(x: jax.Array, *, block_rows: int | None = None) -> jax.Array:
    """Softmax over the last axis. It can be differentiated, and vmapped.

    Args:
      x: ``(..., n)`` with at least one axis, float32 or bfloat16. Entries may be ``-inf``.
      block_rows: rows in a block; by default as many as make a mebibyte of float32. A row and its
        buffers must fit in VMEM: 16 MB hold an ``n`` of 100,000, and half of that backward.

    Returns:
      The shape and dtype of ``x``. Rows that are all ``-inf`` are all zeros.

    Raises:
      ValueError: ``x`` is a scalar, empty or not floating, or ``block_rows`` is not positive.
    """
    if x.ndim == 0:
        raise ValueError("x must have the shape (..., n), but it is a scalar")
    _require.nonempty("x", x)
    _require.floating("x", x)
    if block_rows is not None:
        _require.positive(block_rows=block_rows)
    return _softmax(x, block_rows)


def reference(x: jax.Array) -> jax.Array:
    """Softmax over the last axis in float32 at least; rows that are all ``-inf`` give zeros."""
    x32 = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    top = jax.lax.stop_gradient(jnp.max(x32, axis=-1, keepdims=True))
    weights = jnp.exp(x32 - jnp.where(top == -jnp.inf, 0.0, top))
    total = jnp.sum(weights, axis=-1, keepdims=True)
    return (weights / jnp.where(total == 0.0, 1.0, total)).astype(x.dtype)
