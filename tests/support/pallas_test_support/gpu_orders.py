"""Random programs of threads on a GPU, all that they can do, and what an exploration finds of it.

Threads of a block arrive at barriers and wait for them, test them, start operations of engines that
arrive there, and change memory atomically. What a thread sees decides what it does next. ``truth``
walks all interleavings of a model of its own, which shares no code with the simulator.
``explored`` runs the program on the simulator, in one order of each class.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np

from pallas_sim.compat.jaxprs import BarrierFacts
from pallas_sim.cores import BlockMesh, run_concurrently
from pallas_sim.errors import DeadlockError
from pallas_sim.exploration.explorer import Redundant
from pallas_sim.exploration.orders import ReducedOrder
from pallas_sim.exploration.reduction import Search
from pallas_sim.findings import Owner
from pallas_sim.gpu.barriers import arrive, test, wait
from pallas_sim.gpu.engines import LaunchEngines, complete, end_block, finish, start
from pallas_sim.gpu.portable_accesses import BlockAccess, ProgramBlock
from pallas_sim.gpu.portable_order import GridProgram, SharedArray, WaitingPrograms
from pallas_sim.gpu.threads import (
    Barrier,
    BlockCluster,
    EngineOperation,
    GpuLaunch,
    GpuThread,
    ThreadBlock,
)
from pallas_sim.machine import Machine, Thread
from pallas_sim.memory import Arena, Ref
from pallas_sim.recording import Asynchronous

#: What the program of a thread is made of: a kind, and the number of a barrier or a variable.
#:
#: ``arrive``, ``wait`` and ``test`` at a barrier; ``copy``, which announces bytes at a barrier, and
#: whose engine brings them; ``engine``, which only arrives there; ``drain``, which waits for what
#: the thread has started; ``add`` to a variable; ``fetch``, which adds and sees the old value;
#: ``lock``, which sets a variable if it is 0; ``spin``, until it is not 0. After a ``test`` that is
#: right, a ``fetch`` of an odd number and a ``lock`` that failed, the next operation is left out.
type Small = tuple[str, int]

KINDS = (
    *("arrive", "arrive", "arrive", "wait", "wait", "wait", "test", "copy", "copy", "engine"),
    *("drain", "add", "fetch", "lock", "spin"),
)

BARRIERS, VARIABLES, BYTES = 2, 2, 4


@dataclass(frozen=True)
class SmallProgram:
    """A program: how many arrivals a phase of each barrier has, and what each thread does."""

    arrivals: tuple[int, ...]
    threads: tuple[tuple[Small, ...], ...]


def random_program(seed: int) -> SmallProgram:
    """Return a program of two or three threads."""
    chance = Random(seed)
    lengths = chance.choice([(3, 3), (4, 3), (2, 2, 2), (3, 2, 2), (4, 4)])
    threads: list[tuple[Small, ...]] = []
    for length in lengths:
        threads.append(tuple((chance.choice(KINDS), chance.randrange(2)) for _ in range(length)))
    return SmallProgram(tuple(chance.choice([1, 1, 2]) for _ in range(BARRIERS)), tuple(threads))


# The truth.


@dataclass(frozen=True)
class _State:
    """A state of the model.

    Attributes:
      at: the next operation of each thread.
      seen: by each thread.
      turns: how often each thread has waited for each barrier.
      barriers: completed phases, arrivals that are missing, bytes that are missing.
      memory: the variables.
      flying: operations of engines that are not done: thread, barrier, and whether it brings bytes.
      wrong: whether a phase got too many arrivals, or somebody missed one.
    """

    at: tuple[int, ...]
    seen: tuple[tuple[int, ...], ...]
    turns: tuple[tuple[int, ...], ...]
    barriers: tuple[tuple[int, int, int], ...]
    memory: tuple[int, ...] = (0,) * VARIABLES
    flying: tuple[tuple[int, int, bool], ...] = ()
    wrong: bool = False


def truth(program: SmallProgram) -> set[str]:
    """Return what the program can end with."""
    count = len(program.threads)
    first = _State(
        (0,) * count,
        ((),) * count,
        ((0,) * BARRIERS,) * count,
        tuple((0, arrivals, 0) for arrivals in program.arrivals),
    )
    ends: set[str] = set()
    known, left = {first}, [first]
    while left:
        state = left.pop()
        after = list(_steps(program, state))
        ended = all(at >= len(one) for at, one in zip(state.at, program.threads, strict=True))
        if state.wrong:
            ends.add("phase")
        elif not after:
            ends.add(_end(state.seen, state.memory) if ended else "deadlock")
        else:
            fresh = set(after) - known
            known |= fresh
            left += fresh
    return ends


def _end(seen: Sequence[Sequence[int]], memory: Sequence[int]) -> str:
    return f"{[list(one) for one in seen]} {list(memory)}"


def _steps(program: SmallProgram, state: _State) -> Iterator[_State]:
    for number in dict.fromkeys(range(len(state.flying))):
        _, barrier, brings = state.flying[number]
        rest = (*state.flying[:number], *state.flying[number + 1 :])
        yield _arrived(
            program, replace(state, flying=rest), barrier, 0 if brings else 1, -BYTES * brings
        )
    for thread, operations in enumerate(program.threads):
        if state.at[thread] < len(operations):
            yield from _step(program, state, thread, *operations[state.at[thread]])


def _step(
    program: SmallProgram, state: _State, thread: int, kind: str, number: int
) -> Iterator[_State]:
    if kind in ("wait", "test"):
        completed, turn = state.barriers[number][0], state.turns[thread][number]
        passed = completed > turn and (completed - turn) % 2 == 1
        if passed or (kind == "wait" and completed > turn):
            wrong = state.wrong or completed > turn + 1
            turns = _put(state.turns, thread, _put(state.turns[thread], number, turn + 1))
            state = replace(state, turns=turns, wrong=wrong)
        elif kind == "wait":
            return
        yield _goes_on(state, thread, seen=int(passed) if kind == "test" else None)
    elif kind == "arrive":
        yield _goes_on(_arrived(program, state, number, 1, 0), thread)
    elif kind in ("copy", "engine"):
        if kind == "copy":
            state = _arrived(program, state, number, 1, BYTES)
        flying = (*state.flying, (thread, number, kind == "copy"))
        yield _goes_on(replace(state, flying=tuple(sorted(flying))), thread)
    elif kind == "drain":
        if all(owner != thread for owner, _, _ in state.flying):
            yield _goes_on(state, thread)
    elif kind == "spin":
        if state.memory[number]:
            yield _goes_on(state, thread)
    else:
        old = state.memory[number]
        new = old + 1 + thread if kind != "lock" else old or 1
        state = replace(state, memory=_put(state.memory, number, new))
        skips = (kind == "fetch" and old % 2 == 1) or (kind == "lock" and old != 0)
        yield _goes_on(state, thread, seen=None if kind == "add" else old, skips=skips)


def _put(values: tuple[Any, ...], at: int, value: Any) -> tuple[Any, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _goes_on(
    state: _State, thread: int, seen: int | None = None, *, skips: bool | None = None
) -> _State:
    skips = bool(seen) if skips is None else skips
    at = _put(state.at, thread, state.at[thread] + 1 + skips)
    if seen is None:
        return replace(state, at=at)
    return replace(state, at=at, seen=_put(state.seen, thread, (*state.seen[thread], seen)))


def _arrived(
    program: SmallProgram, state: _State, number: int, arrivals: int, nbytes: int
) -> _State:
    completed, pending, missing = state.barriers[number]
    pending, missing = pending - arrivals, missing + nbytes
    wrong = state.wrong or pending < 0
    if not pending and not missing:
        completed, pending = completed + 1, program.arrivals[number]
    barriers = _put(state.barriers, number, (completed, pending, missing))
    return replace(state, barriers=barriers, wrong=wrong)


# The simulator.


def run(program: SmallProgram, machine: Machine) -> str:
    """Run a program on the simulator, and return what it ends with."""
    root = Thread(machine)
    launch = GpuLaunch(root, BlockMesh((), (), ("wg", len(program.threads))))
    machine.engines.append(LaunchEngines(launch))
    cluster = BlockCluster(launch, ())
    block = ThreadBlock(cluster, (), Arena.of_size(16, 0))
    cluster.blocks.append(block)
    barriers = [
        Barrier(f"b{number}", block, BarrierFacts(arrivals), arrivals, number)
        for number, arrivals in enumerate(program.arrivals)
    ]
    for barrier in barriers:
        machine.choices.name(barrier, barrier.location)
    waiting = WaitingPrograms(machine)
    machine.scheduler.idle.append(waiting.look_again)
    memories = [SharedArray(np.zeros(1, np.int32)) for _ in range(VARIABLES)]
    for number, memory in enumerate(memories):
        machine.choices.name(memory.array, ("variable", number))
    threads = [
        GpuThread(machine, owner=Owner(thread=f"warpgroup {number}"), block=block, warpgroup=number)
        for number in range(len(program.threads))
    ]
    block.warpgroups += threads
    block.running = len(threads)

    def work(thread: Any) -> list[int]:
        grid_program = GridProgram(thread.warpgroup, (thread.warpgroup,))
        blocks = [ProgramBlock(one, grid_program, (...,), waiting=waiting) for one in memories]
        seen = list(_run_thread(program.threads[thread.warpgroup], thread, barriers, blocks))
        block.running -= 1
        if not block.running:
            end_block(block, thread)
        return seen

    try:
        seen = run_concurrently(root, threads, work)
    except DeadlockError:
        seen = None
    kinds = Counter(finding.kind for finding in machine.findings)
    if kinds["phase"]:
        return "phase"
    values = [int(memory.array[0]) for memory in memories]
    return "deadlock" if seen is None else _end(seen, values)


def _run_thread(
    operations: Sequence[Small], thread: GpuThread, barriers: Any, blocks: Any
) -> Iterator[int]:
    started: list[EngineOperation] = []
    at = 0
    while at < len(operations):
        kind, number = operations[at]
        line, at = f"{thread.warpgroup}:{at}", at + 1
        seen, skips = None, False
        if kind == "arrive":
            arrive(thread, barriers[number], line)
        elif kind == "wait":
            wait(thread, barriers[number], line)
        elif kind == "test":
            seen = int(test(thread, barriers[number], line))
            skips = bool(seen)
        elif kind in ("copy", "engine"):
            started.append(_start(thread, barriers[number], line, brings=kind == "copy"))
        elif kind == "drain":
            for operation in started:
                finish(thread, operation)
        else:
            access = _access(thread, blocks[number], line)
            if kind == "spin":
                mark, choices = None, thread.machine.choices
                while not int(access.load(volatile=True)[0]):
                    mark = choices.enter_round(thread, mark, tuple)
                continue
            add = np.array([1 + thread.warpgroup], np.int32)
            change, operator = (_set_if_free, "cas") if kind == "lock" else (np.add, "add")
            old = int(access.update(change, add, operator, used=kind != "add")[0])
            seen = None if kind == "add" else old
            skips = (kind == "fetch" and old % 2 == 1) or (kind == "lock" and old != 0)
        at += skips
        if seen is not None:
            yield seen


def _set_if_free(old: Any, _: Any) -> Any:
    return np.where(old == 0, 1, old)


def _access(thread: GpuThread, block: ProgramBlock, line: str) -> BlockAccess:
    ref = Ref(block.memory.array, "variable", "gmem", block=block)
    return BlockAccess(thread, ref, (), (), line, (1,))


def _start(thread: GpuThread, barrier: Barrier, line: str, *, brings: bool) -> EngineOperation:
    operation = EngineOperation(Asynchronous("the operation", []), thread.block)

    def end() -> None:
        complete(operation, barrier, nbytes=BYTES * brings, arrivals=int(not brings))

    if brings:
        arrive(thread, barrier, line, expects=BYTES)
    start(thread, operation, steps=[lambda: None, end], line=line, barriers=[barrier])
    return operation


def explored(program: SmallProgram) -> tuple[set[str], int]:
    """Return what the runs of an exploration end with, and their number."""
    ends: set[str] = set()
    runs = Search()
    while runs.left:
        machine = Machine(target="h100")
        machine.monitored = False
        machine.choices = order = ReducedOrder(machine=machine, nodes=runs.nodes)
        with contextlib.suppress(Redundant):
            ends.add(run(program, machine))
        if machine.findings and machine.findings[0].kind == "phase":
            ends.add("phase")
        order.end()
        runs.learn(order)
    return ends, runs.count


def disagreement(seed: int) -> str:
    """Return how an exploration of a random program differs from the truth; "" if it does not.

    Where a phase may get too many arrivals, or somebody may miss one, a run that shows that is
    enough: the search ends there.
    """
    program = random_program(seed)
    true, (ends, _) = truth(program), explored(program)
    same = "phase" in ends if "phase" in true else ends == true
    return (
        "" if same else f"{program}: {sorted(true - ends)} not found, {sorted(ends - true)} found"
    )
