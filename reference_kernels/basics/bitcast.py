"""The bits of numbers: ``as_words`` views narrow rows as words, ``sort_keys`` orders floats.

``as_words`` reads ``p = 32 / bits`` consecutive rows as one row of 32-bit words, the first of them
in the lowest bits: ``o[i, j] = x[p i, j] + 2^bits x[p i + 1, j] + ...``. ``from_words`` is its
inverse. That is how a TPU keeps narrow types in registers, so both are free.

``sort_keys`` maps float32 to int32 so that the order of the integers is that of the numbers, -0
below 0 and NaN beyond the infinities (the total order of IEEE 754). Positive floats are ordered as
their bits are; of negative ones all bits but the sign are flipped: ``b ^ ((b >> 31) &
0x7fffffff)``. A kernel that searches a threshold by bisection of bits (top-k) begins like that.

``pltpu.bitcast`` keeps the rank: with another width it scales the last but one dimension, which is
along sublanes, and not the last one as ``lax.bitcast_convert_type`` does, which would be across
lanes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require, _tpu

_PARALLEL = pltpu.CompilerParams(dimension_semantics=("parallel",))

#: Bits of a register's word.
_WORD = 32


def _bitcast_kernel(x_ref: Any, o_ref: Any) -> None:
    o_ref[...] = pltpu.bitcast(x_ref[...], o_ref.dtype)


def as_words(x: jax.Array, *, block_rows: int = 256) -> jax.Array:
    """``(p m, n)`` of a narrow dtype as ``(m, n)`` words of uint32, p rows in each.

    Args:
      x: ``(p m, n)``, of 16 bits (p is 2) or 8 bits (p is 4).
      block_rows: rows of words in a block; a multiple of 8 for a TPU, or all of them.

    Raises:
      ValueError: ``x`` is not a matrix, is empty, has another dtype, or a number of rows that p
        does not divide, or ``block_rows`` is not a positive integer.
    """
    rows, n = _require.axes("x", x, "rows n")
    _require.positive(block_rows=block_rows)
    packing = _packing("x", x.dtype)
    if rows % packing:
        raise ValueError(f"x must have a multiple of {packing} rows, but it has {rows}; pad it")
    return _bitcast(x, (rows // packing, n), jnp.dtype("uint32"), block_rows)


def from_words(words: jax.Array, *, dtype: Any, block_rows: int = 256) -> jax.Array:
    """``(m, n)`` words of uint32 as ``(p m, n)`` of a narrow dtype: the inverse of ``as_words``.

    Args:
      words: ``(m, n)``, uint32.
      dtype: of 16 bits (p is 2) or 8 bits (p is 4).
      block_rows: as for ``as_words``.

    Raises:
      ValueError: ``words`` is not a matrix of uint32 or is empty, ``dtype`` has another width, or
        ``block_rows`` is not a positive integer.
    """
    m, n = _require.axes("words", words, "m n")
    _require.positive(block_rows=block_rows)
    if words.dtype != jnp.uint32:
        raise ValueError(f"words must be of uint32, but its dtype is {words.dtype}")
    return _bitcast(words, (m * _packing("dtype", dtype), n), jnp.dtype(dtype), block_rows)


def _bitcast(x: jax.Array, shape: tuple[int, int], dtype: Any, block_rows: int) -> jax.Array:
    rows = min(x.shape[0], shape[0])
    block = _tpu.fit(block_rows, rows, _tpu.ROWS)

    def spec(height: int) -> pl.BlockSpec:
        return pl.BlockSpec((block * (height // rows), x.shape[1]), lambda i: (i, 0))

    return pl.pallas_call(
        _bitcast_kernel,
        out_shape=jax.ShapeDtypeStruct(shape, dtype),
        grid=(pl.cdiv(rows, block),),
        in_specs=[spec(x.shape[0])],
        out_specs=spec(shape[0]),
        compiler_params=_PARALLEL,
    )(x)


def _packing(name: str, dtype: Any) -> int:
    bits = 8 * jnp.dtype(dtype).itemsize
    if bits not in (8, 16):
        raise ValueError(f"{name} must have a dtype of 8 or 16 bits, but it is {jnp.dtype(dtype)}")
    return _WORD // bits


def _sort_keys_kernel(x_ref: Any, o_ref: Any) -> None:
    bits = pltpu.bitcast(x_ref[...], jnp.int32)
    o_ref[...] = bits ^ ((bits >> 31) & 0x7FFFFFFF)


def sort_keys(x: jax.Array, *, block_rows: int = 256) -> jax.Array:
    """Integers in the order of the numbers ``x``.

    Args:
      x: ``(m, n)``, float32.
      block_rows: rows of a block; a multiple of 8 for a TPU, or all of them.

    Returns:
      ``(m, n)``, int32.

    Raises:
      ValueError: ``x`` is not a matrix of float32 or is empty, or ``block_rows`` is not a positive
        integer.
    """
    m, n = _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows)
    if x.dtype != jnp.float32:
        raise ValueError(f"x must be of float32, but its dtype is {x.dtype}")
    block = _tpu.fit(block_rows, m, _tpu.ROWS)
    spec = pl.BlockSpec((block, n), lambda i: (i, 0))
    return pl.pallas_call(
        _sort_keys_kernel,
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.int32),
        grid=(pl.cdiv(m, block),),
        in_specs=[spec],
        out_specs=spec,
        compiler_params=_PARALLEL,
    )(x)


def as_words_reference(x: jax.Array) -> jax.Array:
    """Each ``p`` rows as one, by shifts."""
    x = x.astype(_narrow(x.dtype))
    bits = 8 * x.dtype.itemsize
    packing = _WORD // bits
    unsigned = jax.lax.bitcast_convert_type(x, jnp.dtype(f"uint{bits}")).astype(jnp.uint32)
    parts = unsigned.reshape(-1, packing, x.shape[1])
    shifts = jnp.arange(packing, dtype=jnp.uint32)[:, None] * bits
    return (parts << shifts).sum(axis=1, dtype=jnp.uint32)


def from_words_reference(words: jax.Array, *, dtype: Any) -> jax.Array:
    """Each row as ``p`` rows, by shifts."""
    bits = 8 * jnp.dtype(dtype).itemsize
    shifts = jnp.arange(_WORD // bits, dtype=jnp.uint32)[:, None] * bits
    parts = (words.astype(jnp.uint32)[:, None, :] >> shifts).reshape(-1, words.shape[1])
    unsigned = parts.astype(jnp.dtype(f"uint{bits}"))
    return jax.lax.bitcast_convert_type(unsigned, jnp.dtype(dtype))


def sort_keys_reference(x: jax.Array) -> jax.Array:
    """The place of each number: its magnitude's bits, and below zero the complement of them."""
    magnitude = jax.lax.bitcast_convert_type(jnp.abs(x).astype(jnp.float32), jnp.int32)
    return jnp.where(jnp.signbit(x), ~magnitude, magnitude)


def _narrow(dtype: Any) -> Any:
    """The dtype whose bits are meant: a bfloat16 that was widened is one still."""
    return jnp.bfloat16 if dtype == jnp.float64 else dtype
