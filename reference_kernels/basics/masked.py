"""Stores and loads under a mask: ``argmax`` of columns, and ``load_where``.

``argmax``: ``o[j] = min {i : x[i, j] = max_k x[k, j]}``, the row of the largest element of a
column, the first of several. It keeps the best of what it has seen and its row, one for each lane
and sublane (row modulo 8), and a masked store puts the better ones in their place and leaves the
others alone. At the end the 8 candidates of a column are compared. The grid goes through the rows
last, while the outputs of a block of columns stay in VMEM.

``load_where``: ``o = where(mask, x, other)`` with the mask on the load. What is not chosen is
unspecified and must be replaced. A TPU has no such load: only the portable interpreter knows it,
and elsewhere a load of everything and a ``where`` is the way.

Shapes: ``x`` is ``(m, n)``, as are ``mask`` and the answer of ``load_where``; that of ``argmax`` is
``(n,)``, int32. Dtypes: float32, bfloat16 or int32; a TPU stores under masks only words of 32
bits, so the candidates are float32 or int32.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require, _tpu

#: Rows that are compared at once: those of a tile of 32-bit words.
_STRIP = 8


def _argmax_kernel(x_ref: Any, o_ref: Any, best_ref: Any, row_ref: Any, *, m: int) -> None:
    rows = x_ref.shape[0]
    shape = best_ref.shape
    step = pl.program_id(1)

    @pl.when(step == 0)
    def _begin() -> None:
        best_ref[...] = jnp.full(shape, least(best_ref.dtype))
        row_ref[...] = jax.lax.broadcasted_iota(jnp.int32, shape, 0)

    @pl.loop(0, rows // _STRIP)
    def _compare(strip: Any) -> None:
        first = pl.multiple_of(strip * _STRIP, _STRIP)
        x = x_ref[pl.ds(first, _STRIP), :].astype(best_ref.dtype)
        row = step * rows + first + jax.lax.broadcasted_iota(jnp.int32, shape, 0)
        better = (x > best_ref[...]) & (row < m)
        pltpu.store(best_ref, x, mask=better)
        pltpu.store(row_ref, row, mask=better)

    @pl.when(step == pl.num_programs(1) - 1)
    def _finish() -> None:
        best = best_ref[...]
        largest = best == jnp.max(best, axis=0, keepdims=True)
        o_ref[...] = jnp.min(jnp.where(largest, row_ref[...], m), axis=0, keepdims=True)


def argmax(x: jax.Array, *, block_rows: int = 512, block_columns: int = 512) -> jax.Array:
    """The row of the largest element of each column, the first where there are several.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32, without NaN.
      block_rows: rows of a block, rounded up to a multiple of 16.
      block_columns: columns of a block; a multiple of 128 for a TPU, or all of them.

    Returns:
      ``(n,)``, int32.

    Raises:
      ValueError: ``x`` is not a matrix, is empty or has another dtype, or a block size is not a
        positive integer.
    """
    m, n = _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows, block_columns=block_columns)
    if x.dtype not in (jnp.float32, jnp.bfloat16, jnp.int32):
        raise ValueError(f"x must be of float32, bfloat16 or int32, but its dtype is {x.dtype}")
    rows = _tpu.fit(pl.align_to(block_rows, _tpu.ROWS), m, _tpu.ROWS)
    columns = min(block_columns, n)
    words = jnp.int32 if x.dtype == jnp.int32 else jnp.float32
    out = pl.pallas_call(
        functools.partial(_argmax_kernel, m=m),
        out_shape=jax.ShapeDtypeStruct((1, n), jnp.int32),
        grid=(pl.cdiv(n, columns), pl.cdiv(m, rows)),
        in_specs=[pl.BlockSpec((rows, columns), lambda j, i: (i, j))],
        out_specs=pl.BlockSpec((1, columns), lambda j, i: (0, j)),
        scratch_shapes=[
            pltpu.VMEM((_STRIP, columns), words),
            pltpu.VMEM((_STRIP, columns), jnp.int32),
        ],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "arbitrary")),
    )(x)
    return out[0]


def least(dtype: Any) -> Any:
    """What is not greater than any number of ``dtype``."""
    floating = jnp.issubdtype(dtype, jnp.floating)
    return jnp.array(-jnp.inf if floating else jnp.iinfo(dtype).min, dtype)


def _load_where_kernel(x_ref: Any, mask_ref: Any, o_ref: Any, *, other: float) -> None:
    mask = mask_ref[...]
    chosen = pltpu.load(x_ref, mask=mask)
    o_ref[...] = jnp.where(mask, chosen, jnp.asarray(other, o_ref.dtype))


def load_where(
    x: jax.Array, mask: jax.Array, *, other: float = 0, block_rows: int = 128
) -> jax.Array:
    """``where(mask, x, other)`` by a masked load.

    Args:
      x: ``(m, n)``, of any numeric dtype.
      mask: ``(m, n)``, bool.
      other: what takes the place of elements that are not chosen.
      block_rows: rows of a block.

    Raises:
      ValueError: ``x`` is not a matrix or is empty, ``mask`` is not of bool or has another shape,
        or ``block_rows`` is not a positive integer.
    """
    m, n = _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows)
    if mask.shape != x.shape or mask.dtype != jnp.bool_:
        raise ValueError(
            f"mask must be of bool and have the shape of x, {x.shape}, but it is {jax.typeof(mask)}"
        )
    block = min(block_rows, m)
    spec = pl.BlockSpec((block, n), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(_load_where_kernel, other=other),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(pl.cdiv(m, block),),
        in_specs=[spec, spec],
        out_specs=spec,
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x, mask)


def argmax_reference(x: jax.Array) -> jax.Array:
    """``jnp.argmax`` over the rows."""
    return jnp.argmax(x, axis=0).astype(jnp.int32)


def load_where_reference(x: jax.Array, mask: jax.Array, *, other: float = 0) -> jax.Array:
    """``where(mask, x, other)``."""
    return jnp.where(mask, x, jnp.asarray(other, x.dtype))
