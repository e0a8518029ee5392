"""``o = 2 exp(x)`` in place in VMEM, with and without a promise about the order of accesses.

Shapes: ``x`` and ``o`` are ``(m, n)``. Dtypes: float32.

A loop over a scratch buffer loads rows, computes, and stores them where they were. The compiler
does not know that no round reads what another one stored: it keeps each load behind the stores
before it, and waits as long as a store takes to become visible. ``pltpu.annotate(ref,
no_hazard=True)`` says that there is nothing to wait for. It stays right if that was wrong, only
slower; ``no_hazard_no_deps=True`` would let the compiler exchange loads and stores as well, and
then a wrong promise gives wrong numbers.

Eight rounds of 8 rows and 128 columns take 22 bundles in place of 26 on v5e, and 25 in place of 28
on v6e (libtpu 0.0.50).
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require

_ROWS = 8


def _exp_kernel(x_ref: Any, o_ref: Any, buffer: Any, *, promise: bool) -> None:
    rows = pltpu.annotate(buffer, no_hazard=True) if promise else buffer
    buffer[...] = x_ref[...]

    @pl.loop(0, buffer.shape[0] // _ROWS, unroll=8)
    def _round(tile: Any) -> None:
        here = pl.ds(pl.multiple_of(tile * _ROWS, _ROWS), _ROWS)
        rows[here] = jnp.exp(rows[here]) * 2

    o_ref[...] = buffer[...]


def exp_in_place(x: jax.Array, *, promise: bool = True, block_rows: int = 256) -> jax.Array:
    """``2 * exp(x)``.

    Args:
      x: ``(m, n)`` float32.
      promise: whether the compiler is told that rounds of the loop do not meet.
      block_rows: rows in a block, a multiple of 8.

    Raises:
      ValueError: ``x`` is no matrix, is empty or is not float32, or ``block_rows`` is not a
        multiple of 8.
    """
    m, n = _require.axes("x", x, "m n")
    if x.dtype != jnp.float32:
        raise ValueError(f"x must be float32, but its dtype is {x.dtype}")
    _require.positive(block_rows=block_rows)
    if block_rows % _ROWS:
        raise ValueError(f"block_rows must be a multiple of {_ROWS}, but it is {block_rows}")
    block_rows = min(block_rows, pl.align_to(m, _ROWS))
    spec = pl.BlockSpec((block_rows, n), lambda i: (i, 0))
    return pl.pallas_call(
        functools.partial(_exp_kernel, promise=promise),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(m, block_rows),),
        in_specs=[spec],
        out_specs=spec,
        scratch_shapes=[pltpu.VMEM((block_rows, n), x.dtype)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel",)),
    )(x)


def reference(x: jax.Array) -> jax.Array:
    """``2 * exp(x)``."""
    return jnp.exp(x) * 2
