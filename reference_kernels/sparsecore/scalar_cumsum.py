"""A running sum on the scalar subcore of a SparseCore: ``o[i] = x[0] + ... + x[i]``.

Shapes: ``x`` and ``o`` are ``(n,)``. Dtypes: int32, which wraps, or float32, added from the left to
the right without a rounding in between other than that of each sum.

A SparseCore has one scalar subcore, the one that directs the vector subcores. It computes with
scalars only, and its memory is SMEM: no VMEM, no registers of several lanes. What is sequential by
nature and small belongs here: offsets from lengths, an index into a schedule.

The array goes through SMEM in chunks. There are two slots for what comes in and two for what goes
out: while one chunk is added up, the next one is on its way in and the last one on its way out.
The sum so far is a carry of the loop over the chunks, so it stays in a register.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

from reference_kernels import _require
from reference_kernels.sparsecore import _subcores

_SLOTS = 2


def _sum_up(x_ref: Any, o_ref: Any, count: int, total: Any) -> Any:
    """The running sums of ``count`` elements in SMEM after ``total``; gives the last of them."""

    def add(i: Any, total: Any) -> Any:
        total = total + x_ref[i]
        o_ref[i] = total
        return total

    return jax.lax.fori_loop(0, count, add, total)


def _cumsum_kernel(
    x_ref: Any, o_ref: Any, x_slots: Any, o_slots: Any, loads: Any, stores: Any, *, chunk: int
) -> None:
    whole, tail = divmod(x_ref.shape[0], chunk)

    def load(i: Any) -> Any:
        slot = jax.lax.rem(i, _SLOTS)
        here, there = _subcores.part(i, chunk), _subcores.part(slot, chunk)
        return pltpu.make_async_copy(x_ref.at[here], x_slots.at[there], loads.at[slot])

    def store(i: Any) -> Any:
        slot = jax.lax.rem(i, _SLOTS)
        here, there = _subcores.part(i, chunk), _subcores.part(slot, chunk)
        return pltpu.make_async_copy(o_slots.at[there], o_ref.at[here], stores.at[slot])

    def step(i: Any, total: Any) -> Any:
        slot = _subcores.part(jax.lax.rem(i, _SLOTS), chunk)
        pl.when(i + 1 < whole)(lambda: load(i + 1).start())
        load(i).wait()
        pl.when(i >= _SLOTS)(lambda: store(i - _SLOTS).wait())
        total = _sum_up(x_slots.at[slot], o_slots.at[slot], chunk, total)
        store(i).start()
        return total

    if whole:
        load(0).start()
    total = jax.lax.fori_loop(0, whole, step, jnp.zeros((), x_ref.dtype))
    for i in range(max(0, whole - _SLOTS), whole):
        store(i).wait()
    if tail:
        rest, slot = pl.ds(whole * chunk, tail), pl.ds(0, tail)
        pltpu.sync_copy(x_ref.at[rest], x_slots.at[slot])
        _sum_up(x_slots, o_slots, tail, total)
        pltpu.sync_copy(o_slots.at[slot], o_ref.at[rest])


def scalar_cumsum(x: jax.Array, *, chunk: int = 512) -> jax.Array:
    """``jnp.cumsum(x)``, on one scalar subcore.

    Args:
      x: ``(n,)``, int32 or float32. It is padded to a whole number of granules, the smallest pieces
        of HBM that a DMA copies: 8 elements.
      chunk: elements in a chunk, rounded up to whole granules; four chunks must fit in SMEM.

    Returns:
      ``(n,)``, of the dtype of ``x``.

    Raises:
      ValueError: ``x`` has a wrong rank or dtype or is empty, or ``chunk`` is not a positive
        integer.
    """
    (n,) = _require.axes("x", x, "n")
    _subcores.require_32_bits("x", x)
    _require.positive(chunk=chunk)
    granule = _subcores.granule(x.dtype)
    chunk = pl.align_to(chunk, granule)
    x = _subcores.padded(x, granule)
    slots = pltpu.SMEM((_SLOTS * chunk,), x.dtype)
    semaphores = pltpu.SemaphoreType.DMA((_SLOTS,))
    out = pl.kernel(
        functools.partial(_cumsum_kernel, chunk=chunk),
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        # The sum of one chunk is needed for the next: a second SparseCore could only watch.
        mesh=plsc.ScalarSubcoreMesh(axis_name=_subcores.CORE, num_cores=1),
        scratch_types=[slots, slots, semaphores, semaphores],
    )(x)
    return out[:n]


def reference(x: jax.Array) -> jax.Array:
    """``jnp.cumsum``, in the dtype of ``x``."""
    return jnp.cumsum(x, dtype=x.dtype)
