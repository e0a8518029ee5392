"""``o = x + 1`` by two programs at once: the scalar subcore fetches, the vector subcores compute.

Shapes: ``x`` and ``o`` are ``(n,)``. Dtypes: float32 or int32.

``pl.kernel`` takes a list of bodies and a list of meshes, and runs each body on all cores of its
mesh, all at the same time. Here the scalar subcore of a SparseCore copies chunk after chunk from
HBM to the memory that the core's subcores share, and each vector subcore takes its part of a chunk
from there.

They tell each other by semaphores, and a semaphore belongs to the cores of one mesh (``@``): every
one of them has its own. ``device_id`` names the one that is signaled, by the axes of its mesh that
differ.

- ``filled[slot]``, of the vector subcores: the chunk in the slot is there.
- ``freed[slot]``, of the scalar subcore: one more vector subcore has taken its part.

There are two slots, and the scalar subcore fills one again when all subcores have freed it. One
semaphore for both slots would not do: two signals may be those of one fast subcore. At the end it
waits for the last signals too, so that all semaphores are zero.

Chunks are dealt to the SparseCores in turn. A stage that one unit fills for sixteen is worth its
trouble where what is fetched depends on data that only the scalar subcore reads, such as lengths.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

from reference_kernels import _require
from reference_kernels.sparsecore import _subcores

_SLOTS = 2


def _fetch(
    x_ref: Any, o_ref: Any, stage: Any, buffer: Any, filled: Any, freed: Any, *, mesh: Any
) -> None:
    """The scalar subcore's body."""
    del o_ref, buffer
    chunk = stage.shape[1]
    rounds = x_ref.shape[0] // (chunk * mesh.num_cores)
    core = jax.lax.axis_index(_subcores.CORE)

    @pl.loop(0, rounds)
    def _chunk(i: Any) -> None:
        slot = jax.lax.rem(i, _SLOTS)
        pl.when(i >= _SLOTS)(lambda: pl.semaphore_wait(freed.at[slot], mesh.num_subcores))
        here = _subcores.part(core + i * mesh.num_cores, chunk)
        pltpu.sync_copy(x_ref.at[here], stage.at[slot])
        for subcore in range(mesh.num_subcores):
            pl.semaphore_signal(filled.at[slot], 1, device_id={_subcores.SUBCORE: subcore})

    for i in range(max(0, rounds - _SLOTS), rounds):
        pl.semaphore_wait(freed.at[i % _SLOTS], mesh.num_subcores)


def _compute(
    x_ref: Any, o_ref: Any, stage: Any, buffer: Any, filled: Any, freed: Any, *, mesh: Any
) -> None:
    """The body of each vector subcore."""
    chunk, block = stage.shape[1], buffer.shape[0]
    core, me = jax.lax.axis_index(_subcores.CORE), jax.lax.axis_index(_subcores.SUBCORE)
    lanes = _subcores.lanes()

    @pl.loop(0, x_ref.shape[0] // (chunk * mesh.num_cores))
    def _chunk(i: Any) -> None:
        slot = jax.lax.rem(i, _SLOTS)
        pl.semaphore_wait(filled.at[slot], 1)
        pltpu.sync_copy(stage.at[slot, _subcores.part(me, block)], buffer)
        pl.semaphore_signal(freed.at[slot], 1, device_id={_subcores.CORE: core})

        @plsc.parallel_loop(0, block, lanes)
        def _register(j: Any) -> None:
            buffer[pl.ds(j, lanes)] = buffer[pl.ds(j, lanes)] + 1

        first = (core + i * mesh.num_cores) * mesh.num_subcores + me
        pltpu.sync_copy(buffer, o_ref.at[_subcores.part(first, block)])


def staged_map(
    x: jax.Array, *, block: int = 512, cores: int | None = None, subcores: int | None = None
) -> jax.Array:
    """``x + 1``, fetched by scalar subcores and computed by vector subcores.

    Args:
      x: ``(n,)``, float32 or int32. It is padded to a whole number of chunks for each SparseCore.
      block: elements that a vector subcore takes of a chunk, rounded up to whole registers. A
        chunk is as many blocks as there are subcores; two chunks must fit in shared memory.
      cores: SparseCores to use; by default all.
      subcores: vector subcores of each; by default all.

    Returns:
      ``(n,)``, of the dtype of ``x``.

    Raises:
      ValueError: ``x`` has a wrong rank or dtype or is empty, or a size is not a positive integer.
    """
    (n,) = _require.axes("x", x, "n")
    _subcores.require_32_bits("x", x)
    _require.positive(block=block)
    vectors = _subcores.vector_mesh(cores, subcores)
    scalars = plsc.ScalarSubcoreMesh(axis_name=_subcores.CORE, num_cores=vectors.num_cores)
    block = pl.align_to(min(block, n), _subcores.lanes())
    chunk = block * vectors.num_subcores
    wide = _subcores.padded(x, chunk * vectors.num_cores)
    out = pl.kernel(
        body=[functools.partial(each, mesh=vectors) for each in (_compute, _fetch)],
        mesh=[vectors, scalars],
        out_type=jax.ShapeDtypeStruct(wide.shape, x.dtype),
        scratch_types=[
            pltpu.VMEM_SHARED((_SLOTS, chunk), x.dtype),
            pltpu.VMEM((block,), x.dtype) @ vectors,
            pltpu.SemaphoreType.REGULAR((_SLOTS,)) @ vectors,
            pltpu.SemaphoreType.REGULAR((_SLOTS,)) @ scalars,
        ],
        compiler_params=_subcores.REGISTERS,
    )(wide)
    return out[:n]


def reference(x: jax.Array) -> jax.Array:
    """``x + 1``."""
    return x + 1
