"""Rows added to rows by their index: ``o = zeros((rows, d)); o[idx[i]] += x[i]``.

Shapes: ``x (m, d)``, ``idx (m,)`` int32, ``o (rows, d)``. Dtypes of ``x``: float32 or int32.

The gradient of an embedding lookup. Different subcores add to one row, so the sums are held where
all vector subcores of a SparseCore can reach them, in ``VMEM_SHARED``, and are added to by copies:
a copy from a subcore's memory to shared memory may add what it brings to what is there, element by
element and atomically, at rows that a list of indices names. No core loads a sum, and repeated
indices need no care, within a list or between subcores.

Three phases, with a barrier of the SparseCore's subcores after each of the first two:

1. the subcores clear the sums together;
2. they take chunks of ``idx`` and ``x`` in turn and add them;
3. they copy the sums out.

SparseCores share no memory but HBM, so each one has its own columns: all of them read all indices,
and each reads and adds its part of every row. Shared memory must hold ``rows * d / cores``
elements.

The order in which subcores add is not fixed, so a float32 sum may differ in its last bits from one
run to the next. Sums of int32 wrap and do not.

A row for an index that is out of range must go nowhere. ``spare``: one more row of sums takes it,
and is not copied out. ``ignored``: the list carries a value that the copying unit ignores, so the
row is not even copied.
"""

from __future__ import annotations

import functools
from typing import Any, Literal

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

from reference_kernels import _require
from reference_kernels.sparsecore import _subcores

_IGNORED = -1


def _scatter_add_kernel(
    x_ref: Any,
    idx_ref: Any,
    o_ref: Any,
    indices: Any,
    rows: Any,
    sums: Any,
    added: Any,
    *,
    subcores: int,
    ignored: int | None,
) -> None:
    chunk, width = rows.shape
    me = jax.lax.axis_index(_subcores.SUBCORE)
    columns = _subcores.part(jax.lax.axis_index(_subcores.CORE), width)
    target = sums.at[plsc.Indices(indices, ignored_value=ignored)]

    _subcores.clear(rows)

    @pl.loop(me, sums.shape[0] // chunk, step=subcores)
    def _clear(i: Any) -> None:
        pltpu.sync_copy(rows, sums.at[_subcores.part(i, chunk)])

    plsc.subcore_barrier()

    @pl.loop(me, idx_ref.shape[0] // chunk, step=subcores)
    def _add(i: Any) -> None:
        here = _subcores.part(i, chunk)
        pltpu.sync_copy((idx_ref.at[here], x_ref.at[here, columns]), (indices, rows))
        pltpu.async_copy(rows, target, added, add=True).wait()

    plsc.subcore_barrier()

    @pl.loop(me, sums.shape[0] // chunk, step=subcores)
    def _store(i: Any) -> None:
        here = _subcores.part(i, chunk)
        pltpu.sync_copy(sums.at[here], o_ref.at[here, columns])


def scatter_add(
    x: jax.Array,
    idx: jax.Array,
    *,
    rows: int,
    chunk: int = 128,
    beyond: Literal["spare", "ignored"] = "spare",
    cores: int | None = None,
    subcores: int | None = None,
) -> jax.Array:
    """``jnp.zeros((rows, d)).at[idx].add(x)``.

    Args:
      x: ``(m, d)``, float32 or int32. It is padded to whole chunks and to a whole number of
        registers for each SparseCore, which copies it unless the sizes divide.
      idx: ``(m,)`` int32, in any order, with repetitions. Rows whose index is negative or not
        below ``rows`` are dropped.
      rows: rows of the result. With all columns that one SparseCore has of them, they must fit in
        its shared memory, beside the buffers of its subcores, which come out of the same memory.
      chunk: rows that one copy adds, rounded up to a multiple of 8.
      beyond: what happens to a row that is dropped; it does not change the answer.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      ``(rows, d)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype or is empty, or a size is not a
        positive integer.
    """
    m, d = _require.axes("x", x, "m d")
    (count,) = _require.axes("idx", idx, "m")
    _require.same_size("m", ("x", m), ("idx", count))
    _subcores.require_32_bits("x", x)
    _subcores.require_indices("idx", idx)
    _require.positive(rows=rows, chunk=chunk)
    if beyond not in ("spare", "ignored"):
        raise ValueError(f"beyond must be 'spare' or 'ignored', but it is {beyond!r}")

    mesh = _subcores.vector_mesh(cores, subcores)
    chunk = pl.align_to(chunk, _subcores.granule(jnp.int32))
    nowhere = rows if beyond == "spare" else _IGNORED
    wanted = jnp.where((idx >= 0) & (idx < rows), idx, nowhere)
    lists = jnp.pad(wanted, (0, -m % chunk), constant_values=nowhere)
    wide = _subcores.padded(x, chunk, mesh.num_cores * _subcores.lanes())
    height = pl.align_to(rows + (beyond == "spare"), chunk)
    width = wide.shape[1] // mesh.num_cores
    out = pl.kernel(
        functools.partial(
            _scatter_add_kernel,
            subcores=mesh.num_subcores,
            ignored=None if beyond == "spare" else _IGNORED,
        ),
        out_type=jax.ShapeDtypeStruct((height, wide.shape[1]), x.dtype),
        mesh=mesh,
        scratch_types=[
            pltpu.VMEM((chunk,), jnp.int32),
            pltpu.VMEM((chunk, width), x.dtype),
            pltpu.VMEM_SHARED((height, width), x.dtype),
            pltpu.SemaphoreType.DMA,
        ],
        compiler_params=_subcores.LINEAR,
    )(wide, lists)
    return out[:rows, :d]


def reference(x: jax.Array, idx: jax.Array, *, rows: int) -> jax.Array:
    """The sums by ``at[].add``, without its meaning of negative indices."""
    place = jnp.where(idx < 0, rows, idx)
    return jnp.zeros((rows, x.shape[1]), x.dtype).at[place].add(x, mode="drop")
