"""Every order of a call: the explorer against brute force, on small random programs."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import all_gather
from jax.sharding import PartitionSpec as P
from pallas_test_support.polling_kernels import on_mesh
from pallas_test_support.small_programs import (
    LOOPS,
    ExhaustiveOrder,
    few_polls,
    outcomes,
    random_program,
)

from pallas_sim import Exploration, Witness, explore, explore_runs, order_matters, simulate
from pallas_sim.accesses import record_access
from pallas_sim.copies import signal, wait
from pallas_sim.cores import run_concurrently
from pallas_sim.errors import DeadlockError, OptionError, SimulationError
from pallas_sim.findings import Owner
from pallas_sim.machine import Machine, Thread
from pallas_sim.order.disorder import report_disorder
from pallas_sim.recording import Semaphore

#: Somebody looks before the signal that another one's loop waits for; two look again, and nothing
#: else can happen.
LOOKERS = (3121, 2293, 605, 1526)


@pytest.mark.parametrize("seed", [*range(300), *LOOKERS])
def test_all_orders_of_small_programs(seed):
    """Signals, waits, looks, loops that look, atomics, copies, and values that decide branches."""
    program = random_program(seed)
    with few_polls():
        every, most = outcomes(program, ExhaustiveOrder)
        reduced, count = outcomes(program)
    assert reduced == every
    assert count <= most


@pytest.mark.parametrize("seed", range(200))
def test_all_orders_of_loops_whose_rounds_differ(seed):
    """Looks in a row, two looks at most, and looks at two counts in turn."""
    program = random_program(seed, LOOPS)
    with few_polls():
        every, most = outcomes(program, ExhaustiveOrder, 2_000)
        reduced, _ = outcomes(program)
    assert reduced == every if most < 2_000 else reduced >= every


def straight(look: Callable[[], Any]) -> Any:
    return look() + look()


def in_a_scan(look: Callable[[], Any]) -> Any:
    return jax.lax.fori_loop(0, 2, lambda _, seen: seen + look(), 0)


def in_a_loop_that_counts(look: Callable[[], Any]) -> Any:
    def body(state: Any) -> Any:
        return state[0] + 1, state[1] + look()

    return jax.lax.while_loop(lambda state: state[0] < 2, body, (0, 0))[1]


@pytest.mark.parametrize("looks", [straight, in_a_scan, in_a_loop_that_counts])
def test_two_looks_may_see_the_same(looks):
    """Only if both come before the signal, the output is another one."""

    def body(o_ref, sems):
        o_ref[0] = o_ref[1] = 0
        me = jax.lax.axis_index("x")
        pl.when(me == 1)(lambda: pl.semaphore_signal(sems.at[0], 1, device_id=0))

        @pl.when(me == 0)
        def _():
            seen = looks(lambda: pl.semaphore_read(sems.at[0]))
            o_ref[0] = (seen == 0).astype(jnp.int32)
            pl.semaphore_wait(sems.at[0], 1)

    result = explore(on_mesh(body, 2), target="v6e")
    assert (result.verdict, result.differs, result.confirmed) == ("wrong", True, True)


def test_a_loop_without_end_that_counts_its_looks():
    def body(o_ref, sems):
        o_ref[0] = o_ref[1] = jax.lax.while_loop(
            lambda state: state[0] < 1,
            lambda state: (pl.semaphore_read(sems.at[0]), state[1] + 1),
            (0, 0),
        )[1]

    result = explore(on_mesh(body, 2), target="v6e")
    assert (result.verdict, result.confirmed) == ("wrong", True)
    assert isinstance(result.error, DeadlockError)


def arrivals(looks: bool, *, more: bool = False) -> Callable[..., Any]:
    """Return a call in which device 0 hears two others, and notes how many came together.

    Args:
      looks: whether it notes that.
      more: whether an odd number that the call gets lets each device do more.
    """
    mesh = jax.make_mesh((3,), ("x",), devices=jax.devices()[:3])

    def body(number, o_ref, sem):
        pl.semaphore_signal(sem, 1, device_id=0)

        @pl.when(more & (number[0] % 2 == 1))
        def _():
            pl.semaphore_signal(sem, 1, device_id=1)
            pl.semaphore_signal(sem, -1, device_id=1)

        @pl.when(jax.lax.axis_index("x") == 0)
        def _():
            pl.semaphore_wait(sem, 2)
            o_ref[0] = pl.semaphore_read(sem) if looks else 0
            pl.semaphore_wait(sem, 1)

    call = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((1,), jnp.int32),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)],
        out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
        compiler_params=pltpu.CompilerParams(has_side_effects=True),
    )
    function = jax.shard_map(call, mesh=mesh, in_specs=P(), out_specs=P("x"), check_vma=False)
    return lambda *number: function(*(number or [np.zeros(1, np.int32)]))


def test_a_look_at_a_count_depends_on_the_order():
    result = explore(arrivals(looks=True), target="v6e")
    assert (result.verdict, result.differs, result.confirmed) == ("wrong", True, True)
    assert [reason.kind for reason in result.reasons] == ["look"]


def test_one_waiter_has_one_order():
    result = explore(arrivals(looks=False), target="v6e")
    assert (result.verdict, result.runs, result.classes) == ("proved", 1, 1)
    assert result.reasons == ()


def test_what_was_not_run_is_open():
    result = explore(arrivals(looks=True), target="v6e", schedules=1)
    assert (result.verdict, result.runs, result.left) == ("open", 1, 2)
    assert "1 runs had 1 classes of orders, and 2 more are known" in result.stopped


@pytest.fixture(scope="module")
def wrong() -> Exploration:
    return explore(arrivals(looks=True), target="v6e")


def test_a_witness_repeats_the_run(wrong):
    assert wrong.witness is not None
    text = str(wrong.witness)
    assert re.fullmatch(r"1-v6e-[0-9a-f]{8}(-\d+\.\d+)+", text)
    assert Witness.parse(text) == wrong.witness
    counts = [
        int(simulate(arrivals(looks=True), target="v6e", witness=order).values[0])
        for order in (Witness(wrong.witness.program, "v6e"), wrong.witness, text)
    ]
    assert counts == [1, 0, 0]


def test_a_witness_has_few_switches(wrong):
    assert wrong.witness is not None
    assert wrong.witness.switches == 1


def test_the_order_of_a_witness_is_drawn(wrong, tmp_path):
    file = tmp_path / "run.json"
    simulate(arrivals(looks=True), target="v6e", witness=wrong.witness, trace=file)
    events = json.loads(file.read_text())["traceEvents"]
    marks = [event["name"] for event in events if event.get("cat") == "order"]
    assert marks == ["late: device 1", "goes on: device 1 (the last step out of order)"]


def test_the_order_of_a_witness_is_told(wrong):
    first, *lines = wrong.story
    assert first == "9 steps in the plain order, then:"
    assert lines[0] == "> device 1 is late"
    assert re.fullmatch(r"  device 0: looks at sem \(test_exploration.py:\d+\)", lines[1])
    assert "> device 1 goes on, after all others" in lines


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "'' is no witness: it is 1-TARGET-PROGRAM-SKIPPED.CHOICE"),
        ("1-v6e-12345678-3", "is no witness"),
        ("1-v6e-12345678-1.2-", "is no witness"),
        ("2-v6e-12345678", "has version 2, and this simulator replays version 1"),
        ("1-v99-12345678", "is for 'v99', which is no target"),
        ("1-v6e-12345678-99999999999.1", "has more than 10,000,000 choices"),
        ("1-v6e-12345678" + "-1.2" * 99 + "x", r"\.\.\.' is no witness"),
    ],
)
def test_a_text_that_is_no_witness(text, problem):
    with pytest.raises(OptionError, match=problem):
        Witness.parse(text)


def test_a_witness_of_another_call(wrong):
    witness = wrong.witness
    assert witness is not None

    def rejected(problem: str, order: Any, looks: bool = True, **options: Any) -> None:
        with pytest.raises(OptionError, match=problem):
            simulate(arrivals(looks), **{"target": "v6e", **options}, witness=order)

    rejected("is of call .*, and this is call", witness, looks=False)
    rejected("is for v6e, and the call runs on v5e", witness, target="v5e")
    rejected("has version 2", replace(witness, version=2))
    rejected("choices are left over", replace(witness, choices=(*witness.choices, *[0] * 99, 1)))
    rejected("is 9, and 3 can go on", replace(witness, choices=(9,)))
    rejected("leave out jit=False", witness, jit=False)


def test_whether_the_order_of_a_run_matters():
    def matters(looks: bool) -> bool:
        machine = Machine()
        simulate(arrivals(looks), machine=machine)
        return order_matters(machine)

    assert matters(looks=True)
    assert not matters(looks=False)


@pytest.mark.parametrize("decides", ["value", "control"])
def test_a_callback_is_repeated_by_no_choice(decides):
    calls = itertools.count()

    def call() -> Any:
        shape = jax.ShapeDtypeStruct((1,), jnp.int32)
        number = io_callback(lambda: np.array([next(calls)], np.int32), shape)
        return arrivals(looks=True, more=decides == "control")(number) + number

    result = explore(call, target="v6e")
    assert (result.verdict, result.confirmed, result.witness) == ("open", False, None)
    assert "a callback or the time does" in result.stopped


def test_a_loop_that_looks_for_what_never_comes():
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices()[:2])

    def body(o_ref, sems):
        pl.semaphore_signal(sems.at[0], 1, device_id=1 - jax.lax.axis_index("x"))

        def look(_):
            return pl.semaphore_read(sems.at[0]) + pl.semaphore_read(sems.at[1])

        o_ref[0] = jax.lax.while_loop(lambda count: count < 2, look, 0)
        pl.semaphore_wait(sems.at[0], 1)

    call = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((1,), jnp.int32),
        out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR((2,))],
        compiler_params=pltpu.CompilerParams(has_side_effects=True),
    )
    stuck = jax.shard_map(call, mesh=mesh, in_specs=(), out_specs=P("x"), check_vma=False)
    result = explore(stuck, target="v6e")
    assert (result.verdict, result.confirmed) == ("wrong", True)
    assert isinstance(result.error, DeadlockError)


@pytest.mark.parametrize(("devices", "verdict"), [(2, "proved"), (4, "wrong"), (8, "wrong")])
def test_a_race_has_a_run_in_which_it_shows(devices, verdict):
    """The all-gather that comes with JAX."""
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((devices,), ("x",), auto, devices=jax.devices()[:devices])
    x = np.arange(8 * devices * 128, dtype=np.float32).reshape(-1, 128)
    result = explore(
        lambda x: all_gather.all_gather(x, mesh=mesh, axis_name="x", memory_space=pltpu.VMEM),
        x,
        target="v6e",
    )
    assert result.verdict == verdict
    shows = verdict == "wrong"
    assert bool(result.findings) == result.differs == result.confirmed == shows
    if shows:
        # One run proves that nothing orders two copies, and the race is reversed directly.
        assert result.runs < 6
        assert result.witness is not None
        assert result.witness.switches == 1
        assert {reason.kind for reason in result.reasons} == {"race"}


def copied_twice(x):
    """Two copies of one core write to the same place, in no order."""

    def body(x_ref, o_ref, sems):
        copies = [pltpu.make_async_copy(x_ref, o_ref, sems.at[i]) for i in range(2)]
        for copy in copies:
            copy.start()
        for copy in copies:
            copy.wait()

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        out_specs=pl.BlockSpec(memory_space=pl.ANY),
        scratch_shapes=[pltpu.SemaphoreType.DMA((2,))],
    )(x)


def test_copies_of_one_core_move_by_choice():
    result = explore(copied_twice, jnp.ones((8, 128)), target="v6e")
    assert result.verdict == "wrong"
    assert result.confirmed
    assert result.witness is not None
    assert simulate(copied_twice, jnp.ones((8, 128)), witness=result.witness).findings


def counted_by_four(permits: int) -> Exploration:
    """Explore threads that count up in memory, while they have one of the permits.

    Two take it from a semaphore and give it to another one, where two others take it from.
    """

    def new() -> tuple[Machine, Callable[[], Any]]:
        machine = Machine()

        def run() -> Any:
            machine.choices.begin(jax.make_jaxpr(lambda: 0)())
            root, memory = Thread(machine), np.zeros(1)
            semaphores = [Semaphore(name, "regular") for name in ("there", "back")]
            machine.choices.name(memory, "memory")
            signal(root, semaphores[0], permits)

            def work(thread: Thread) -> None:
                number = threads.index(thread) % 2
                wait(thread, semaphores[number], 1, "")
                record_access(thread, memory, "write", "memory", "")
                memory[0] += 1
                signal(thread, semaphores[1 - number], 1)

            threads = [root.child(Owner(core=number)) for number in range(4)]
            run_concurrently(root, threads, work)
            report_disorder(machine, machine.recording)
            return memory

        return machine, run

    return explore_runs(new, 200)


def test_an_exhausted_search_withdraws_a_finding():
    """The proof of order looks at one semaphore at a time, so it finds a race."""
    result = counted_by_four(permits=1)
    assert (result.verdict, result.findings) == ("proved", ())
    assert result.runs > 2


def test_a_race_that_changes_nothing_stays():
    """A run has the accesses in the other order, with the same values."""
    result = counted_by_four(permits=2)
    assert (result.verdict, result.confirmed, result.differs) == ("wrong", True, False)
    assert [finding.kind for finding in result.findings] == ["race"]


def test_what_cannot_be_explored():
    with pytest.raises(OptionError, match="schedules is 0"):
        explore(lambda: 0, target="v6e", schedules=0)
    out_shape = jax.ShapeDtypeStruct((3,), jnp.float32)
    odd = pl.pallas_call(lambda x_ref, o_ref: o_ref.set(x_ref[...]), out_shape=out_shape)
    with pytest.raises(SimulationError, match="power of two"):
        explore(odd, np.ones(3, np.float32), target="h100")
