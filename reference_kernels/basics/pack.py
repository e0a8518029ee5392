"""Narrow numbers in the words of wider ones: ``pack`` and ``unpack``.

A word of 32 bits takes ``p = 32 / bits`` numbers. ``pack`` puts the numbers ``x[0], ..., x[p - 1]``
of a place into one word, ``x[0]`` in the lowest bits: ``o[i, j] = sum_k (x[k, i, j] mod 2^bits)
2^(bits k)``. ``unpack`` is its inverse, with signs. Arrays of one shape lie beside each other in a
word, so no element changes its lane; ``as_words`` packs neighboring rows of one array instead.

Shapes: ``x`` is ``(p, m, n)``, the words are ``(m, n)`` of uint32. Dtypes: int32 for packed int16,
int8 and int4, of which the bits beyond are dropped; float32 for packed bfloat16, which are
rounded to the nearest.

Packed weights and masks halve or quarter what is read from HBM, and are unpacked in registers.

Only a TPU has these operations; interpreters of JAX do not know them. So the answers are verified
on a TPU only, and here it is verified that they compile.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require, _tpu

#: The wide dtype and the numbers of a word, by the packed dtype.
WIDE = {
    "bfloat16": ("float32", 2),
    "int16": ("int32", 2),
    "int8": ("int32", 4),
    "int4": ("int32", 8),
}

_PARALLEL = pltpu.CompilerParams(dimension_semantics=("parallel",))


def _pack_kernel(x_ref: Any, o_ref: Any, *, packed: str) -> None:
    numbers = [x_ref[k] for k in range(x_ref.shape[0])]
    o_ref[...] = pltpu.pack_elementwise(numbers, packed_dtype=jnp.dtype(packed))


def _unpack_kernel(words_ref: Any, o_ref: Any, *, packed: str) -> None:
    for k in range(o_ref.shape[0]):
        o_ref[k] = pltpu.unpack_elementwise(
            words_ref[...], index=k, packed_dtype=jnp.dtype(packed), unpacked_dtype=o_ref.dtype
        )


def pack(x: jax.Array, *, packed: str, block_rows: int = 64) -> jax.Array:
    """The numbers ``x[0]``, ``x[1]``, ... of each place in one word.

    Args:
      x: ``(p, m, n)``: float32 for bfloat16 (p is 2), or int32 for int16 (2), int8 (4), int4 (8).
      packed: the packed dtype.
      block_rows: rows of a block; a multiple of 8 for a TPU, or all of them.

    Returns:
      ``(m, n)``, uint32.

    Raises:
      ValueError: ``packed`` is another dtype, ``x`` has not three dimensions, p or its dtype is not
        that of ``packed``, it is empty, or ``block_rows`` is not a positive integer.
    """
    wide, count = _wide(packed)
    p, m, n = _require.axes("x", x, "p m n")
    if p != count or x.dtype != wide:
        raise ValueError(
            f"x must be {count} matrices of {wide} to be packed as {packed}, but it is "
            f"{jax.typeof(x)}"
        )
    _require.positive(block_rows=block_rows)
    block = _tpu.fit(block_rows, m, _tpu.ROWS)
    return pl.pallas_call(
        functools.partial(_pack_kernel, packed=packed),
        out_shape=jax.ShapeDtypeStruct((m, n), jnp.uint32),
        grid=(pl.cdiv(m, block),),
        in_specs=[pl.BlockSpec((p, block, n), lambda i: (0, i, 0))],
        out_specs=pl.BlockSpec((block, n), lambda i: (i, 0)),
        compiler_params=_PARALLEL,
    )(x)


def unpack(words: jax.Array, *, packed: str, block_rows: int = 64) -> jax.Array:
    """The numbers of each word: the inverse of ``pack``.

    Args:
      words: ``(m, n)``, uint32.
      packed: as for ``pack``.
      block_rows: as for ``pack``.

    Returns:
      ``(p, m, n)``, float32 or int32.

    Raises:
      ValueError: ``packed`` is another dtype, ``words`` is not a matrix of uint32 or is empty, or
        ``block_rows`` is not a positive integer.
    """
    wide, p = _wide(packed)
    m, n = _require.axes("words", words, "m n")
    if words.dtype != jnp.uint32:
        raise ValueError(f"words must be of uint32, but its dtype is {words.dtype}")
    _require.positive(block_rows=block_rows)
    block = _tpu.fit(block_rows, m, _tpu.ROWS)
    return pl.pallas_call(
        functools.partial(_unpack_kernel, packed=packed),
        out_shape=jax.ShapeDtypeStruct((p, m, n), jnp.dtype(wide)),
        grid=(pl.cdiv(m, block),),
        in_specs=[pl.BlockSpec((block, n), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((p, block, n), lambda i: (0, i, 0)),
        compiler_params=_PARALLEL,
    )(words)


def _wide(packed: str) -> tuple[str, int]:
    if packed not in WIDE:
        raise ValueError(f"packed must be one of {', '.join(WIDE)}, but it is {packed!r}")
    return WIDE[packed]


def pack_reference(x: jax.Array, *, packed: str) -> jax.Array:
    """The words, by shifts."""
    bits = 32 // x.shape[0]
    if packed == "bfloat16":
        numbers = jax.lax.bitcast_convert_type(x.astype(jnp.bfloat16), jnp.uint16)
    else:
        numbers = x
    low = numbers.astype(jnp.uint32) & (2**bits - 1)
    shifts = bits * jnp.arange(x.shape[0], dtype=jnp.uint32)[:, None, None]
    return (low << shifts).sum(axis=0, dtype=jnp.uint32)


def unpack_reference(words: jax.Array, *, packed: str) -> jax.Array:
    """The numbers, by shifts."""
    _, count = _wide(packed)
    bits = 32 // count
    # To the top of the word, and down again with the sign.
    shifts = jnp.uint32(32 - bits) - bits * jnp.arange(count, dtype=jnp.uint32)[:, None, None]
    top = words << shifts
    if packed == "bfloat16":
        return jax.lax.bitcast_convert_type(top & jnp.uint32(0xFFFF0000), jnp.float32)
    return jax.lax.bitcast_convert_type(top, jnp.int32) >> (32 - bits)
