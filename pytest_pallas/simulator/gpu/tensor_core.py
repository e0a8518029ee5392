"""The tensor core of a Blackwell SM: what ``tcgen05`` instructions do beside the threads.

Products and copies to tensor memory are done here one after the other, in the order in which they
were started. PTX promises that only of some pairs: ``simulator/pipelines.py`` says which, to the
monitor of order.

A commit arrives at barriers once everything is done that its thread had started before; it covers
nothing of other threads (9.7.16.6.2.1 "Implicitly pipelined tcgen05 Instructions" and 9.7.16.12
"tcgen05.commit").

Loads from tensor memory and stores to it are no part of that order: only ``tcgen05.wait`` of the
thread that started them proves them done, that is ``wait_load_tmem`` and ``commit_tmem``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from pytest_pallas.simulator.accesses import overlap
from pytest_pallas.simulator.gpu.barriers import Barrier, arrive_with
from pytest_pallas.simulator.gpu.operations import Operation, finish, start
from pytest_pallas.simulator.gpu.threads import Block, GpuThread
from pytest_pallas.simulator.recording import Asynchronous, Finished, Forked, Released, Side

#: What a load from tensor memory is called in findings.
_LOAD = "the load from tensor memory"


@dataclass(eq=False)
class Started:
    """What one warp has started on the tensor core.

    Attributes:
      number: of the tensor core as a thread of the recording, which knows what is done.
      unknown: products and copies of which no thread knows that they are done.
    """

    number: int
    unknown: list[Operation] = field(default_factory=list)


@dataclass(eq=False)
class TensorCore:
    """The tensor core of a block.

    Attributes:
      started: by each warp, by warpgroup and warp.
      loads: from tensor memory that were not waited for, with the warps that started them.
      stores: to tensor memory that were not committed, likewise.
    """

    started: dict[tuple[int, int], Started] = field(default_factory=dict)
    loads: list[tuple[_Warps, Asynchronous]] = field(default_factory=list)
    stores: list[tuple[_Warps, Operation]] = field(default_factory=list)


#: Number of a warpgroup, and which of its warps.
_Warps = tuple[int, tuple[int, ...]]


def tensor_core(block: Block) -> TensorCore:
    """The tensor core that a block uses."""
    found = block.engines.get(TensorCore)
    if found is None:
        found = block.engines[TensorCore] = TensorCore()
    return found


def _started(thread: GpuThread) -> Started:
    """What this thread has started: it lets one of its warps do so."""
    core = tensor_core(thread.block)
    warp = (thread.warpgroup, thread.lanes[0])
    found = core.started.get(warp)
    if found is None:
        words = ", ".join(word for word in (thread.owner.thread, "tensor core") if word)
        owner = replace(thread.owner, thread=words)
        owners = thread.machine.owners
        found = core.started[warp] = Started(owners.setdefault(owner, len(owners)))
    return found


def begin(
    thread: GpuThread,
    what: str,
    sides: Sequence[Side],
    steps: Sequence[Callable[[], None]],
    line: str,
) -> None:
    """Start a product or a copy.

    Args:
      thread: who starts it.
      what: it is, in words.
      sides: the memory that it accesses.
      steps: what happens, in order.
      line: ``file:line``.
    """
    mine = _started(thread)
    record = Asynchronous(what, list(sides), chain=_chain(thread.block))
    operation, events = Operation(record, thread.block), thread.recording.events

    def done() -> None:
        steps[-1]()
        events.append(Finished(mine.number, record))

    operation.before = [
        each
        for other in tensor_core(thread.block).started.values()
        for each in other.unknown
        if not each.waited and _continues(record, each.record)
    ]
    mine.unknown.append(operation)
    start(thread, operation, steps=[*steps[:-1], done], line=line)


def _continues(record: Asynchronous, earlier: Asynchronous) -> bool:
    """Whether a product adds to, or reads, what an earlier operation writes to tensor memory."""
    return any(
        overlap(one.region, other.region)
        for one in record.sides
        for other in earlier.sides
        if one.tensor_core and one.role != "copied" and other.tensor_core and other.writes
    )


def commit(thread: GpuThread, barriers: Sequence[Barrier], line: str) -> None:
    """Let barriers be arrived at once all is done that this thread has started."""
    mine = _started(thread)
    events, machine = thread.recording.events, thread.machine
    mine.unknown = [each for each in mine.unknown if not each.waited]
    covered = list(mine.unknown)
    record = Asynchronous("the tcgen05 commit", [], chain=_chain(thread.block))
    operation = Operation(record, thread.block)

    def arrive() -> None:
        for barrier in barriers:
            phase = barrier.phases[-1]
            phase.operations += covered
            events.append(Released(mine.number, phase.token))
            arrive_with(operation, barrier, machine)

    start(thread, operation, steps=[arrive], barriers=barriers, line=line)


def _chain(block: Block) -> tuple[str, int]:
    return "tcgen05", id(block)


def load(thread: GpuThread, side: Side, line: str) -> None:
    """Note a load, whose values are there: until it is waited for, it may still be reading."""
    record = Asynchronous(_LOAD, [side], thread.number, line, thread.program, thread.kernel)
    thread.recording.events.append(Forked(thread.number, record))
    tensor_core(thread.block).loads.append(((thread.warpgroup, thread.lanes), record))


def wait_for_loads(thread: GpuThread) -> None:
    """The thread knows that its loads are done."""
    core = tensor_core(thread.block)
    for warps, record in core.loads:
        if _is_of(thread, warps):
            thread.recording.events.append(Finished(thread.number, record))
    core.loads = [each for each in core.loads if not _is_of(thread, each[0])]


def store(thread: GpuThread, side: Side, write: Callable[[], None], line: str) -> None:
    """Start a store."""
    record = Asynchronous("the store to tensor memory", [side])
    operation = Operation(record, thread.block)
    start(thread, operation, steps=[write], line=line)
    tensor_core(thread.block).stores.append(((thread.warpgroup, thread.lanes), operation))


def wait_for_stores(thread: GpuThread) -> None:
    """The thread knows that its stores are done."""
    core = tensor_core(thread.block)
    for warps, operation in core.stores:
        if _is_of(thread, warps):
            finish(thread, operation)
    core.stores = [each for each in core.stores if not _is_of(thread, each[0])]


def _is_of(thread: GpuThread, warps: _Warps) -> bool:
    """Whether these warps belong to a thread."""
    return warps[0] == thread.warpgroup and set(warps[1]) <= set(thread.lanes)
