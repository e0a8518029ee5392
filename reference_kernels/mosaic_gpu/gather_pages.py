"""Pages by number: ``o[i] = pages[table[i]]``, each copied on as soon as it has arrived.

Shapes: ``pages (p, ...)``, ``table (t,)``, ``o (t, ...)``; a page has a multiple of 128 elements.
Dtypes: any of 8, 16 or 32 bits, int32 for ``table``. That is how a paged cache of keys and values
becomes contiguous.

Nothing is computed, so no thread touches the data: TMA brings a page to shared memory and TMA
writes it out. A block has ``slots`` pages under way for each of its four warps, which work apart
(``plgpu.WarpMesh``): warp-level code has scalars and references, and no arrays.

Pages that lie in the L2 cache arrive long before others that do not. A warp that waits for one page
after the other would leave early ones lying. So it *asks* each barrier first (PTX ISA,
mbarrier.test_wait), takes whichever page is there, and asks the others again; after some rounds it
waits for what is left. A barrier that has said yes may not be asked or waited for again: that would
be about its next phase.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu

from reference_kernels import _require

_WARPS = 4  # of a warpgroup
_LANES = 128  # elements in a row of what is copied
_MOST = 256  # rows of a TMA copy


def _kernel(
    table_gmem: Any,
    pages_gmem: Any,
    o_gmem: Any,
    buffers: Any,
    arrived: Any,
    *,
    slots: int,
    rounds: int,
) -> None:
    @pl.kernel(mesh=plgpu.WarpMesh(axis_name="warp"))
    def _each_warp() -> None:
        warp = jax.lax.axis_index("warp")
        first = (jax.lax.axis_index("block") * _WARPS + warp) * slots
        mine = jnp.clip(o_gmem.shape[0] - first, 0, slots)

        @pl.loop(0, mine)
        def _fetch(slot: Any) -> None:
            page = pages_gmem.at[table_gmem[first + slot]]
            plgpu.copy_gmem_to_smem(page, buffers.at[warp, slot], arrived.at[warp * slots + slot])

        def copy_out(slot: Any) -> None:
            plgpu.copy_smem_to_gmem(buffers.at[warp, slot], o_gmem.at[first + slot])

        def ask(slot: Any, waiting: Any) -> Any:
            """Copy the page of ``slot`` out if it is there, and say which slots still wait."""
            there = plgpu.barrier_test(arrived.at[warp * slots + slot])
            pl.when(there)(lambda: copy_out(slot))
            return jnp.where(there, waiting - (1 << slot), waiting)

        def run_all(_: Any, waiting: Any) -> Any:
            for slot in range(slots):
                waits = (waiting & (1 << slot)) != 0
                waiting = jax.lax.cond(
                    waits, functools.partial(ask, slot), lambda waiting: waiting, waiting
                )
            return waiting

        # A bit for each slot whose page has not been seen yet.
        waiting = jnp.left_shift(jnp.int32(1), mine) - 1
        waiting = jax.lax.fori_loop(0, rounds, run_all, waiting)
        for slot in range(slots):

            @pl.when((waiting & (1 << slot)) != 0)
            def _late(slot: int = slot) -> None:
                plgpu.barrier_wait(arrived.at[warp * slots + slot])
                copy_out(slot)

        plgpu.wait_smem_to_gmem(0)

    _each_warp()


def gather_pages(
    pages: jax.Array, table: jax.Array, *, slots: int = 2, rounds: int = 16
) -> jax.Array:
    """The pages that ``table`` names, one after another.

    Args:
      pages: ``(p, ...)``, any dtype of 8, 16 or 32 bits; a page has a multiple of 128 elements, at
        most 32768.
      table: ``(t,)``, int32, numbers of pages.
      slots: pages of a warp that are under way, at most 8. Four times as many fit in shared memory.
      rounds: how often the barriers are asked before the rest is waited for.

    Returns:
      ``(t, ...)``, of the dtype of ``pages``.

    Raises:
      ValueError: an operand is empty or has a wrong rank, size or dtype, or ``slots`` is not
        between 1 and 8, or ``rounds`` is not positive.
    """
    _require.nonempty("pages", pages)
    (t,) = _require.axes("table", table, "t")
    if table.dtype != jnp.int32:
        raise ValueError(f"table must be int32, but its dtype is {table.dtype}")
    if pages.dtype.itemsize not in (1, 2, 4) or pages.dtype == jnp.bool_:
        raise ValueError(
            f"pages must have elements of 8, 16 or 32 bits, but its dtype is {pages.dtype}"
        )
    size = math.prod(pages.shape[1:])
    if pages.ndim < 2 or size % _LANES or size > _MOST * _LANES:
        raise ValueError(
            f"a page must have a multiple of {_LANES} elements, at most {_MOST * _LANES}, but the "
            f"shape of pages is {pages.shape}"
        )
    _require.positive(slots=slots, rounds=rounds)
    if slots > 8:
        raise ValueError(f"slots must be at most 8, but it is {slots}")
    rows = size // _LANES
    o = plgpu.kernel(
        functools.partial(_kernel, slots=slots, rounds=rounds),
        out_type=jax.ShapeDtypeStruct((t, rows, _LANES), pages.dtype),
        scratch_types={
            "buffers": plgpu.SMEM((_WARPS, slots, rows, _LANES), pages.dtype),
            "arrived": plgpu.Barrier(num_barriers=_WARPS * slots),
        },
        grid=(pl.cdiv(t, _WARPS * slots),),
        grid_names=("block",),
    )(table, pages.reshape(-1, rows, _LANES))
    return o.reshape(t, *pages.shape[1:])


def reference(pages: jax.Array, table: jax.Array) -> jax.Array:
    """``pages[table]``."""
    return pages[table]
