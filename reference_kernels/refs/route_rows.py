"""Rows that are sent to one of two places, which is only known at run time.

``a[i] = x[i]`` where ``which[i] == 0``, ``b[i] = x[i]`` elsewhere, ``i`` counting blocks of rows;
what is not written keeps what it held.

Shapes: ``x``, ``a`` and ``b`` are ``(m, n)``, ``which`` is ``(cdiv(m, block_rows),)`` int32.
Dtypes: any of 16 or 32 bits.

``pl.select_ref`` makes one DMA whose target is chosen by a number: the choice is an address, not a
branch around two copies. All copies are in flight together. They share a semaphore, which counts
bytes, so one wait for the bytes of ``x`` waits for all of them.

The kernel never reads ``a`` and ``b``, and yet what they hold before matters, because it writes
only parts of them. ``pltpu.touch`` says so: it counts as a read and a write of the whole reference
and costs no instruction.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require


def _route_kernel(
    which_ref: Any,
    x_ref: Any,
    a_ref: Any,
    b_ref: Any,
    which: Any,
    sent: Any,
    *,
    block_rows: int,
) -> None:
    pltpu.sync_copy(which_ref, which)
    whole, tail = divmod(x_ref.shape[0], block_rows)

    def send(block: Any, rows: int) -> None:
        here = pl.ds(pl.multiple_of(block * block_rows, block_rows), rows)
        target = pl.select_ref(which[block], a_ref.at[here], b_ref.at[here])
        pltpu.async_copy(x_ref.at[here], target, sent)

    pl.loop(0, whole)(lambda block: send(block, block_rows))
    if tail:
        send(whole, tail)
    # Copies nothing: it waits for as many bytes as x has.
    pltpu.make_async_copy(x_ref, a_ref, sent).wait()
    pltpu.touch(a_ref)
    pltpu.touch(b_ref)


def route_rows(
    x: jax.Array, which: jax.Array, a: jax.Array, b: jax.Array, *, block_rows: int = 8
) -> tuple[jax.Array, jax.Array]:
    """``a`` and ``b`` after each block of rows of ``x`` was sent to one of them.

    Args:
      x: ``(m, n)``, of a dtype of 16 or 32 bits.
      which: ``(blocks,)`` int32 for ``cdiv(m, block_rows)`` blocks: 0 for ``a``, 1 for ``b``.
      a: ``(m, n)``, of the dtype of ``x``.
      b: likewise.
      block_rows: rows in a block, a multiple of 8, which is what a DMA moves together.

    Returns:
      The new ``a`` and ``b``.

    Raises:
      ValueError: an operand has a wrong shape or dtype, or ``block_rows`` is not a multiple of 8.
    """
    m, _ = _require.axes("x", x, "m n")
    (blocks,) = _require.axes("which", which, "blocks")
    _require.positive(block_rows=block_rows)
    if block_rows % 8:
        raise ValueError(f"block_rows must be a multiple of 8, but it is {block_rows}")
    if jnp.dtype(x.dtype).itemsize not in (2, 4):
        raise ValueError(f"x must have a dtype of 16 or 32 bits, but its dtype is {x.dtype}")
    if which.dtype != jnp.int32:
        raise ValueError(f"which must be int32, but its dtype is {which.dtype}")
    _require.same_size("blocks", ("x", pl.cdiv(m, block_rows)), ("which", blocks))
    _require.same_dtype(x=x, a=a, b=b)
    for name, operand in (("a", a), ("b", b)):
        if operand.shape != x.shape:
            raise ValueError(
                f"{name} must have the shape of x, {x.shape}, but its shape is {operand.shape}"
            )
    kernel = pl.kernel(
        functools.partial(_route_kernel, block_rows=block_rows),
        mesh=pltpu.TensorCoreMesh(axis_name="core", num_cores=1),
        scratch_types=[pltpu.SMEM((blocks,), jnp.int32), pltpu.SemaphoreType.DMA],
    )
    a_ref, b_ref = jax.new_ref(a), jax.new_ref(b)
    kernel(which, x, a_ref, b_ref)
    return jax.freeze(a_ref), jax.freeze(b_ref)


def reference(
    x: jax.Array, which: jax.Array, a: jax.Array, b: jax.Array, *, block_rows: int
) -> tuple[jax.Array, jax.Array]:
    """The same by ``where``."""
    to_b = jnp.repeat(which, block_rows)[: x.shape[0], None] != 0
    return jnp.where(to_b, a, x), jnp.where(to_b, x, b)
