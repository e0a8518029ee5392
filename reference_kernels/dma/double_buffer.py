"""``o = 2 x`` with the copies of one chunk behind the arithmetic of another.

Shapes: ``x`` and ``o`` are ``(m, n)``. Dtypes: float32, bfloat16 or int32.

Two slots for what comes in and two for what goes out. In step ``i`` the core starts the load of
chunk ``i + 1`` into the other slot, waits for its own chunk, waits until the store of chunk ``i -
2`` has left the slot that it is about to fill, computes, and starts the store. So a load, a store
and the arithmetic are under way at the same time, and the slowest of them sets the pace.

The last ``m % chunk`` rows have a buffer of their own in place of a slot, because a DMA may end
inside a tile only where the array or the buffer does; they are loaded while the last whole chunk
is computed.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require

_SLOTS = 2


def _double_kernel(
    x_ref: Any,
    o_ref: Any,
    x_slots: Any,
    o_slots: Any,
    tail_buffer: Any,
    loads: Any,
    stores: Any,
    tail_semaphore: Any,
    *,
    chunk: int,
) -> None:
    whole, tail = divmod(x_ref.shape[0], chunk)

    def rows(i: Any) -> Any:
        return pl.ds(pl.multiple_of(i * chunk, chunk), chunk)

    def load(i: Any) -> Any:
        slot = jax.lax.rem(i, _SLOTS)
        return pltpu.make_async_copy(x_ref.at[rows(i)], x_slots.at[slot], loads.at[slot])

    def store(i: Any) -> Any:
        slot = jax.lax.rem(i, _SLOTS)
        return pltpu.make_async_copy(o_slots.at[slot], o_ref.at[rows(i)], stores.at[slot])

    last_rows = pl.ds(whole * chunk, tail)
    if tail:
        tail_load = pltpu.make_async_copy(x_ref.at[last_rows], tail_buffer, tail_semaphore)
        tail_store = pltpu.make_async_copy(tail_buffer, o_ref.at[last_rows], tail_semaphore)
        tail_load.start()
    load(0).start()

    @pl.loop(0, whole)
    def _step(i: Any) -> None:
        slot = jax.lax.rem(i, _SLOTS)
        pl.when(i + 1 < whole)(lambda: load(i + 1).start())
        load(i).wait()
        pl.when(i >= _SLOTS)(lambda: store(i - _SLOTS).wait())
        o_slots[slot] = x_slots[slot] * 2
        store(i).start()

    if tail:
        tail_load.wait()
        tail_buffer[...] = tail_buffer[...] * 2
        tail_store.start()
        tail_store.wait()
    for i in range(max(0, whole - _SLOTS), whole):
        store(i).wait()


def double_buffer(x: jax.Array, *, chunk: int = 256) -> jax.Array:
    """``2 * x``, ``chunk`` rows at a time, with loads, stores and arithmetic overlapped.

    Args:
      x: ``(m, n)``, float32, bfloat16 or int32.
      chunk: rows in a chunk; four chunks and the rest of the rows must fit in VMEM. A TPU wants a
        multiple of 8 for 32-bit and 16 for 16-bit types, unless all of ``x`` is one chunk.

    Raises:
      ValueError: ``x`` is not a matrix or is empty, or ``chunk`` is not a positive integer.
    """
    m, n = _require.axes("x", x, "m n")
    _require.positive(chunk=chunk)
    chunk = min(chunk, m)
    return pl.pallas_call(
        functools.partial(_double_kernel, chunk=chunk),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pl.ANY)],
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[
            pltpu.VMEM((_SLOTS, chunk, n), x.dtype),
            pltpu.VMEM((_SLOTS, chunk, n), x.dtype),
            pltpu.VMEM((m % chunk or 1, n), x.dtype),  # unused if there is no tail
            pltpu.SemaphoreType.DMA((_SLOTS,)),
            pltpu.SemaphoreType.DMA((_SLOTS,)),
            pltpu.SemaphoreType.DMA,
        ],
    )(x)


def reference(x: jax.Array) -> jax.Array:
    """``2 * x``."""
    return x * 2
