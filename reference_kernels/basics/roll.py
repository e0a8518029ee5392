"""Rotations of a matrix: ``roll``, and ``skew``, which rolls each row by its own number.

``roll(x, s, axis)`` is ``jnp.roll``: along ``axis``, element i goes to ``(i + s) mod size``.
``skew`` is ``o[i, j] = x[i, (j - i) mod n]``: row i rolled by i. With it the scores of relative
positions, of which row i has its own, come to stand below each other (Huang et al., "Music
Transformer", 2018, arXiv:1809.04281, section 3.4).

Shapes: ``x`` and ``o`` are ``(m, n)``. Dtypes: 8, 16 and 32 bits.

``pltpu.roll`` is the rotate unit of the chip. It moves whole registers where it can, and the lanes
or sublanes within one for the rest, so the shift may be known only when the kernel runs. What is
rolled must be in the block whole; the other dimension is divided.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require, _tpu

#: Rows of a whole tile of 8-bit elements; whole tiles of wider ones, too.
_ROWS = 32

_PARALLEL = pltpu.CompilerParams(dimension_semantics=("parallel",))


def _roll_kernel(shift_ref: Any, x_ref: Any, o_ref: Any, *, axis: int) -> None:
    o_ref[...] = pltpu.roll(x_ref[...], shift_ref[0], axis)


def roll(x: jax.Array, shift: jax.Array, *, axis: int, block: int = 128) -> jax.Array:
    """``jnp.roll(x, shift, axis)`` for a shift that is not known before the kernel runs.

    Args:
      x: ``(m, n)``, of 8, 16 or 32 bits.
      shift: an int32 scalar, of any sign and size.
      axis: 0 or 1. All of it must fit in VMEM, ``block`` times.
      block: how many rows (``axis=1``) or columns (``axis=0``) are in a block. A TPU wants whole
        tiles, unless it is all of them.

    Raises:
      ValueError: ``x`` is not a matrix or is empty, ``shift`` is not a scalar of int32, ``axis`` is
        neither 0 nor 1, or ``block`` is not a positive integer.
    """
    shape = _require.axes("x", x, "m n")
    _require.positive(block=block)
    if axis not in (0, 1):
        raise ValueError(f"axis must be 0 or 1, but it is {axis!r}")
    if jnp.shape(shift) or jnp.result_type(shift) != jnp.int32:
        raise ValueError(f"shift must be a scalar of int32, but it is {jax.typeof(shift)}")
    other = 1 - axis
    block = _tpu.fit(block, shape[other], _tpu.LANES if axis == 0 else _ROWS)
    sizes = (shape[0], block) if axis == 0 else (block, shape[1])
    spec = pl.BlockSpec(sizes, lambda i: (0, i) if axis == 0 else (i, 0))
    return pl.pallas_call(
        functools.partial(_roll_kernel, axis=axis),
        out_shape=jax.ShapeDtypeStruct(shape, x.dtype),
        grid=(pl.cdiv(shape[other], block),),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), spec],
        out_specs=spec,
        compiler_params=_PARALLEL,
    )(jnp.remainder(shift, shape[axis]).reshape(1), x)


def reference(x: jax.Array, shift: jax.Array, *, axis: int) -> jax.Array:
    """``jnp.roll(x, shift, axis)``."""
    return jnp.roll(x, shift, axis)


def _skew_kernel(x_ref: Any, o_ref: Any) -> None:
    rows, n = x_ref.shape
    first = jax.lax.rem(pl.program_id(0) * rows, n)
    # Two rotations: one by different numbers must know them when the kernel is compiled.
    stepped = pltpu.roll(x_ref[...], 0, 1, stride=1, stride_axis=0)
    o_ref[...] = pltpu.roll(stepped, first, 1)


def skew(x: jax.Array, *, block_rows: int = 128) -> jax.Array:
    """``o[i, j] = x[i, (j - i) mod n]``: row i of ``x`` rolled by i to the right.

    Args:
      x: ``(m, n)``, of 32 bits, ``n`` a multiple of 128: the rotate unit knows no other period for
        rows that are rolled differently.
      block_rows: rows of a block; a multiple of 8 for a TPU, or all of them.

    Raises:
      ValueError: ``x`` is not a matrix, is empty, has another dtype or another number of columns,
        or ``block_rows`` is not a positive integer.
    """
    m, n = _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows)
    if n % _tpu.LANES:
        raise ValueError(f"x must have a multiple of 128 columns, but it has {n}; pad it")
    if x.dtype.itemsize != 4:
        raise ValueError(f"x must have a dtype of 32 bits, but its dtype is {x.dtype}")
    block_rows = _tpu.fit(block_rows, m, _tpu.ROWS)
    spec = pl.BlockSpec((block_rows, n), lambda i: (i, 0))
    return pl.pallas_call(
        _skew_kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(pl.cdiv(m, block_rows),),
        in_specs=[spec],
        out_specs=spec,
        compiler_params=_PARALLEL,
    )(x)


def skew_reference(x: jax.Array) -> jax.Array:
    """Row i of ``x`` rolled by i."""
    m, n = x.shape
    columns = (jnp.arange(n) - jnp.arange(m)[:, None]) % n
    return jnp.take_along_axis(x, columns, axis=1)
