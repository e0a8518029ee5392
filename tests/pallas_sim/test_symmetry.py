"""What one device shows holds for all that are alike: fewer runs, and the same verdicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.sharding import PartitionSpec as P
from pallas_test_support.polling_kernels import on_mesh, polling_kernel, polls, signal
from pallas_test_support.small_programs import (
    ExhaustiveOrder,
    few_polls,
    outcomes,
    symmetric_program,
)

from pallas_sim import Exploration, explore
from pallas_sim.exploration import explorer as explorers
from pallas_sim.exploration.polling import wait_for_more
from pallas_sim.exploration.symmetry import are_alike


@pytest.fixture
def explored_apart(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Exploration]:
    """Explore a call as if nothing were known of its devices and loops."""

    def explored(call: Callable[..., Any], **options: Any) -> Exploration:
        with monkeypatch.context() as patch:
            patch.setattr(explorers, "are_alike", lambda _: False)
            patch.setattr(explorers, "wait_for_more", lambda _: False)
            return explore(call, target="v6e", **options)

    return explored


@pytest.mark.parametrize("devices", [3, 4, 8])
@pytest.mark.parametrize("mesh", ["ring", "full mesh"])
def test_one_look_in_vain_stands_for_those_of_all_devices(devices, mesh, explored_apart):
    call = polls(devices, [1] if mesh == "ring" else range(1, devices))
    result = explore(call, target="v6e")
    assert (result.verdict, result.runs, result.classes) == ("proved", 2, 1)
    apart = explored_apart(call)
    assert (apart.verdict, apart.classes) == ("proved" if apart.runs < 100 else "open", 1)
    assert apart.runs >= devices


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 12))]
)
def test_verdicts_of_random_kernels_are_those_without_symmetry(part, explored_apart):
    runs = {True: 0, False: 0}
    for seed in range(25 * part, 25 * part + 25):
        kernel = polling_kernel(seed)
        assert are_alike(jax.make_jaxpr(kernel.call)()) is not kernel.uneven
        result = explore(kernel.call, target="v6e", schedules=300)
        apart = explored_apart(kernel.call, schedules=300)
        if "open" not in (result.verdict, apart.verdict):
            assert (result.verdict, result.differs) == (apart.verdict, apart.differs), seed
        if apart.verdict != "wrong":
            assert result.runs <= apart.runs
            runs[True] += result.runs
            runs[False] += apart.runs
    assert runs[True] < runs[False]


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 12))]
)
def test_all_orders_of_threads_that_do_the_same(part):
    """By brute force, as far as there are not too many; loops that end at an odd count, too."""
    most = 300
    for seed in range(25 * part, 25 * part + 25):
        program = symmetric_program(seed)
        falls = not any(kind == "poll odd" for kind, _ in program[0])
        with few_polls():
            plain, _ = outcomes(program)
            reduced, _ = outcomes(program, alike=True, waits_for_more=falls)
            every, count = outcomes(program, ExhaustiveOrder, most)
        assert reduced == plain, seed
        assert reduced == every if count < most else reduced >= every, seed


def test_the_last_device_to_enter_is_not_ahead():
    """Whether device 0 sees the signal depends on the order, though device 1 enters last."""

    def body(o_ref, sems):
        o_ref[0] = o_ref[1] = 0
        me = jax.lax.axis_index("x")
        pl.when(me == 1)(lambda: signal(sems.at[0], 1))

        @pl.when(me == 0)
        def _():
            o_ref[0] = pl.semaphore_read(sems.at[0])
            pl.semaphore_wait(sems.at[0], 1)

    assert explore(on_mesh(body, 2), target="v6e").differs


# Which devices are alike.


def even(o_ref, sems):
    signal(sems.at[jax.lax.axis_index("x") % 2], 1)
    o_ref[0] = jax.lax.fori_loop(0, 3, lambda step, sum_: sum_ + step, 0)
    pl.when(pl.semaphore_read(sems.at[0]) > 0)(lambda: signal(sems.at[0], 1))


def one_device_more(o_ref, sems):
    pl.when(jax.lax.axis_index("x") == 0)(lambda: signal(sems.at[0], 1))


def as_many_rounds_as_devices_before(o_ref, sems):
    me = jax.lax.axis_index("x")
    jax.lax.fori_loop(0, me, lambda *_: signal(sems.at[0], 1), None)


def data_decide(o_ref, sems):
    o_ref[0] = 1
    pl.when(o_ref[0] > 0)(lambda: signal(sems.at[0], 1))


def data_in_a_scope(o_ref, sems):
    me = jax.lax.axis_index("x")

    def scope(memory):
        memory[0] = 1
        pl.when(me > 0)(lambda: signal(sems.at[0], 1))

    pl.run_scoped(scope, pltpu.SMEM((1,), jnp.int32))


def state_of_a_loop_that_looks(o_ref, sems):
    def look(state):
        return pl.semaphore_read(sems.at[0]), state[1] + o_ref[0]

    o_ref[1] = jax.lax.while_loop(lambda state: state[0] < 1, look, (0, 0))[1]


@pytest.mark.parametrize(
    ("body", "alike"),
    [
        (even, True),
        (one_device_more, False),
        (as_many_rounds_as_devices_before, False),
        (data_decide, False),
        (data_in_a_scope, False),
        (state_of_a_loop_that_looks, False),
    ],
)
def test_which_devices_are_alike(body, alike):
    jaxpr = jax.make_jaxpr(on_mesh(body, 4, 2))()
    assert are_alike(jaxpr) is alike


def test_an_argument_that_decides():
    def call(number: Any) -> Any:
        def body(number_ref, o_ref, sem):
            pl.when(number_ref[0] > 0)(lambda: signal(sem, 1))

        return pl.pallas_call(
            body,
            out_shape=jax.ShapeDtypeStruct((1,), jnp.int32),
            in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)],
            scratch_shapes=[pltpu.SemaphoreType.REGULAR],
        )(number)

    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((2,), ("x",), auto, devices=jax.devices()[:2])
    function = jax.shard_map(call, mesh=mesh, in_specs=P("x"), out_specs=P("x"), check_vma=False)
    assert not are_alike(jax.make_jaxpr(function)(np.zeros(2, np.int32)))


def test_one_device_is_alike_to_none():
    assert not are_alike(jax.make_jaxpr(lambda x: x + 1)(1))


# Which loops wait for more.


@pytest.mark.parametrize(
    ("condition", "more"),
    [
        (lambda count: count < 3, True),
        (lambda count: ~(count + 1 >= 3), True),
        (lambda count: jnp.maximum(count, 1).astype(jnp.float32) < 3, True),
        (lambda count: 0 - count > -3, True),
        (lambda count: count != 3, False),
        (lambda count: count % 2 == 0, False),
        (lambda count: (count < 1) | (count > 2), False),
        (lambda count: (count < 1) | (count < 2) & (count < 3), True),
        (lambda count: (count & 1) < 1, False),
        (lambda count: (count | 2) < 3, False),
        (lambda count: count.astype(jnp.int8) < 3, False),
    ],
)
def test_which_loops_wait_for_more(condition, more):
    def body(o_ref, sems):
        o_ref[0] = jax.lax.while_loop(condition, lambda _: pl.semaphore_read(sems.at[0]), 0)

    def in_condition(o_ref, sems):
        o_ref[0] = jax.lax.while_loop(
            lambda _: condition(pl.semaphore_read(sems.at[0])), lambda _: 1, 0
        )

    for one in (body, in_condition):
        assert wait_for_more(jax.make_jaxpr(on_mesh(one, 2))()) is more


def counts_rounds(o_ref, sems):
    o_ref[0] = jax.lax.while_loop(
        lambda state: state[0] < 1,
        lambda state: (pl.semaphore_read(sems.at[0]), state[1] + 1),
        (0, 0),
    )[1]


def signals_in_rounds(o_ref, sems):
    def look(_):
        signal(sems.at[1], 1)
        return pl.semaphore_read(sems.at[0])

    o_ref[0] = jax.lax.while_loop(lambda count: count < 1, look, 0)


def looks_twice(o_ref, sems):
    def look(_):
        return pl.semaphore_read(sems.at[0]) + pl.semaphore_read(sems.at[1])

    o_ref[0] = jax.lax.while_loop(lambda count: count < 2, look, 0)


@pytest.mark.parametrize("body", [counts_rounds, signals_in_rounds, looks_twice])
def test_loops_that_do_more_than_wait(body):
    assert not wait_for_more(jax.make_jaxpr(on_mesh(body, 2, 2))())
