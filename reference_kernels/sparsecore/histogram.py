"""A histogram of integers: ``o[b] = how many x[i] are b``.

Shapes: ``x (n,)`` int32, ``o (bins,)`` int32. Elements that are negative or not below ``bins`` are
not counted.

Each subcore counts its part of ``x`` in bins of its own, in its own memory, and then the bins of
all are added up. Within a register, elements may be equal, and lanes that add to one address at the
same time must not get in each other's way. So each register is counted first: ``plsc.scan_count``
gives for each lane how many lanes up to it hold the same element, and which lanes are the last of
theirs. Only these add, with ``plsc.addupdate_scatter``, and what they add is the number of all.

The bins are rows of 128, so that a copy can name them by a list: 0, 1, 2 and so on. Every subcore
adds its rows to those in the memory that the subcores of a SparseCore share, by a copy that adds,
and one of them copies the sums to HBM. There is one histogram for each SparseCore then; XLA adds
these.
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

#: Bins in a row.
ROW = 128


def _count(x_ref: Any, counts: Any, *, bins: int, lanes: int) -> None:
    """Count a block in the bins of this subcore."""

    @pl.loop(0, x_ref.shape[0], step=lanes)
    def _register(i: Any) -> None:
        x = x_ref[pl.ds(i, lanes)]
        number, last = plsc.scan_count(x, (x >= 0) & (x < bins))
        plsc.addupdate_scatter(counts, [x // ROW, x % ROW], number, mask=last)


def _histogram_kernel(
    x_ref: Any, o_ref: Any, counts: Any, sums: Any, rows: Any, added: Any, *, block: int, bins: int
) -> None:
    lanes = _subcores.lanes()
    first = jax.lax.axis_index(_subcores.SUBCORE) == 0
    _subcores.clear(counts)
    pl.when(first)(lambda: pltpu.sync_copy(counts, sums))
    plsc.subcore_barrier()

    def body(x_ref: Any) -> None:
        _count(x_ref, counts, bins=bins, lanes=lanes)

    _subcores.by_blocks(body, [x_ref], [(block,)], outputs=0)

    @pl.loop(0, rows.shape[0], step=lanes)
    def _list(i: Any) -> None:
        rows[pl.ds(i, lanes)] = i + jax.lax.iota(jnp.int32, lanes)

    pltpu.async_copy(counts, sums.at[rows], added, add=True).wait()
    plsc.subcore_barrier()
    pl.when(first)(lambda: pltpu.sync_copy(sums, o_ref.at[jax.lax.axis_index(_subcores.CORE)]))


def histogram(
    x: jax.Array,
    bins: int,
    *,
    block: int = 2048,
    cores: int | None = None,
    subcores: int | None = None,
) -> jax.Array:
    """How often each of 0 to ``bins - 1`` is in ``x``.

    Args:
      x: ``(n,)`` int32. It is padded to whole blocks.
      bins: how many; they must fit in the memory of a subcore beside two blocks.
      block: elements of a block, rounded up to whole registers.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      ``(bins,)`` int32.

    Raises:
      ValueError: ``x`` has a wrong rank or dtype or is empty, or a size is not a positive integer.
    """
    (n,) = _require.axes("x", x, "n")
    _subcores.require_indices("x", x)
    _require.positive(bins=bins, block=block)
    lanes = _subcores.lanes()
    block = pl.align_to(min(block, n), lanes)
    mesh = _subcores.vector_mesh(cores, subcores)
    shape = pl.align_to(pl.cdiv(bins, ROW), lanes), ROW
    out = pl.kernel(
        functools.partial(_histogram_kernel, block=block, bins=bins),
        out_type=jax.ShapeDtypeStruct((mesh.num_cores, *shape), jnp.int32),
        mesh=mesh,
        scratch_types=[
            pltpu.VMEM(shape, jnp.int32),
            pltpu.VMEM_SHARED(shape, jnp.int32),
            pltpu.VMEM(shape[:1], jnp.int32),
            pltpu.SemaphoreType.DMA,
        ],
        compiler_params=_subcores.REGISTERS,
    )(jnp.pad(x, (0, -n % block), constant_values=-1))
    return jnp.sum(out, axis=0).reshape(-1)[:bins]


def reference(x: jax.Array, *, bins: int) -> jax.Array:
    """One comparison for each element and bin."""
    return jnp.sum(x[:, None] == jnp.arange(bins), axis=0, dtype=jnp.int32)
