"""``2 x`` through VMEM by DMAs of one's own, several under way at a time."""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin

_ANY = pl.BlockSpec(memory_space=pl.ANY)


def pipeline(x: jax.Array, *, block: int = 8, stages: int = 2, wrong: str = "") -> jax.Array:
    """``2 x`` for x ``(m, n)``, ``block`` rows at a time, which divide m."""
    m, n = x.shape
    steps = m // block

    def body(x_ref: Any, o_ref: Any, x_slots: Any, o_slots: Any, loads: Any, stores: Any) -> None:
        def load(i: Any) -> Any:
            slot = jax.lax.rem(i, stages)
            rows = x_ref.at[pl.ds(i * block, block)]
            return pltpu.make_async_copy(rows, x_slots.at[slot], loads.at[slot])

        def store(i: Any) -> Any:
            slot = jax.lax.rem(i, stages)
            rows = o_ref.at[pl.ds(i * block, block)]
            return pltpu.make_async_copy(o_slots.at[slot], rows, stores.at[slot])

        ahead = stages if wrong == "too far ahead" else stages - 1
        first = ahead if wrong == "fewer steps than stages" else min(ahead, steps)
        pl.loop(0, first)(lambda i: load(i).start())

        @pl.loop(0, steps)
        def _step(i: Any) -> None:
            slot = jax.lax.rem(i, stages)
            pl.when(i + ahead < steps)(lambda: load(i + ahead).start())
            load(i).wait()
            doubled = x_slots[slot] * 2
            if wrong == "still leaving":
                o_slots[slot] = doubled
                pl.when(i >= stages)(lambda: store(i - stages).wait())
            else:
                pl.when(i >= stages)(lambda: store(i - stages).wait())
                o_slots[slot] = doubled
            store(i).start()

        for i in range(max(0, steps - stages), steps - (wrong == "last store")):
            store(i).wait()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        in_specs=[_ANY],
        out_specs=_ANY,
        scratch_shapes=[
            pltpu.VMEM((stages, block, n), x.dtype),
            pltpu.VMEM((stages, block, n), x.dtype),
            pltpu.SemaphoreType.DMA((stages,)),
            pltpu.SemaphoreType.DMA((stages,)),
        ],
    )(x)


def reference(x: jax.Array) -> jax.Array:
    return 2 * x


_CALLS = pst.arguments(
    pst.arrays("m n", dtype="float32", dims={"m": [8, 16, 40], "n": [4, 128]}),
    tuning={"block": 8, "stages": 3},
)


def fewer_steps_than_stages(x: jax.Array, *, block: int = 8, stages: int = 2) -> jax.Array:
    """As many loads begin as there are stages, also where there are fewer blocks."""
    return pipeline(x, block=block, stages=stages, wrong="fewer steps than stages")


SPEC_FEWER_STEPS_THAN_STAGES = KernelSpec(
    name="fewer_steps_than_stages",
    kernel=fewer_steps_than_stages,
    reference=reference,
    inputs=_CALLS,
    exact=True,
    vmappable=False,
    family="DMA pipelines",
    backends=INTERPRETERS,
)
SPEC_FEWER_STEPS_THAN_STAGES_RIGHT = twin(SPEC_FEWER_STEPS_THAN_STAGES, pipeline)


def too_far_ahead(x: jax.Array, *, block: int = 8, stages: int = 2) -> jax.Array:
    """Loads run as many blocks ahead as there are slots, into the one that is in use."""
    return pipeline(x, block=block, stages=stages, wrong="too far ahead")


SPEC_TOO_FAR_AHEAD = KernelSpec(
    name="too_far_ahead",
    kernel=too_far_ahead,
    reference=reference,
    inputs=_CALLS,
    exact=True,
    vmappable=False,
    family="DMA pipelines",
    backends=INTERPRETERS,
)


def still_leaving(x: jax.Array, *, block: int = 8, stages: int = 2) -> jax.Array:
    """A slot is filled before its last store is known to have left it."""
    return pipeline(x, block=block, stages=stages, wrong="still leaving")


