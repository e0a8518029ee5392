"""The running maximum along rows: ``o[r, j] = max(x[r, 0], ..., x[r, j])``.

Shapes: ``x`` and ``o`` are ``(rows, n)``. Dtypes: float32 or int32.

``plsc.cummax`` computes it for the lanes of one register, in one instruction. Between registers
goes a carry, the largest element so far, in all lanes: ``max(cummax(x), carry)``. So a row of ``n``
elements takes ``n / L`` steps, one after the other, and different rows are independent: that is
where the subcores come in. NaN is not specified.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu_sc as plsc

from reference_kernels import _require
from reference_kernels.sparsecore import _subcores


def _running_max_rows(x_ref: Any, o_ref: Any, *, lanes: int) -> None:
    dtype = jnp.dtype(x_ref.dtype)
    least = -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min

    @pl.loop(0, x_ref.shape[0])
    def _row(r: Any) -> None:
        def register(i: Any, carry: Any) -> Any:
            here = _subcores.part(i, lanes)
            largest = jnp.maximum(plsc.cummax(x_ref[r, here]), carry)
            o_ref[r, here] = largest
            return jnp.full((lanes,), largest[lanes - 1])

        start = jnp.full((lanes,), least, dtype)
        jax.lax.fori_loop(0, x_ref.shape[1] // lanes, register, start)


def running_max(
    x: jax.Array, *, block: int = 8, cores: int | None = None, subcores: int | None = None
) -> jax.Array:
    """``jax.lax.cummax(x, axis=1)``.

    Args:
      x: ``(rows, n)``, float32 or int32. It is padded to whole blocks of rows and whole registers.
      block: rows of a block; four blocks must fit in the memory of a subcore.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      ``(rows, n)``, of the dtype of ``x``.

    Raises:
      ValueError: ``x`` has a wrong rank or dtype or is empty, or a size is not a positive integer.
    """
    rows, n = _require.axes("x", x, "rows n")
    _subcores.require_32_bits("x", x)
    _require.positive(block=block)
    lanes = _subcores.lanes()
    block = min(block, rows)
    wide = _subcores.padded(x, block, lanes)
    body = functools.partial(_running_max_rows, lanes=lanes)

    def kernel(*refs: Any) -> None:
        _subcores.by_blocks(body, refs, [(block, wide.shape[1])] * 2)

    out = pl.kernel(
        kernel,
        out_type=jax.ShapeDtypeStruct(wide.shape, x.dtype),
        mesh=_subcores.vector_mesh(cores, subcores),
        compiler_params=_subcores.REGISTERS,
    )(wide)
    return out[:rows, :n]


def reference(x: jax.Array) -> jax.Array:
    """``jax.lax.cummax``."""
    return jax.lax.cummax(x, axis=1)
