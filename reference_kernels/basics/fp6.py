"""Numbers of 6 bits in planes of 2 and 4 bits: ``split_fp6`` and ``dequantize_fp6``.

A float of 6 bits, e2m3: sign s, exponent e of 2 bits, mantissa f of 3 bits. Its value is ``(-1)^s
2^(e - 1) (1 + f / 8)`` for e > 0, and ``(-1)^s f / 8`` for e = 0: multiples of 1/8 up to 7.5 (OCP
Microscaling Formats Specification, version 1.0, 2023, section 5.3.2).

Kept in bytes, a quarter of the memory would be wasted. Two planes need no more than 6 bits: the
upper two bits of each number (s and the upper bit of e) in one, the lower four (the rest of e and
f) in the other. ``split_fp6`` makes the planes, once, when weights are prepared; ``dequantize_fp6``
joins them as they come and makes floats, as a kernel does in front of its matmul.

Shapes: codes and values are ``(m, n)``, the planes ``(m / 4, n)`` and ``(m / 2, n)``: a byte of a
  plane holds 4 or 2 consecutive rows, the first of them in its lowest bits, which is how registers
  hold them. Dtypes: int8 codes from 0 to 63, int8 planes, float32 values. Planes of int2 and int4
  would be the same bytes, but XLA refuses or dies of many programs with arrays of int2 (libtpu
  0.0.50).

Only Mosaic has these operations, from JAX 0.12 on, and no interpreter. So the answers are verified
on a TPU only, and here it is verified that they compile.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require, _tpu

#: Rows of a whole tile of 2-bit elements.
_ROWS = 128


def _split_kernel(codes_ref: Any, two_ref: Any, four_ref: Any, *, by_widths: bool) -> None:
    codes = codes_ref[...]
    if by_widths:
        four, two = pltpu.split_bits(codes, (4, 2))  # the lowest bits first
    else:
        two, four = pltpu.pack_fp6(codes)
    two_ref[...] = pltpu.bitcast(two, jnp.int8)
    four_ref[...] = pltpu.bitcast(four, jnp.int8)


def split_fp6(
    codes: jax.Array, *, by_widths: bool = False, block_rows: int = 128
) -> tuple[jax.Array, jax.Array]:
    """The upper 2 and the lower 4 bits of numbers of 6 bits.

    Args:
      codes: ``(m, n)``, int8, from 0 to 63; m a multiple of 4, because no byte is half full.
      by_widths: whether to say the widths, ``split_bits(codes, (4, 2))``, rather than ``pack_fp6``.
        Other widths of 2 and 4 would do as well.
      block_rows: rows of codes in a block, rounded up to a multiple of 128.

    Returns:
      ``(m / 4, n)`` and ``(m / 2, n)``, int8.

    Raises:
      ValueError: ``codes`` is not a matrix of int8, is empty or has another number of rows, or
        ``block_rows`` is not a positive integer.
    """
    m, n = _require.axes("codes", codes, "m n")
    _require.positive(block_rows=block_rows)
    if codes.dtype != jnp.int8:
        raise ValueError(f"codes must be of int8, but its dtype is {codes.dtype}")
    if m % 4:
        raise ValueError(f"codes must have a multiple of 4 rows, but it has {m}; pad it")
    shapes = tuple(jax.ShapeDtypeStruct((m // rows, n), jnp.int8) for rows in (4, 2))
    kernel = functools.partial(_split_kernel, by_widths=by_widths)
    return _call(kernel, (codes,), shapes, block_rows)


def _dequantize_kernel(two_ref: Any, four_ref: Any, o_ref: Any, *, by_widths: bool) -> None:
    two = pltpu.bitcast(two_ref[...], jnp.int2)
    four = pltpu.bitcast(four_ref[...], jnp.int4)
    if by_widths:
        codes = pltpu.join_bits(two_bits=two, four_bits=four)
    else:
        codes = pltpu.unpack_fp6(two, four)
    o_ref[...] = _e2m3(codes.astype(jnp.int32))


def _e2m3(codes: jax.Array) -> jax.Array:
    """The float32 of each code, by integers: eighths of 8 + f, shifted by the exponent."""
    exponent, mantissa = (codes >> 3) & 3, codes & 7
    eighths = jnp.where(exponent > 0, (8 + mantissa) << jnp.maximum(exponent - 1, 0), mantissa)
    magnitude = eighths.astype(jnp.float32) * 0.125
    return jnp.where(codes & 32 != 0, -magnitude, magnitude)


def dequantize_fp6(
    two: jax.Array, four: jax.Array, *, by_widths: bool = False, block_rows: int = 128
) -> jax.Array:
    """The values of numbers of 6 bits, from their planes.

    Args:
      two: ``(m / 4, n)``, int8: the upper bits.
      four: ``(m / 2, n)``, int8: the lower bits.
      by_widths: whether to join by ``join_bits`` rather than ``unpack_fp6``.
      block_rows: rows of values in a block, rounded up to a multiple of 128.

    Returns:
      ``(m, n)``, float32.

    Raises:
      ValueError: ``two`` or ``four`` is not a matrix of int8 or is empty, they do not belong
        together, or ``block_rows`` is not a positive integer.
    """
    quarter, n = _require.axes("two", two, "m/4 n")
    _require.axes("four", four, "m/2 n")
    _require.positive(block_rows=block_rows)
    for name, plane in (("two", two), ("four", four)):
        if plane.dtype != jnp.int8:
            raise ValueError(f"{name} must be of int8, but its dtype is {plane.dtype}")
    if four.shape != (2 * quarter, n):
        raise ValueError(f"four must have the shape {(2 * quarter, n)}, but it is {four.shape}")
    shape = jax.ShapeDtypeStruct((4 * quarter, n), jnp.float32)
    kernel = functools.partial(_dequantize_kernel, by_widths=by_widths)
    return _call(kernel, (two, four), shape, block_rows)


def _call(kernel: Any, args: tuple[jax.Array, ...], out_shape: Any, block_rows: int) -> Any:
    arrays = [*args, *jax.tree.leaves(out_shape)]
    m = max(array.shape[0] for array in arrays)
    block = _tpu.fit(pl.align_to(block_rows, _ROWS), m, _ROWS)

    def spec(array: Any) -> pl.BlockSpec:
        rows, n = array.shape
        return pl.BlockSpec((block * rows // m, n), lambda i: (i, 0))

    return pl.pallas_call(
        kernel,
        out_shape=out_shape,
        grid=(pl.cdiv(m, block),),
        in_specs=[spec(array) for array in args],
        out_specs=jax.tree.map(spec, out_shape),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(*args)


def split_reference(codes: jax.Array, *, by_widths: bool = False) -> tuple[jax.Array, jax.Array]:
    """The planes, by shifts."""
    del by_widths
    return _together(codes >> 4, 2), _together(codes & 15, 4)


def _together(numbers: jax.Array, bits: int) -> jax.Array:
    """Consecutive rows of numbers of so many bits in bytes."""
    rows = numbers.astype(jnp.uint8).reshape(-1, 8 // bits, numbers.shape[1])
    shifts = bits * jnp.arange(8 // bits, dtype=jnp.uint8)[:, None]
    return (rows << shifts).sum(axis=1, dtype=jnp.uint8).astype(jnp.int8)


def dequantize_reference(two: jax.Array, four: jax.Array, *, by_widths: bool = False) -> jax.Array:
    """Looked up in the table of all 64 values."""
    del by_widths
    codes = 16 * _apart(two, 2) + _apart(four, 4)
    table = np.arange(64, dtype=np.uint8).view(ml_dtypes.float6_e2m3fn).astype(np.float32)
    return jnp.asarray(table)[codes]


def _apart(plane: jax.Array, bits: int) -> jax.Array:
    """The numbers of so many bits in bytes, in rows."""
    shifts = bits * jnp.arange(8 // bits, dtype=jnp.uint8)[:, None]
    numbers = (plane.astype(jnp.uint8)[:, None, :] >> shifts) & (2**bits - 1)
    return numbers.reshape(-1, plane.shape[1]).astype(jnp.int32)
