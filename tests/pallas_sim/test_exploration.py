"""Every order of a call: the explorer against brute force, on small random programs."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from pallas_sim.copies import signal, wait
from pallas_sim.cores import run_concurrently
from pallas_sim.errors import DeadlockError
from pallas_sim.exploration import Explorer, Node, Redundant, search
from pallas_sim.findings import Owner
from pallas_sim.machine import Machine, Thread
from pallas_sim.recording import Semaphore

#: An operation of a small program: its kind, and the number of a semaphore or variable.
type Small = tuple[str, int]


def random_program(seed: int) -> list[list[Small]]:
    """Return the operations of two or three threads on two semaphores and a variable."""
    chance = random.Random(seed)
    kinds = ["signal", "signal", "wait", "look", "change"]
    return [
        [(chance.choice(kinds), chance.randrange(2)) for _ in range(length)]
        for length in chance.choice([(2, 2), (3, 3), (4, 2), (2, 1, 2), (2, 2, 2)])
    ]


def run_small(program: Sequence[Sequence[Small]], machine: Machine) -> Any:
    """Run a small program: returns what each thread saw; a value seen decides what follows."""
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

    seen = run_concurrently(root, threads, work)
    return str((seen, variables, [semaphore.count for semaphore in semaphores]))


class Exhaustive(Explorer):
    """Takes every choice, whether orders commute or not."""

    def _asleep(self) -> dict[Any, Any]:
        return {}


def outcomes(program: Any, kind: type[Explorer], *, all_wanted: bool) -> tuple[set[str], int]:
    """Return what the runs of a program give, and their number."""
    given: set[str] = set()

    def begin(explorer: Callable[[Machine], Explorer]) -> Any:
        machine = Machine()
        machine.choices = explorer(machine)

        def run() -> Any:
            try:
                given.add(run_small(program, machine))
            except DeadlockError:
                given.add("deadlock")

        return machine.choices, run

    nodes: list[Node] = []
    runs = 0
    from pallas_sim import exploration

    while True:
        explorer, run = begin(lambda machine: kind(machine=machine, nodes=nodes))
        try:
            run()
        except Redundant:
            pass
        explorer.finish()
        del nodes[len(explorer.steps) :]
        runs += 1
        if all_wanted:
            for node in nodes:
                node.wanted.update(node.enabled)
        else:
            explorer.past.order()
            for earlier, later in explorer.past.races:
                exploration._want_reversal(nodes[earlier], explorer.past, earlier, later)
        while nodes and not exploration._untried(nodes[-1]):
            nodes.pop()
        if not nodes:
            return given, runs
        nodes[-1].chosen = exploration._untried(nodes[-1])[0]
        assert runs < 200_000


@pytest.mark.parametrize("seed", range(300))
def test_all_orders(seed):
    program = random_program(seed)
    every, runs = outcomes(program, Exhaustive, all_wanted=True)
    reduced, fewer = outcomes(program, Explorer, all_wanted=False)
    assert reduced == every
    assert fewer <= runs
