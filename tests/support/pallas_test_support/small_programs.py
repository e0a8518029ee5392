"""Small random programs, and what all their orders give: by brute force, and by the explorer."""

from __future__ import annotations

import contextlib
import itertools
import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pallas_sim.accesses import record_access
from pallas_sim.copies import signal, start, wait
from pallas_sim.cores import run_concurrently
from pallas_sim.errors import DeadlockError
from pallas_sim.exploration import explorer as explorers
from pallas_sim.exploration.explorer import Redundant
from pallas_sim.exploration.orders import ReducedOrder
from pallas_sim.exploration.reduction import Search
from pallas_sim.findings import Owner, Wait
from pallas_sim.machine import Machine, Thread
from pallas_sim.recording import Copy, Semaphore

#: An operation of a small program: its kind, and the number of a semaphore, variable or element.
type Small = tuple[str, int]

#: Operations on two semaphores and two variables.
ORDER = ("signal", "signal", "wait", "wait", "look", "change", "poll")

#: The same, and accesses to two elements of memory, by threads and by copies.
MEMORY = ("signal", "signal", "wait", "poll", "read", "write", "copy")

#: Operations with loops whose rounds differ: see ``run_small``.
LOOPS = ("signal", "signal", "wait", "look", "look", "twice", "either")

#: Operations of threads that all do the same; a number is relative to that of the thread.
SYMMETRIC = ("signal", "signal", "wait", "look", "poll", "poll two", "poll odd")

#: What the loops of polls wait for.
ENOUGH = {
    "poll": lambda count: count > 0,
    "poll two": lambda count: count > 1,
    "poll odd": lambda count: count % 2 == 1,
}


def random_program(seed: int, kinds: Sequence[str] = ()) -> list[list[Small]]:
    """Return the operations of two or three threads; every third program accesses memory.

    Of loops and copies there is at most one: by brute force each has many orders.
    """
    chance = random.Random(seed)
    kinds = list(kinds or (ORDER if seed % 3 else MEMORY))
    program: list[list[Small]] = []
    lengths = [(2, 2), (3, 2), (1, 1, 1), (2, 1, 1)] if seed % 3 else [(2, 2), (2, 1)]
    for length in chance.choice(lengths):
        program.append([])
        for _ in range(length):
            kind = chance.choice(kinds)
            program[-1].append((kind, chance.randrange(2)))
            if kind in ("poll", "copy", "twice", "either"):
                kinds = ["signal", "wait", "look" if seed % 3 else "read"]
    return program


def symmetric_program(seed: int) -> list[list[Small]]:
    """Return the operations of two or three threads around a ring, which all do the same."""
    chance = random.Random(seed)
    threads, length = chance.choice([(2, 2), (2, 3), (3, 2)])
    kinds, operations = list(SYMMETRIC), list[Small]()
    for _ in range(length):
        kind = chance.choice(kinds)
        operations.append((kind, chance.randrange(threads)))
        if kind.startswith("poll"):
            kinds = ["signal", "signal", "wait", "look"]
    return [
        [(kind, (number + thread) % threads) for kind, number in operations]
        for thread in range(threads)
    ]


