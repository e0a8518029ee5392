"""A ragged gather-reduce: ``o[s] = sum of x[idx[i]] over all i with segments[i] == s``.

Shapes: ``x (rows, d)``, ``idx (m,)`` and ``segments (m,)`` int32, ``o (count, d)``. Dtypes of
``x``: float32 or int32.

The bags of an embedding table, or messages along the edges of a graph. Neither the gathered rows
``(m, d)`` nor anything else of their size is written to HBM: rows come by the list ``idx`` from HBM
to a subcore's memory, and go on from there, by a copy that adds, to the sums in the memory that all
subcores of a SparseCore share.

Work is not dealt out beforehand. The first subcore holds a counter in its SMEM; whoever is free
takes the next chunk by ``fetch_and_add``, which gives what the counter was. So a subcore whose rows
are slow to come takes fewer chunks. Three barriers: the counter and the sums must be cleared before
anybody adds, and all must have added before anybody copies out.

Each SparseCore has its own columns, its own counter and all chunks: see ``scatter_add``. Only whole
rows can be gathered by a list, so each row of ``x`` is taken for as many rows as there are
SparseCores: with ``c`` of them, row ``r`` is rows ``r c`` to ``r c + c - 1`` of ``d / c`` elements,
and core ``k`` turns each index ``i`` of its list into ``i c + k``.

Segments need not be sorted, and may be empty: their sum is zero. The order of the additions is not
fixed, so the last bits of a float32 sum are not.
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


def _gather_sum_kernel(
    x_ref: Any,
    idx_ref: Any,
    segments_ref: Any,
    o_ref: Any,
    indices: Any,
    segments: Any,
    rows: Any,
    sums: Any,
    counter: Any,
    moved: Any,
    *,
    subcores: int,
) -> None:
    chunk, width = rows.shape
    lanes, cores = _subcores.lanes(), o_ref.shape[1] // width
    chunks = idx_ref.shape[0] // chunk
    me = jax.lax.axis_index(_subcores.SUBCORE)
    core = jax.lax.axis_index(_subcores.CORE)

    counter[0] = 0  # each has one, but only that of subcore 0 counts
    _subcores.clear(rows)

    @pl.loop(me, sums.shape[0] // chunk, step=subcores)
    def _clear(i: Any) -> None:
        pltpu.sync_copy(rows, sums.at[_subcores.part(i, chunk)])

    plsc.subcore_barrier()

    def take() -> Any:
        return plsc.fetch_and_add(counter.at[0], jnp.int32(1), subcore_id=jnp.int32(0))

    def add(i: Any) -> Any:
        here = _subcores.part(i, chunk)
        pltpu.sync_copy((idx_ref.at[here], segments_ref.at[here]), (indices, segments))

        @plsc.parallel_loop(0, chunk, lanes)
        def _own_part(j: Any) -> None:
            indices[pl.ds(j, lanes)] = indices[pl.ds(j, lanes)] * cores + core

        pltpu.async_copy(x_ref.at[indices], rows, moved).wait()
        pltpu.async_copy(rows, sums.at[segments], moved, add=True).wait()
        return take()

    jax.lax.while_loop(lambda i: i < chunks, add, take())
    plsc.subcore_barrier()

    @pl.loop(me, sums.shape[0] // chunk, step=subcores)
    def _store(i: Any) -> None:
        here = _subcores.part(i, chunk)
        pltpu.sync_copy(sums.at[here], o_ref.at[here, _subcores.part(core, width)])


def gather_sum(
    x: jax.Array,
    idx: jax.Array,
    segments: jax.Array,
    *,
    count: int,
    chunk: int = 128,
    cores: int | None = None,
    subcores: int | None = None,
) -> jax.Array:
    """``jax.ops.segment_sum(x[idx], segments, count)``.

    Args:
      x: ``(rows, d)``, float32 or int32. It is padded to a whole number of registers for each
        SparseCore, which copies it: choose ``d`` accordingly for large tables.
      idx: ``(m,)`` int32, in any order, with repetitions. An index that is out of range is moved to
        the nearest row.
      segments: ``(m,)`` int32, in any order. What is negative or not below ``count`` is dropped.
      count: segments of the result. With all columns that one SparseCore has of them, they must fit
        in its shared memory, beside the buffers of its subcores.
      chunk: rows that are gathered and added by one copy each, rounded up to whole registers.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      ``(count, d)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype or is empty, or a size is not a
        positive integer.
    """
    rows, d = _require.axes("x", x, "rows d")
    (m,) = _require.axes("idx", idx, "m")
    (other,) = _require.axes("segments", segments, "m")
    _require.same_size("m", ("idx", m), ("segments", other))
    _subcores.require_32_bits("x", x)
    _subcores.require_indices("idx", idx)
    _subcores.require_indices("segments", segments)
    _require.positive(count=count, chunk=chunk)

    mesh = _subcores.vector_mesh(cores, subcores)
    lanes = _subcores.lanes()
    chunk = pl.align_to(chunk, lanes)
    wide = _subcores.padded(x, 1, mesh.num_cores * lanes)
    width = wide.shape[1] // mesh.num_cores
    spare = jnp.where((segments >= 0) & (segments < count), segments, count)
    height = pl.align_to(count + 1, chunk)  # with the spare segment, which takes what is dropped
    lists = pltpu.VMEM((chunk,), jnp.int32)
    out = pl.kernel(
        functools.partial(_gather_sum_kernel, subcores=mesh.num_subcores),
        out_type=jax.ShapeDtypeStruct((height, wide.shape[1]), x.dtype),
        mesh=mesh,
        scratch_types=[
            lists,
            lists,
            pltpu.VMEM((chunk, width), x.dtype),
            pltpu.VMEM_SHARED((height, width), x.dtype),
            pltpu.SMEM((1,), jnp.int32),
            pltpu.SemaphoreType.DMA,
        ],
        compiler_params=_subcores.LINEAR,
    )(
        wide.reshape(-1, width),
        _subcores.padded(jnp.clip(idx, 0, rows - 1), chunk),
        jnp.pad(spare, (0, -m % chunk), constant_values=count),
    )
    return out[:count, :d]


def reference(x: jax.Array, idx: jax.Array, segments: jax.Array, *, count: int) -> jax.Array:
    """``segment_sum`` of the rows."""
    rows = jnp.take(x, idx, axis=0, mode="clip")
    place = jnp.where(segments < 0, count, segments)
    return jax.ops.segment_sum(rows, place, count)
