"""An embedding lookup: ``o[i] = x[idx[i]]``.

Shapes: ``x (rows, d)``, ``idx (m,)`` int32, ``o (m, d)``. Dtypes of ``x``: any of 16 or 32 bits.

This is what SparseCores are for. A copy from HBM to the memory of a vector subcore may name its
rows by a list of indices, in memory itself, and the unit that copies reads the list: one
instruction fetches 128 rows from 128 places, and the core does nothing meanwhile. On a TensorCore
the same takes one DMA a row, each started by scalar code (``fused_gather``).

``gather``: the indices are cut into chunks, which are dealt to the subcores of all SparseCores in
turn. There are two slots, each with a list and its rows: a chunk's rows are on their way in while
the rows of the chunk before are copied out.

``gather_pipelined``: the same copies as two nested pipelines. The outer one brings the indices. In
the inner one the block of ``x`` has the dimension ``pl.Indirect(lanes)``, whose index map returns a
register of row numbers where another one returns the number of a block. Its body copies the block
from the input's buffer to the output's, so it costs a pass through registers which ``gather`` does
not need: the form to take if the rows are to be computed with.
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


def _gather_kernel(
    x_ref: Any, idx_ref: Any, o_ref: Any, lists: Any, rows: Any, arrived: Any, *, workers: int
) -> None:
    chunk = lists.shape[1]
    first = _subcores.worker()
    count = pl.cdiv(idx_ref.shape[0] // chunk - first, workers)

    def here(i: Any) -> Any:
        return _subcores.part(first + i * workers, chunk)

    def fetch(i: Any) -> Any:
        slot = jax.lax.rem(i, _SLOTS)
        return pltpu.make_async_copy(x_ref.at[lists.at[slot]], rows.at[slot], arrived.at[slot])

    def start(i: Any) -> None:
        pltpu.sync_copy(idx_ref.at[here(i)], lists.at[jax.lax.rem(i, _SLOTS)])
        fetch(i).start()

    pl.when(count > 0)(lambda: start(jnp.int32(0)))

    @pl.loop(0, count)
    def _chunk(i: Any) -> None:
        pl.when(i + 1 < count)(lambda: start(i + 1))
        fetch(i).wait()
        pltpu.sync_copy(rows.at[jax.lax.rem(i, _SLOTS)], o_ref.at[here(i)])


def gather(
    x: jax.Array,
    idx: jax.Array,
    *,
    chunk: int = 128,
    cores: int | None = None,
    subcores: int | None = None,
) -> jax.Array:
    """``x[idx]``.

    Args:
      x: ``(rows, d)``, of a dtype of 16 or 32 bits. If a row is not a whole number of granules, 32
        bytes, ``x`` is padded, which copies it: choose ``d`` accordingly for large tables.
      idx: ``(m,)`` int32, in any order, with repetitions. An index that is out of range is moved to
        the nearest row.
      chunk: rows that one copy fetches, rounded up to a multiple of 8; two chunks must fit in the
        memory of a subcore.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      ``(m, d)``, of the dtype of ``x``.

    Raises:
      ValueError: an operand has a wrong rank or dtype or is empty, or a size is not a positive
        integer.
    """
    _, d = _require.axes("x", x, "rows d")
    (m,) = _require.axes("idx", idx, "m")
    chunk = _checked(x, idx, chunk)
    wide, lists = _operands(x, idx, chunk)
    mesh = _subcores.vector_mesh(cores, subcores)
    out = pl.kernel(
        functools.partial(_gather_kernel, workers=_subcores.workers(mesh)),
        out_type=jax.ShapeDtypeStruct((lists.size, wide.shape[1]), x.dtype),
        mesh=mesh,
        scratch_types=[
            pltpu.VMEM((_SLOTS, chunk), jnp.int32),
            pltpu.VMEM((_SLOTS, chunk, wide.shape[1]), x.dtype),
            pltpu.SemaphoreType.DMA((_SLOTS,)),
        ],
        compiler_params=_subcores.LINEAR,
    )(wide, lists)
    return out[:m, :d]


def _checked(x: Any, idx: Any, chunk: int) -> int:
    """The chunk in whole granules of indices."""
    if x.dtype.itemsize not in (2, 4):
        raise ValueError(f"x must have a dtype of 16 or 32 bits, but its dtype is {x.dtype}")
    _subcores.require_indices("idx", idx)
    _require.positive(chunk=chunk)
    return pl.align_to(chunk, _subcores.granule(jnp.int32))


def _operands(x: jax.Array, idx: jax.Array, chunk: int) -> tuple[jax.Array, jax.Array]:
    """Rows in whole granules, and indices in range and in whole chunks."""
    wide = _subcores.padded(x, 1, _subcores.granule(x.dtype))
    return wide, _subcores.padded(jnp.clip(idx, 0, x.shape[0] - 1), chunk)


def _pipelined_kernel(x_ref: Any, idx_ref: Any, o_ref: Any, *, chunk: int, lanes: int) -> None:
    d = x_ref.shape[1]
    lists = chunk // lanes

    def chunk_of_indices(idx_ref: Any) -> None:
        first = pl.program_id(0) * lists

        def copy(rows_ref: Any, o_ref: Any) -> None:
            for row in range(lanes):

                @plsc.parallel_loop(0, d, lanes)
                def _register(j: Any, row: int = row) -> None:
                    o_ref[row, pl.ds(j, lanes)] = rows_ref[row, pl.ds(j, lanes)]

        def rows_of(i: Any) -> tuple[Any, int]:
            return idx_ref[_subcores.part(i, lanes)], 0

        pltpu.emit_pipeline(
            copy,
            grid=(lists,),
            in_specs=[pl.BlockSpec((pl.Indirect(lanes), d), rows_of)],
            out_specs=[pl.BlockSpec((lanes, d), lambda i: (first + i, 0))],
            tiling=pltpu.Tiling.SPARSE_CORE,
        )(x_ref, o_ref)

    pltpu.emit_pipeline(
        chunk_of_indices,
        grid=(idx_ref.shape[0] // chunk,),
        in_specs=[pl.BlockSpec((chunk,), lambda i: (i,))],
        core_axis_name=(_subcores.CORE, _subcores.SUBCORE),
        dimension_semantics=(pltpu.PARALLEL,),
        tiling=pltpu.Tiling.SPARSE_CORE,
    )(idx_ref)


def gather_pipelined(
    x: jax.Array,
    idx: jax.Array,
    *,
    chunk: int = 128,
    cores: int | None = None,
    subcores: int | None = None,
) -> jax.Array:
    """``x[idx]``, as pipelines.

    Args:
      x: ``(rows, d)``, float32 or int32, padded to whole registers.
      idx: as for ``gather``.
      chunk: indices of a block of the outer pipeline, rounded up to whole registers. The inner one
        fetches a register of rows at a time.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      ``(m, d)``, of the dtype of ``x``.

    Raises:
      ValueError: as for ``gather``, and if ``x`` has another dtype.
    """
    _, d = _require.axes("x", x, "rows d")
    (m,) = _require.axes("idx", idx, "m")
    _subcores.require_32_bits("x", x)
    chunk = _checked(x, idx, chunk)
    lanes = _subcores.lanes()
    chunk = pl.align_to(chunk, lanes)
    wide, lists = _operands(x, idx, chunk)
    wide = _subcores.padded(wide, 1, lanes)
    out = pl.kernel(
        functools.partial(_pipelined_kernel, chunk=chunk, lanes=lanes),
        out_type=jax.ShapeDtypeStruct((lists.size, wide.shape[1]), x.dtype),
        mesh=_subcores.vector_mesh(cores, subcores),
        compiler_params=_subcores.LINEAR,
    )(wide, lists)
    return out[:m, :d]


def reference(x: jax.Array, idx: jax.Array) -> jax.Array:
    """``x[idx]``, with indices out of range moved to the nearest row."""
    return jnp.take(x, idx, axis=0, mode="clip")
