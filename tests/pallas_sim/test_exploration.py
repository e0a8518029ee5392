"""Every order of a call: the explorer against brute force, on small random programs."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu import all_gather
from jax.sharding import PartitionSpec as P

from pallas_sim import explore
from pallas_sim.copies import signal, wait
from pallas_sim.cores import run_concurrently
from pallas_sim.errors import DeadlockError, OptionError
from pallas_sim.exploration.explorer import Explorer, Redundant
from pallas_sim.exploration.search import Search
from pallas_sim.findings import Owner
from pallas_sim.machine import Machine, Thread
from pallas_sim.recording import Semaphore

#: An operation of a small program: its kind, and the number of a semaphore or variable.
type Small = tuple[str, int]


def random_program(seed: int) -> list[list[Small]]:
    """Return the operations of two or three threads on two semaphores and two variables."""
    chance = random.Random(seed)
    kinds = ["signal", "signal", "wait", "wait", "look", "change"]
    return [
        [(chance.choice(kinds), chance.randrange(2)) for _ in range(length)]
        for length in chance.choice([(2, 2), (3, 2), (1, 2, 1), (2, 1, 1)])
    ]


def run_small(program: Sequence[Sequence[Small]], machine: Machine) -> str:
    """Run a small program; what a thread sees decides what it does next."""
    root = Thread(machine)
    semaphores = [Semaphore(f"s{number}", "regular") for number in range(2)]
    variables = [0, 0]
    threads = [root.child(Owner(core=number + 1)) for number in range(len(program))]

    def work(thread: Thread) -> list[int]:
        seen: list[int] = []
        for kind, number in program[threads.index(thread)]:
            semaphore = semaphores[number]
            if kind == "signal":
                signal(thread, semaphore, 1)
            elif kind == "wait":
                wait(thread, semaphore, 1, "")
            elif kind == "look":
                machine.scheduler.give_way()
                machine.choices.look(thread, "look", semaphore)
                seen.append(semaphore.count)
                if semaphore.count > 1:
                    signal(thread, semaphores[1 - number], 1)
            else:
                machine.scheduler.pause()
                machine.choices.look(thread, "change", f"v{number}")
                seen.append(variables[number])
                variables[number] = 2 * variables[number] + threads.index(thread) + 1
        return seen

    try:
        seen = run_concurrently(root, threads, work)
    except DeadlockError:
        return "deadlock"
    return str((seen, variables, [semaphore.count for semaphore in semaphores]))


class Exhaustive(Explorer):
    """Takes every choice, whether steps commute or not."""

    def _asleep(self) -> dict[Any, Any]:
        return {}

    def end(self) -> None:
        super().end()
        for node in self.nodes:
            node.wanted.update(node.enabled)


def outcomes(program: Any, kind: type[Explorer]) -> tuple[set[str], int]:
    """Return what the runs of a program give, and their number."""
    given: set[str] = set()
    runs = Search()
    while runs.left:
        machine = Machine()
        machine.choices = kind(machine=machine, nodes=runs.nodes)
        with contextlib.suppress(Redundant):
            given.add(run_small(program, machine))
        runs.learn(machine.choices)
    return given, runs.count


@pytest.mark.parametrize("seed", range(300))
def test_all_orders_of_small_programs(seed):
    program = random_program(seed)
    every, most = outcomes(program, Exhaustive)
    reduced, count = outcomes(program, Explorer)
    assert reduced == every
    assert count <= most


def arrivals(looks: bool) -> Callable[[], Any]:
    """Return a call in which device 0 hears two others, and notes how many came together."""
    mesh = jax.make_mesh((3,), ("x",), devices=jax.devices()[:3])

    def body(o_ref, sem):
        pl.semaphore_signal(sem, 1, device_id=0)

        @pl.when(jax.lax.axis_index("x") == 0)
        def _():
            pl.semaphore_wait(sem, 2)
            o_ref[0] = pl.semaphore_read(sem) if looks else 0
            pl.semaphore_wait(sem, 1)

    call = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((1,), jnp.int32),
        out_specs=pl.BlockSpec(memory_space=pltpu.SMEM),
        scratch_shapes=[pltpu.SemaphoreType.REGULAR],
        compiler_params=pltpu.CompilerParams(has_side_effects=True),
    )
    return jax.shard_map(call, mesh=mesh, in_specs=(), out_specs=P("x"), check_vma=False)


def test_a_look_at_a_count_depends_on_the_order():
    result = explore(arrivals(looks=True), target="v6e")
    assert (result.verdict, result.differs) == ("wrong", True)
    assert result.witness


def test_one_waiter_has_one_order():
    result = explore(arrivals(looks=False), target="v6e")
    assert (result.verdict, result.runs, result.classes) == ("proved", 1, 1)


def test_what_was_not_run_is_open():
    result = explore(arrivals(looks=True), target="v6e", schedules=1)
    assert (result.verdict, result.runs) == ("open", 1)


@pytest.mark.parametrize(("devices", "verdict"), [(2, "proved"), (4, "wrong")])
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
    assert bool(result.findings) == result.differs == (result.witness is not None)
    assert result.differs == (verdict == "wrong")


def test_what_cannot_be_explored():
    with pytest.raises(OptionError, match="schedules is 0"):
        explore(lambda: 0, target="v6e", schedules=0)
    with pytest.raises(OptionError, match="not for h100"):
        explore(lambda: 0, target="h100")