def run_small(program: Sequence[Sequence[Small]], machine: Machine) -> str:
    """Run a small program, and return what it gave; what a thread sees decides what it does next.

    ``look`` and ``read`` signal if they see something, ``poll`` looks until there is enough, and
    ``copy`` is waited for at the end of its thread. ``twice`` looks until it sees something, two
    times at most, and ``either`` at two semaphores in turn, until one of them has something.
    """
    root = Thread(machine)
    used = max(number for operations in program for _, number in operations) + 1
    semaphores = [Semaphore(f"s{number}", "regular") for number in range(max(used, 2))]
    variables = [0, 0]
    memory = np.array([0, 1], np.int32)
    machine.choices.name(memory, "memory")
    threads = [root.child(Owner(core=number + 1)) for number in range(len(program))]

    brute_force = isinstance(machine.choices, ExhaustiveOrder)

    def look(thread: Thread, semaphore: Semaphore) -> int:
        machine.scheduler.give_way(semaphore)
        machine.choices.look(thread, "look", semaphore)
        return semaphore.count

    def poll_count(thread: Thread, semaphore: Semaphore, enough: Callable[[int], bool]) -> int:
        mark = machine.choices.enter_round(thread, None, tuple)
        while not enough(count := look(thread, semaphore)):
            mark = machine.choices.enter_round(thread, mark, tuple)
        return count

    def block_until(
        thread: Thread, semaphores: Sequence[Semaphore], enough: Callable[[], bool]
    ) -> None:
        task = machine.scheduler.current
        while not enough():
            for semaphore in semaphores:
                semaphore.waiting.append(task)
            machine.scheduler.block(lambda: Wait(owner=thread.owner, on=semaphores[0].name))
            for semaphore in semaphores:
                semaphore.waiting[:] = [one for one in semaphore.waiting if one is not task]

    def await_count(thread: Thread, semaphore: Semaphore, enough: Callable[[int], bool]) -> int:
        machine.scheduler.stop()
        block_until(thread, [semaphore], lambda: enough(semaphore.count))
        return semaphore.count

    def look_in_turn(thread: Thread, number: int) -> tuple[int, int]:
        pair, mark = (semaphores[number], semaphores[number - 1]), None
        for looks in itertools.count():
            turn = looks % 2
            mark = machine.choices.enter_round(thread, mark, lambda turn=turn: turn)
            if count := look(thread, pair[turn]):
                return turn, count
            if brute_force and looks % 4 == 3:
                block_until(thread, pair, lambda: any(one.count for one in pair))
        raise AssertionError

    def touch(thread: Thread, number: int, kind: Any) -> np.ndarray[Any, Any]:
        machine.scheduler.pause()
        record_access(thread, memory[number : number + 1], kind, "memory", "")
        return memory[number : number + 1]

    def work(thread: Thread) -> list[int]:
        seen: list[int] = []
        copies: list[Copy] = []
        for kind, number in program[threads.index(thread)]:
            semaphore, other = semaphores[number], semaphores[number - 1]
            if kind == "signal":
                signal(thread, semaphore, 1)
            elif kind == "wait":
                wait(thread, semaphore, 1, "")
            elif kind == "look":
                seen.append(look(thread, semaphore))
                if seen[-1] > 1:
                    signal(thread, other, 1)
            elif kind in ENOUGH:
                poll = await_count if brute_force else poll_count
                seen.append(poll(thread, semaphore, ENOUGH[kind]))
            elif kind == "twice":
                mark = None
                for turn in range(2):
                    mark = machine.choices.enter_round(thread, mark, lambda turn=turn: turn)
                    seen.append(look(thread, semaphore))
                    if seen[-1]:
                        break
            elif kind == "either":
                seen += look_in_turn(thread, number)
            elif kind == "change":
                machine.scheduler.pause()
                machine.choices.look(thread, "change", f"v{number}")
                seen.append(variables[number])
                variables[number] = 2 * variables[number] + threads.index(thread) + 1
            elif kind == "read":
                seen.append(int(touch(thread, number, "read")[0]))
                if seen[-1] > 1:
                    signal(thread, semaphore, 1)
            elif kind == "write":
                touch(thread, number, "write")[0] = threads.index(thread) + 2
            else:
                source, target = memory[number : number + 1], memory[1 - number : 2 - number]
                done = Semaphore("done", "dma")
                copies.append(Copy(source, target, ("", ""), 1, semaphore, done, ""))
                start(thread, copies[-1])
        for copy in copies:
            assert copy.done is not None
            wait(thread, copy.done, 1, "")
        return seen

    try:
        seen = run_concurrently(root, threads, work)
    except DeadlockError:
        return "deadlock"
    return str((seen, variables, memory.tolist(), [semaphore.count for semaphore in semaphores]))


class ExhaustiveOrder(ReducedOrder):
    """Takes every choice, whether steps commute or not, and knows nothing of loops.

    So that there are not endlessly many choices, loops of a small program that look block until
    they can end.
    """

    def enter_round(self, thread: Any, mark: Any, state: Any) -> Any:
        del thread, mark, state

    def _asleep(self) -> dict[Any, Any]:
        return {}

    def end(self) -> None:
        super().end()
        for node in self.nodes:
            node.wanted.update(node.enabled)


def outcomes(
    program: Sequence[Sequence[Small]],
    kind: type[ReducedOrder] = ReducedOrder,
    most: int = 0,
    **facts: Any,
) -> tuple[set[str], int]:
    """Return what the runs of a program give, and their number; at most so many, if that is not 0.

    Args:
      program: that runs in all orders of its accesses to memory, too.
      kind: makes the choices.
      most: runs.
      facts: what is known of the program: see ``Explorer``.
    """
    given: set[str] = set()
    runs = Search()
    while runs.left and (not most or runs.count < most):
        machine = Machine()
        machine.choices = explorer = kind(machine=machine, nodes=runs.nodes, memory=True, **facts)
        with contextlib.suppress(Redundant):
            given.add(run_small(program, machine))
        explorer.end()
        runs.learn(explorer)
    return given, runs.count


@contextlib.contextmanager
def few_polls() -> Any:
    """Let a loop that looks give up soon: by brute force each of its rounds is a choice."""
    before, explorers.POLLS = explorers.POLLS, 1
    try:
        yield
    finally:
        explorers.POLLS = before