SPEC_STILL_LEAVING = KernelSpec(
    name="still_leaving",
    kernel=still_leaving,
    reference=reference,
    inputs=_CALLS,
    exact=True,
    vmappable=False,
    family="DMA pipelines",
    backends=INTERPRETERS,
)


def last_store(x: jax.Array, *, block: int = 8, stages: int = 2) -> jax.Array:
    """Nobody waits for the last store: the kernel may end before it has arrived."""
    return pipeline(x, block=block, stages=stages, wrong="last store")


SPEC_LAST_STORE = KernelSpec(
    name="last_store",
    kernel=last_store,
    reference=reference,
    inputs=_CALLS,
    exact=True,
    vmappable=False,
    family="DMA pipelines",
    backends=INTERPRETERS,
)


def gather(x: jax.Array, index: jax.Array, *, wrong: str = "") -> jax.Array:
    """``x[index]`` for x ``(m, n)``, a DMA for each row, all of them under way at once."""
    count = len(index)

    def body(index_ref: Any, x_ref: Any, o_ref: Any, rows: Any, arrived: Any) -> None:
        for i in range(count):
            row = x_ref.at[pl.ds(index_ref[i], 1)]
            pltpu.make_async_copy(row, rows.at[pl.ds(i, 1)], arrived).start()
        # One wait for the bytes of all copies.
        waited = rows.at[pl.ds(0, count - 1)] if wrong and count > 1 else rows
        pltpu.make_async_copy(waited, waited, arrived).wait()
        o_ref[...] = rows[...]

    shape = (count, x.shape[1])
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(shape, x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), _ANY],
        scratch_shapes=[pltpu.VMEM(shape, x.dtype), pltpu.SemaphoreType.DMA],
    )(index, x)


def gather_reference(x: jax.Array, index: jax.Array) -> jax.Array:
    return x[index]


def waits_for_too_few(x: jax.Array, index: jax.Array) -> jax.Array:
    """One wait for the bytes of all copies is one row short."""
    return gather(x, index, wrong="too few")


SPEC_WAITS_FOR_TOO_FEW = KernelSpec(
    name="waits_for_too_few",
    kernel=waits_for_too_few,
    reference=gather_reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [8, 16], "n": [4, 128]}),
        then=lambda drawn: {"index": pst.indices(5, size=drawn.recipe["m"])},
    ),
    exact=True,
    vmappable=False,
    family="DMA pipelines",
    backends=INTERPRETERS,
)
SPEC_WAITS_FOR_TOO_FEW_RIGHT = twin(SPEC_WAITS_FOR_TOO_FEW, gather)


def emitted(x: jax.Array, *, block: int = 8, in_place: bool = False) -> jax.Array:
    """``2 x`` for x ``(m, n)`` by JAX's pipeline."""
    spec = pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0))

    def step(x_block: Any, o_block: Any) -> None:
        if in_place:
            x_block[...] = x_block[...] * 2
            o_block[...] = x_block[...]
        else:
            o_block[...] = x_block[...] * 2

    def body(x_ref: Any, o_ref: Any) -> None:
        grid = (x.shape[0] // block,)
        pltpu.emit_pipeline(step, grid=grid, in_specs=[spec], out_specs=[spec])(x_ref, o_ref)

    out = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return pl.pallas_call(body, out_shape=out, in_specs=[_ANY], out_specs=_ANY)(x)


def doubles_its_input(x: jax.Array) -> jax.Array:
    """The step changes the window of its input, which the next step may find changed."""
    return emitted(x, in_place=True)


SPEC_DOUBLES_ITS_INPUT = KernelSpec(
    name="doubles_its_input",
    kernel=doubles_its_input,
    reference=reference,
    inputs=pst.arrays("m n", dtype="float32", dims={"m": [8, 16, 40], "n": [128]}),
    exact=True,
    vmappable=False,
    family="block pipelines",
    backends=("tpu-sim",),
)
SPEC_DOUBLES_ITS_INPUT_RIGHT = twin(SPEC_DOUBLES_ITS_INPUT, emitted)
