"""Matrix product ``o = x @ y`` on a grid over the output, by one kernel for TPUs and GPUs.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtypes: float32, bfloat16 or float16, alike.

A GPU has no order among the programs of a grid, so a third grid axis with an accumulator between
its steps, as a TPU likes it, is not portable. Each program owns a block of ``o`` and walks ``k``
itself: its rows of ``x`` and columns of ``y`` are blocks as long as ``k``, of which it loads
``block_k`` at a time. On a GPU such a block is a pointer and costs nothing; on a TPU both are
copied to VMEM whole, which bounds ``k``.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from reference_kernels import _require
from reference_kernels.portable._blocks import (
    largest_that_fits,
    padded,
    product,
    require_power_of_two,
)


def _matmul_kernel(x_ref: Any, y_ref: Any, o_ref: Any, *, block_k: int) -> None:
    def step(i: Any, total: jax.Array) -> jax.Array:
        here = pl.ds(pl.multiple_of(i * block_k, block_k), block_k)
        return total + product(x_ref[:, here], y_ref[here, :])

    steps = x_ref.shape[1] // block_k
    total = jax.lax.fori_loop(0, steps, step, jnp.zeros(o_ref.shape, jnp.float32))
    o_ref[...] = total.astype(o_ref.dtype)


def portable_matmul(
    x: jax.Array,
    y: jax.Array,
    *,
    block_m: int | None = None,
    block_n: int = 128,
    block_k: int = 128,
) -> jax.Array:
    """``x @ y``, summed in float32.

    Args:
      x: ``(m, k)``, float32, bfloat16 or float16.
      y: ``(k, n)``, of the dtype of ``x``.
      block_m: rows of a block of the output, a power of two of at least 16; by default 64, or as
        many as fit in the shared memory of a GPU: 32 of float32.
      block_n: its columns, a power of two of at least 128 for a TPU.
      block_k: how much of ``k`` is multiplied at once, as ``block_n``.

    Raises:
      ValueError: the operands do not fit each other, or a block is not a power of two.
    """
    m, k = _require.axes("x", x, "m k")
    inner, n = _require.axes("y", y, "k n")
    _require.same_size("k", ("x", k), ("y", inner))
    _require.same_dtype(x=x, y=y)
    _require.floating("x", x)
    if block_m is None:
        block_m = largest_that_fits(
            64, lambda rows: (rows + block_n) * block_k, lambda rows: 0, x.dtype.itemsize
        )
    require_power_of_two(block_m=block_m, block_n=block_n, block_k=block_k)
    x, y = padded(x, block_m, block_k), padded(y, block_k, block_n)
    length = x.shape[1]
    out = pl.pallas_call(
        functools.partial(_matmul_kernel, block_k=block_k),
        out_shape=jax.ShapeDtypeStruct((x.shape[0], y.shape[1]), x.dtype),
        grid=(x.shape[0] // block_m, y.shape[1] // block_n),
        in_specs=[
            pl.BlockSpec((block_m, length), lambda i, j: (i, 0)),
            pl.BlockSpec((length, block_n), lambda i, j: (0, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j: (i, j)),
    )(x, y)
    return out[:m, :n]
