"""``o = 8 x`` by doubling three times, each time in memory that exists only in between.

Shapes: ``x`` and ``o`` are ``(m, n)``. Dtypes: float32, bfloat16 or int32.

Scratch of ``pallas_call`` exists as long as the kernel. ``pl.run_scoped`` allocates it for the
duration of a function, and ``pl.with_scoped`` is the same as a decorator, so a part of a kernel can
bring what it needs, semaphores too, and its VMEM is free for others afterwards. In ``octuple`` the
three scopes are nested: each doubles what the one around it holds, so three buffers exist at a
time. A semaphore must be back at zero when its scope ends.

``octuple_counted`` holds the number of doublings in a semaphore: a regular one is a counter that
``pl.semaphore_signal`` raises and ``pl.semaphore_wait`` lowers. ``pl.semaphore_read`` looks at it
without waiting, so it says nothing about signals that are still to come; here this core sends all
of them, before it reads.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require

_DOUBLINGS = 3


def _octuple_kernel(x_ref: Any, o_ref: Any) -> None:
    vmem = pl.MemoryRef(jax.typeof(x_ref).inner_aval, pltpu.VMEM)

    @pl.with_scoped(vmem, arrived=pltpu.SemaphoreType.DMA)
    def fetch_and_double(buffer: Any, arrived: Any) -> None:
        pltpu.async_copy(x_ref, buffer, arrived).wait()
        buffer[...] = buffer[...] * 2
        double_again(buffer)

    @pl.with_scoped(vmem)
    def double_again(source: Any, buffer: Any) -> None:  # what is allocated comes last
        buffer[...] = source[...] * 2

        def double_and_store(last: Any, left: Any) -> None:
            last[...] = buffer[...] * 2
            pltpu.async_copy(last, o_ref, left).wait()

        pl.run_scoped(double_and_store, vmem, left=pltpu.SemaphoreType.DMA)

    fetch_and_double()


def octuple(x: jax.Array) -> jax.Array:
    """``8 * x``.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32; three of them must fit in VMEM.

    Raises:
      ValueError: ``x`` is not a matrix or is empty.
    """
    _require.axes("x", x, "m n")
    return pl.pallas_call(
        _octuple_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
    )(x)


def _reset(counter: Any) -> None:
    """Lower a regular semaphore to zero, as it must be when its scope ends."""
    if jnp.issubdtype(counter.dtype, pltpu.dma_semaphore):
        raise TypeError("a DMA semaphore counts bytes; wait for its copies instead")
    assert jnp.issubdtype(counter.dtype, pl.semaphore), counter.dtype
    pl.semaphore_wait(counter, pl.semaphore_read(counter))


def _octuple_counted_kernel(x_ref: Any, o_ref: Any) -> None:
    @pl.with_scoped(pltpu.SemaphoreType.REGULAR)
    def scale(doublings: Any) -> None:
        @pl.loop(0, _DOUBLINGS)
        def _signal(_: Any) -> None:
            pl.semaphore_signal(doublings)

        factor = 1 << pl.semaphore_read(doublings)
        o_ref[...] = x_ref[...] * factor.astype(x_ref.dtype)
        _reset(doublings)

    scale()


def octuple_counted(x: jax.Array, *, block_rows: int = 256) -> jax.Array:
    """``8 * x``, with the exponent counted by a semaphore.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32.
      block_rows: rows in a block. A TPU wants a multiple of 8 (16 for bfloat16).

    Raises:
      ValueError: ``x`` is not a matrix or is empty, or ``block_rows`` is not positive.
    """
    m, n = _require.axes("x", x, "m n")
    _require.positive(block_rows=block_rows)
    block_rows = min(block_rows, m)
    spec = pl.BlockSpec((block_rows, n), lambda i: (i, 0))
    return pl.pallas_call(
        _octuple_counted_kernel,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(m, block_rows),),
        in_specs=[spec],
        out_specs=spec,
    )(x)


def reference(x: jax.Array) -> jax.Array:
    """``8 * x``."""
    return x * 8
