"""Copy ``o = x`` from HBM through VMEM to HBM by explicit DMAs.

Shapes: ``x`` and ``o`` are ``(m, n)``. Dtypes: any.

Operands in ``pl.ANY`` stay in HBM, and the kernel moves them itself. A copy is started, runs
beside the core, and signals a DMA semaphore when it is done; nothing it writes may be read before
the wait. Buffer and semaphores live as long as the ``run_scoped`` that allocates them. Here every
copy is waited for at once, which is simple and slow: see ``double_buffer`` for copies that
overlap.

The last ``m % chunk`` rows have a buffer of their own, because a DMA may end inside a tile only
where the array or the buffer does.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require


def _copy_kernel(x_ref: Any, o_ref: Any, *, chunk: int) -> None:
    m, n = x_ref.shape
    whole, tail = divmod(m, chunk)

    def copy_rows(first: Any, rows: int) -> None:
        def through(buffer: Any, semaphore: Any) -> None:
            here = pl.ds(first, rows)
            load = pltpu.make_async_copy(x_ref.at[here], buffer, semaphore)
            load.start()
            load.wait()
            store = pltpu.make_async_copy(buffer, o_ref.at[here], semaphore)
            store.start()
            store.wait()

        pl.run_scoped(through, pltpu.VMEM((rows, n), x_ref.dtype), pltpu.SemaphoreType.DMA)

    @pl.loop(0, whole)
    def _chunk(i: Any) -> None:
        copy_rows(pl.multiple_of(i * chunk, chunk), chunk)

    if tail:
        copy_rows(whole * chunk, tail)


def dma_copy(x: jax.Array, *, chunk: int = 256) -> jax.Array:
    """A copy of ``x``, moved ``chunk`` rows at a time.

    Args:
      x: ``(m, n)``, of any dtype.
      chunk: rows in a chunk, which must fit in VMEM. A TPU wants a multiple of 8 for 32-bit, 16 for
        16-bit and 32 for 8-bit types, unless all of ``x`` is one chunk.

    Raises:
      ValueError: ``x`` is not a matrix or is empty, or ``chunk`` is not a positive integer.
    """
    m, _ = _require.axes("x", x, "m n")
    _require.positive(chunk=chunk)
    chunk = min(chunk, m)

    def body(x_ref: Any, o_ref: Any) -> None:
        _copy_kernel(x_ref, o_ref, chunk=chunk)

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
    )(x)


def reference(x: jax.Array) -> jax.Array:
    """``x``."""
    return x
