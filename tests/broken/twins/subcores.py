"""SparseCores: a scalar subcore that fetches for vector subcores, and memory that these share."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas import tpu_sc as plsc

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .devices import REGULAR
from .pair import twin

_SUBCORES = 4
_SLOTS = 2

_on_subcores = functools.partial(
    KernelSpec,
    exact=True,
    vmappable=False,
    family="SparseCores",
    backends=("tpu-sim", "tpu-interpret"),
    file=__file__,
)


def _vectors() -> Any:
    return plsc.VectorSubcoreMesh(
        core_axis_name="core", subcore_axis_name="subcore", num_cores=1, num_subcores=_SUBCORES
    )


def fetched(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """A copy of x ``(m, 4, n)``: the scalar subcore fetches rows to two slots for four subcores."""
    rows, _, columns = x.shape
    vectors, scalars = _vectors(), plsc.ScalarSubcoreMesh(axis_name="core", num_cores=1)
    ahead = _SLOTS + 2 if wrong else _SLOTS

    def fetch(x_ref: Any, o_ref: Any, slots: Any, row: Any, filled: Any, freed: Any) -> None:
        del o_ref, row
        for i in range(rows):
            if i >= ahead:
                pl.semaphore_wait(freed.at[i % _SLOTS], _SUBCORES)
            pltpu.sync_copy(x_ref.at[i], slots.at[i % _SLOTS])
            for subcore in range(_SUBCORES):
                pl.semaphore_signal(filled.at[i % _SLOTS], 1, device_id={"subcore": subcore})
        for i in range(max(0, rows - ahead), rows):
            pl.semaphore_wait(freed.at[i % _SLOTS], _SUBCORES)

    def store(x_ref: Any, o_ref: Any, slots: Any, row: Any, filled: Any, freed: Any) -> None:
        del x_ref
        me = jax.lax.axis_index("subcore")
        for i in range(rows):
            pl.semaphore_wait(filled.at[i % _SLOTS], 1)
            pltpu.sync_copy(slots.at[i % _SLOTS, me], row)
            pl.semaphore_signal(freed.at[i % _SLOTS], 1, device_id={"core": 0})
            pltpu.sync_copy(row, o_ref.at[i, me])

    kernel: Any = pl.kernel(
        body=[store, fetch],
        mesh=[vectors, scalars],
        out_type=x,
        scratch_types=[
            pltpu.VMEM_SHARED((_SLOTS, _SUBCORES, columns), x.dtype),
            pltpu.VMEM((columns,), x.dtype) @ vectors,
            REGULAR((_SLOTS,)) @ vectors,
            REGULAR((_SLOTS,)) @ scalars,
        ],
    )
    return kernel(x)


def two_rounds_ahead(x: jax.Array) -> jax.Array:
    """A slot is waited for when it is filled the third time, and not the second time."""
    return fetched(x, wrong="two rounds ahead")


SPEC_TWO_ROUNDS_AHEAD = _on_subcores(
    name="two_rounds_ahead",
    kernel=two_rounds_ahead,
    reference=lambda x: x,
    inputs=pst.arrays(
        "m subcores n", dtype="float32", dims={"m": [3, 6], "subcores": _SUBCORES, "n": [16, 32]}
    ),
)
SPEC_TWO_ROUNDS_AHEAD_RIGHT = twin(SPEC_TWO_ROUNDS_AHEAD, fetched)


def turned_twice(x: jax.Array, *, wrong: str = "") -> jax.Array:
    """The rows of x ``(4, n)`` moved up by two, by one each time, through shared memory."""

    def body(x_ref: Any, o_ref: Any, shared: Any, row: Any) -> None:
        me = jax.lax.axis_index("subcore")
        pltpu.sync_copy(x_ref.at[me], row)
        for time in range(2):
            pltpu.sync_copy(row, shared.at[me])
            plsc.subcore_barrier()
            pltpu.sync_copy(shared.at[jax.lax.rem(me + 1, _SUBCORES)], row)
            if not wrong and time == 0:
                plsc.subcore_barrier()  # all have read what the second time overwrites
        pltpu.sync_copy(row, o_ref.at[me])

    memory = pltpu.VMEM_SHARED(x.shape, x.dtype), pltpu.VMEM((x.shape[1],), x.dtype)
    kernel: Any = pl.kernel(body, out_type=x, mesh=_vectors(), scratch_types=memory)
    return kernel(x)


def no_barrier_after_reading(x: jax.Array) -> jax.Array:
    """A subcore stores its next row where another one may still read the last one."""
    return turned_twice(x, wrong="no barrier")


SPEC_NO_BARRIER_AFTER_READING = _on_subcores(
    name="no_barrier_after_reading",
    kernel=no_barrier_after_reading,
    reference=lambda x: jnp.roll(x, -2, axis=0),
    inputs=pst.arrays("m n", dtype="float32", dims={"m": _SUBCORES, "n": [16, 128]}),
)
SPEC_NO_BARRIER_AFTER_READING_RIGHT = twin(SPEC_NO_BARRIER_AFTER_READING, turned_twice)
