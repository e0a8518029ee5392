"""A race is reported if and only if two threads can be at their accesses at the same time."""

from __future__ import annotations

from collections.abc import Callable, Collection
from random import Random
from typing import Any

import jax
import numpy as np
import pytest
from pallas_test_support.order_programs import (
    Operation,
    Program,
    Signal,
    Wait,
    draw_locks,
    reachable,
    transitions,
)

from pallas_sim import explore_runs
from pallas_sim.accesses import record_access
from pallas_sim.copies import signal, wait
from pallas_sim.cores import run_concurrently
from pallas_sim.findings import Owner
from pallas_sim.machine import Machine, Thread
from pallas_sim.order.disorder import report_disorder
from pallas_sim.order.locks import Locks
from pallas_sim.recording import Semaphore

#: Threads, each after so many operations.
type Points = Collection[tuple[int, int]]


def draw_any(random: Random) -> Program:
    """Draw threads that signal and wait, whatever that leads to."""
    semaphores = random.choice((1, 2, 2))

    def draw() -> Operation:
        number = random.randrange(semaphores)
        return Signal(number, 1) if random.random() < 0.55 else Wait(number, 1)

    threads = [[draw() for _ in range(random.choice((1, 2, 2, 3)))] for _ in range(3)]
    return Program(tuple(map(tuple, threads)), semaphores, (), 0)


def ends(program: Program, states: Any) -> bool:
    """Return whether no run of a program is a deadlock."""
    following, lengths = transitions(program), [len(thread) for thread in program.threads]
    return all(following(state) or list(state[: len(lengths)]) == lengths for state in states)


def run_of(program: Program, points: Points) -> Callable[[], tuple[Machine, Callable[[], Any]]]:
    """Return what makes a run, in which threads write the same value at points."""

    def new() -> tuple[Machine, Callable[[], Any]]:
        machine = Machine()

        def run() -> Any:
            machine.choices.begin(jax.make_jaxpr(lambda: 0)())
            root, memory = Thread(machine), np.zeros(1)
            machine.choices.name(memory, "memory")
            semaphores = [Semaphore(f"s{n}", "regular") for n in range(program.semaphores)]

            def work(thread: Thread) -> None:
                number = threads.index(thread)
                for position, operation in enumerate((None, *program.threads[number])):
                    if isinstance(operation, Signal):
                        signal(thread, semaphores[operation.semaphore], operation.amount)
                    elif isinstance(operation, Wait):
                        semaphore, takes = semaphores[operation.semaphore], operation.takes
                        wait(thread, semaphore, operation.amount, "", decrement=takes)
                    if (number, position) in points:
                        line = f"k.py:{number}{position}"
                        record_access(thread, memory, "write", "memory", line)

            threads = [root.child(Owner(core=number)) for number in range(len(program.threads))]
            run_concurrently(root, threads, work)
            report_disorder(machine, machine.recording)
            return memory

        return machine, run

    return new


@pytest.mark.parametrize("knows_locks", [True, False])
def test_races_are_what_can_happen_at_once(knows_locks, monkeypatch):
    """Without what the proof of order knows of locks, the search of all orders withdraws them."""
    if not knows_locks:
        monkeypatch.setattr(Locks, "of", lambda _: None)
    compared, apart = 0, 0
    for seed in range(120):
        random = Random(seed)
        program = (draw_locks if seed % 2 else draw_any)(random)
        if not all(isinstance(one, Signal | Wait) for thread in program.threads for one in thread):
            continue
        states = reachable(program, 20_000)
        if states is None or not ends(program, states):
            continue
        points = [
            (thread, random.randint(0, len(program.threads[thread])))
            for thread in random.sample(range(len(program.threads)), 2)
        ]
        at_once = any(all(state[thread] == at for thread, at in points) for state in states)
        result = explore_runs(run_of(program, points), 300)
        assert result.verdict == ("wrong" if at_once else "proved"), (program, points)
        compared, apart = compared + 1, apart + (not at_once)
    assert compared > 40
    assert apart > 4


def test_a_race_that_steps_between_wait_too_long_for(monkeypatch):
    """No run of a class has it at once: what thread 1 waits for comes after the write of thread 0.

    Thread 1 need not have waited: thread 2 may have what both others give before.
    """
    monkeypatch.setattr(Locks, "of", lambda _: None)
    program = Program(
        (
            (Signal(0, 1), Signal(0, 1), Signal(1, 1)),
            (Signal(0, 1), Wait(1, 1), Wait(1, 1)),
            (Wait(0, 1), Wait(0, 1), Signal(1, 1)),
        ),
        semaphores=2,
        copies=(),
        tokens=0,
    )
    result = explore_runs(run_of(program, [(0, 1), (2, 2)]), 100)
    assert (result.verdict, result.confirmed) == ("wrong", False)
