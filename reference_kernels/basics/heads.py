"""Layouts by names of dimensions: ``split_heads``, ``merge_heads`` and ``transpose``.

``split_heads`` turns ``(s, h d)``, the tokens as a projection leaves them, into ``(h, s, d)``, the
heads as attention wants them; ``merge_heads`` is its inverse. ``transpose`` is ``x.T``.

Dtypes: any of 8, 16 or 32 bits.

``pltpu.einshape`` reshapes and transposes by an equation, like ``einsum`` does products:
``"s(hd)->hsd"`` splits the second dimension in two and moves the first part to the front. Where
every step keeps whole tiles of registers together, as here with ``d`` a multiple of 128, it only
renames registers; otherwise data moves through the transpose unit.
``assert_is_tile_preserving=True`` makes the compiler refuse what is not free.

A block of tokens comes in with all heads and leaves with all heads, so each is read and written
once, and the grid divides the tokens only.
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


def _einshape_kernel(x_ref: Any, o_ref: Any, *, equation: str, free: bool, sizes: Any) -> None:
    o_ref[...] = pltpu.einshape(equation, x_ref[...], assert_is_tile_preserving=free, **sizes)


def split_heads(x: jax.Array, *, heads: int, block_tokens: int = 128) -> jax.Array:
    """``(s, heads d)`` to ``(heads, s, d)``.

    Args:
      x: ``(s, heads d)``.
      heads: number of heads, a divisor of the number of columns.
      block_tokens: tokens of a block; all heads of them must fit in VMEM, twice in and twice out. A
        TPU wants whole tiles, unless it is all of them.

    Raises:
      ValueError: ``x`` is not a matrix or is empty, ``heads`` does not divide its columns, or a
        size is not a positive integer.
    """
    s, width = _require.axes("x", x, "s heads*d")
    _require.positive(heads=heads, block_tokens=block_tokens)
    if width % heads:
        raise ValueError(f"heads must divide the columns of x, {width}, but it is {heads}")
    d = width // heads
    block = _tpu.fit(block_tokens, s, _ROWS)
    return pl.pallas_call(
        functools.partial(
            _einshape_kernel, equation="s(hd)->hsd", free=_is_free(block, d), sizes={"h": heads}
        ),
        out_shape=jax.ShapeDtypeStruct((heads, s, d), x.dtype),
        grid=(pl.cdiv(s, block),),
        in_specs=[pl.BlockSpec((block, width), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((heads, block, d), lambda i: (0, i, 0)),
        compiler_params=_PARALLEL,
    )(x)


def merge_heads(x: jax.Array, *, block_tokens: int = 128) -> jax.Array:
    """``(heads, s, d)`` to ``(s, heads d)``: the inverse of ``split_heads``.

    Args:
      x: ``(heads, s, d)``.
      block_tokens: as for ``split_heads``.

    Raises:
      ValueError: ``x`` has not three dimensions or is empty, or ``block_tokens`` is not a positive
        integer.
    """
    heads, s, d = _require.axes("x", x, "heads s d")
    _require.positive(block_tokens=block_tokens)
    block = _tpu.fit(block_tokens, s, _ROWS)
    return pl.pallas_call(
        functools.partial(
            _einshape_kernel, equation="hsd->s(hd)", free=_is_free(block, d), sizes={}
        ),
        out_shape=jax.ShapeDtypeStruct((s, heads * d), x.dtype),
        grid=(pl.cdiv(s, block),),
        in_specs=[pl.BlockSpec((heads, block, d), lambda i: (0, i, 0))],
        out_specs=pl.BlockSpec((block, heads * d), lambda i: (i, 0)),
        compiler_params=_PARALLEL,
    )(x)


def transpose(x: jax.Array, *, block: int = 512) -> jax.Array:
    """``x.T``.

    Args:
      x: ``(m, n)``.
      block: rows and columns of a block. A TPU wants a multiple of 128.

    Raises:
      ValueError: ``x`` is not a matrix or is empty, or ``block`` is not a positive integer.
    """
    m, n = _require.axes("x", x, "m n")
    _require.positive(block=block)
    rows, columns = (_tpu.fit(block, size, _tpu.LANES) for size in (m, n))
    return pl.pallas_call(
        functools.partial(_einshape_kernel, equation="mn->nm", free=False, sizes={}),
        out_shape=jax.ShapeDtypeStruct((n, m), x.dtype),
        grid=(pl.cdiv(m, rows), pl.cdiv(n, columns)),
        in_specs=[pl.BlockSpec((rows, columns), lambda i, j: (i, j))],
        out_specs=pl.BlockSpec((columns, rows), lambda i, j: (j, i)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(x)


def _is_free(tokens: int, d: int) -> bool:
    """Whether heads are whole tiles, so that nothing has to move."""
    return tokens % _ROWS == 0 and d % _tpu.LANES == 0


def split_reference(x: jax.Array, *, heads: int) -> jax.Array:
    """The columns in ``heads`` groups, one after the other."""
    return jnp.swapaxes(x.reshape(x.shape[0], heads, -1), 0, 1)


def merge_reference(x: jax.Array) -> jax.Array:
    """The heads beside each other."""
    return jnp.swapaxes(x, 0, 1).reshape(x.shape[1], -1)
