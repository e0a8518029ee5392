"""Sum of every row and its two neighbors, over as many rows as there are at run time.

``o[i] = x[i - 1] + x[i] + x[i + 1]`` for ``i < rows``, where rows before 0 and from ``rows`` on
count as zero; ``o[i] = 0`` for the others.

Shapes: ``x`` and ``o`` are ``(m, n)``, ``rows`` is an int32 scalar. Dtypes: float32 or bfloat16;
the sums are float32.

A block of the output needs its own rows of ``x`` and one more on either side. Blocks of a
``BlockSpec`` do not overlap, but windows of ``pl.Element`` may: their index map says at which
element they start. A TPU fetches whole tiles, so the halo is a tile on either side, and if one
dimension of a window is an ``Element``, all must be. There is nothing before the first row and
after the last, so those two windows are moved inwards, and the kernel finds its rows in another
place of them. It puts them into a scratch in float32, between the row before and the row after, and
adds three loads that are one row apart.

``pl.Element(size, padding=(before, after))`` fetches windows that begin before the array, and
spares the moving: see ``halo_stencil_padded``. Only the portable interpreter can do that. The TPU's
compiler says so, and the TPU interpreter ignores the padding (JAX 0.12.0.1).

``rows`` is a traced value, and so is the grid: programs for rows that do not exist are not run.
What they would have written is unspecified, so zeros replace it outside of the kernel, where XLA
fuses them with whatever reads the result. The grid is not ``parallel``, because the TPU interpreter
takes no such dimension of a size that is known at run time (JAX 0.12.0.1).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._tpu import ROWS, fit

#: Rows of a tile of float32.
_HALO = 8


def _stencil_kernel(rows_ref: Any, x_ref: Any, o_ref: Any, own_ref: Any, *, start: Any) -> None:
    block, rows = o_ref.shape[0], rows_ref[0]
    first = pl.program_id(0) * block
    here = pl.multiple_of(first - start(pl.program_id(0)), ROWS)  # in the window
    last_tile = x_ref.shape[0] - ROWS

    @pl.loop(0, block // ROWS)  # a strip at a time, which fits in the registers
    def _own_rows(strip: Any) -> None:
        at = pl.multiple_of(strip * ROWS, ROWS)
        # The last block may end after the window does; nothing of the tile read there is kept.
        tile = pl.multiple_of(jnp.minimum(here + at, last_tile), ROWS)
        x = x_ref[pl.ds(tile, ROWS)].astype(jnp.float32)
        row = first + at + jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
        own_ref[pl.ds(at + _HALO, ROWS)] = jnp.where(row < rows, x, 0.0)

    above = x_ref[pl.ds(pl.multiple_of(jnp.maximum(here - ROWS, 0), ROWS), ROWS)]
    above = above.astype(jnp.float32)[ROWS - 1 :]
    own_ref[_HALO - 1 : _HALO] = jnp.where(first > 0, above, 0.0)

    below = x_ref[pl.ds(pl.multiple_of(jnp.minimum(here + block, last_tile), ROWS), ROWS)]
    below = below.astype(jnp.float32)[:1]
    own_ref[_HALO + block : _HALO + block + 1] = jnp.where(first + block < rows, below, 0.0)

    @pl.loop(0, block // ROWS)
    def _sums(strip: Any) -> None:
        at = pl.multiple_of(strip * ROWS, ROWS)
        around = own_ref.at[pl.ds(at, ROWS + 2 * _HALO)]
        before, own, after = (around[pl.ds(_HALO + shift, ROWS)] for shift in (-1, 0, 1))
        o_ref[pl.ds(at, ROWS)] = (before + own + after).astype(o_ref.dtype)


def _stencil(x: jax.Array, rows: Any, block_rows: int, window: pl.Element, start: Any) -> jax.Array:
    """The stencil with windows whose first row is ``start(i)``, or less where they are padded."""
    n = x.shape[1]
    rows = jnp.asarray(rows, jnp.int32)
    before, _ = window.padding
    whole_rows: tuple[pl.BlockDim, ...] = (window, pl.Element(n))
    sums = pl.pallas_call(
        functools.partial(_stencil_kernel, start=start),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(rows, block_rows),),
            in_specs=[pl.BlockSpec(whole_rows, lambda i, _: (start(i) + before, 0))],
            out_specs=pl.BlockSpec((block_rows, n), lambda i, _: (i, 0)),
            scratch_shapes=[pltpu.VMEM((block_rows + 2 * _HALO, n), jnp.float32)],
        ),
    )(rows[None], x)
    return jnp.where(jnp.arange(len(x))[:, None] < rows, sums, 0)


def _checked(x: jax.Array, rows: Any, block_rows: int) -> tuple[int, int]:
    """The rows of ``x``, and those of a block."""
    m, _ = _require.axes("x", x, "m n")
    _require.floating("x", x)
    _require.positive(block_rows=block_rows)
    if block_rows % ROWS:
        raise ValueError(f"block_rows must be a multiple of {ROWS}, but it is {block_rows}")
    if np.shape(rows) != () or not jnp.issubdtype(jnp.result_type(rows), jnp.integer):
        raise ValueError(
            f"rows must be an integer scalar, but it is {jnp.result_type(rows)} of the shape "
            f"{np.shape(rows)}"
        )
    return m, fit(block_rows, m, ROWS)


def halo_stencil(x: jax.Array, rows: Any, *, block_rows: int = 256) -> jax.Array:
    """Sums of neighboring rows, of the first ``rows`` rows.

    Args:
      x: ``(m, n)``, float32 or bfloat16.
      rows: how many rows count, an integer scalar from 0 to ``m``, which may be traced.
      block_rows: rows in a block, a multiple of 16. Two of ``x`` with their halos, two of
        the output and one in float32 must fit in VMEM.

    Returns:
      ``(m, n)``, of the dtype of ``x``; zero from ``rows`` on.

    Raises:
      ValueError: ``x`` is not a matrix, is empty or not floating, ``rows`` is no integer scalar, or
        ``block_rows`` is not a positive multiple of 16.
    """
    m, block_rows = _checked(x, rows, block_rows)
    whole = pl.cdiv(m, ROWS) * ROWS
    size = min(block_rows + 2 * ROWS, whole)

    def start(i: Any) -> Any:
        return pl.multiple_of(jnp.clip(i * block_rows - ROWS, 0, whole - size), ROWS)

    return _stencil(x, rows, block_rows, pl.Element(size), start)


def halo_stencil_padded(x: jax.Array, rows: Any, *, block_rows: int = 256) -> jax.Array:
    """``halo_stencil`` with windows that begin before the array and end after it."""
    _, block_rows = _checked(x, rows, block_rows)
    window = pl.Element(block_rows + 2 * ROWS, padding=(ROWS, ROWS))
    return _stencil(x, rows, block_rows, window, lambda i: i * block_rows - ROWS)


def reference(x: jax.Array, rows: Any) -> jax.Array:
    """The same, by three shifted arrays."""
    inside = (jnp.arange(len(x)) < rows)[:, None]
    padded = jnp.pad(jnp.where(inside, x, 0), ((1, 1), (0, 0)))
    return jnp.where(inside, padded[:-2] + padded[1:-1] + padded[2:], 0)
