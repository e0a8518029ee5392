"""Every order of a call: the explorer against brute force, on small random programs."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Sequence
from typing import Any

import pytest

from pallas_sim.copies import signal, wait
from pallas_sim.cores import run_concurrently
from pallas_sim.errors import DeadlockError
from pallas_sim.exploration import Explorer, Redundant, Runs
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

    def finish(self) -> None:
        super().finish()
        for node in self.nodes:
            node.wanted.update(node.enabled)


def outcomes(program: Any, kind: type[Explorer]) -> tuple[set[str], int]:
    """Return what the runs of a program give, and their number."""
    given: set[str] = set()
    runs = Runs()
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
