"""Barriers in shared memory: phases, arrivals, and bytes that copies bring.

A phase of a barrier is complete once as many have arrived as it counts, and all bytes that they
announced are there (PTX ISA, "Parallel Synchronization and Communication Instructions:
mbarrier"). A wait tests one bit, the parity of the phase. So a barrier that has gone on by
two phases looks as if it had not gone on at all: that is reported, as are arrivals that a phase
cannot take.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pallas_sim.accesses import record_access
from pallas_sim.compat.jaxprs import BarrierFacts
from pallas_sim.dtypes import Array, convert
from pallas_sim.errors import SimulationError
from pallas_sim.findings import Finding, Wait
from pallas_sim.gpu.threads import GpuLaunch, GpuThread, OperationGroups, ThreadBlock
from pallas_sim.recording import (
    Acquired,
    Asynchronous,
    Completed,
    Finished,
    Forked,
    Released,
    Token,
)
from pallas_sim.scheduler import Task

if TYPE_CHECKING:
    from pallas_sim.gpu.threads import ThreadBlock
    from pallas_sim.machine import Machine


@dataclass(eq=False)
class BarrierPhase:
    """One phase of a barrier.

    Attributes:
      token: passes on what those have done who arrived.
      operations: that were completed with it.
    """

    token: Token
    operations: list[EngineOperation] = field(default_factory=list)


@dataclass(eq=False)
class Barrier:
    """A barrier of a block.

    Attributes:
      name: of the reference it belongs to, with its index.
      block: whose shared memory it is in.
      facts: what it is.
      arrivals: that complete a phase.
      number: among the barriers of the block.
      site: which allocation of the program it belongs to.
      index: in that allocation.
      pending: arrivals that the phase still needs.
      expected: bytes that were announced and are not there; negative if they came before.
      phases: the phase that is going on, after those that are complete.
      coming: operations that will arrive at it.
      waits: how often a warp waited for it, by warpgroup and warp.
      waiting: the tasks that wait for it.
    """

    name: str
    block: ThreadBlock
    facts: BarrierFacts
    arrivals: int
    number: int
    site: tuple[Any, ...] = ()
    index: tuple[int, ...] = ()
    pending: int = 0
    expected: int = 0
    phases: list[BarrierPhase] = field(default_factory=list)
    coming: list[EngineOperation] = field(default_factory=list)
    waits: dict[tuple[int, int], int] = field(default_factory=dict)
    waiting: list[Task] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Begin the first phase."""
        self.pending = self.arrivals
        self.phases.append(BarrierPhase(Token(self.name, tensor_core=self.facts.tensor_core)))

    @property
    def completed(self) -> int:
        """How many phases are complete."""
        return len(self.phases) - 1

    def wake(self, machine: Machine) -> None:
        """Let those that wait look again."""
        for task in self.waiting:
            machine.scheduler.wake(task)
        self.waiting.clear()


def arrive(
    thread: GpuThread, barrier: Barrier, line: str, *, expects: int = 0, count: int = 1
) -> None:
    """Arrive at a barrier, and announce bytes that the phase has to wait for.

    Args:
      thread: who arrives.
      barrier: of its own block, or of another one of the cluster.
      line: ``file:line``.
      expects: bytes.
      count: how many arrivals it is.
    """
    machine, line = thread.machine, line or thread.around
    _touch(thread, barrier, line)
    # Of a copy, one lane may announce the bytes while others have yet to come.
    together = not expects
    thread.recording.events.append(Released(thread.number, barrier.phases[-1].token, together))
    barrier.expected += expects
    barrier.pending -= count
    if barrier.pending < 0:
        message = (
            f"more arrivals at {barrier.name} than the {barrier.arrivals} of its phase: "
            f"{barrier.expected} bytes are missing before it is complete"
        )
        thread.report("phase", message, line, ref=barrier.name, seed=machine.seed)
        barrier.pending = 0
    _go_on_to_next(machine, barrier)
    go_on(thread)
    machine.scheduler.pause()


def complete(operation: EngineOperation, barrier: Barrier, size: int, machine: Machine) -> None:
    """The last step of an operation: its bytes are there, and threads that wait know that it is
    done.

    Args:
      operation: which one.
      barrier: at which it arrives.
      size: bytes.
      machine: the run.
    """
    phase = barrier.phases[-1]
    phase.operations.append(operation)
    thread = operation.block.warpgroups[0]
    thread.recording.events.append(Completed(operation.record, phase.token))
    barrier.expected -= size
    _go_on_to_next(machine, barrier)


def arrive_with(operation: EngineOperation, barrier: Barrier, machine: Machine) -> None:
    """The last step of an operation that arrives at a barrier itself: ``tcgen05.commit``."""
    phase = barrier.phases[-1]
    phase.operations.append(operation)
    thread = operation.block.warpgroups[0]
    thread.recording.events.append(Completed(operation.record, phase.token))
    barrier.pending -= 1
    _go_on_to_next(machine, barrier)


def wait(thread: GpuThread, barrier: Barrier, line: str) -> None:
    """Wait for the next phase that the thread has not waited for.

    Raises:
      DeadlockError: it never completes.
    """
    go_on(thread)
    for turn in sorted({barrier.waits.get((thread.warpgroup, warp), 0) for warp in thread.lanes}):
        _wait_for(thread, barrier, turn, line)
    for warp in thread.lanes:
        key = (thread.warpgroup, warp)
        barrier.waits[key] = barrier.waits.get(key, 0) + 1


def test(thread: GpuThread, barrier: Barrier, line: str) -> bool:
    """Whether the next phase is complete; if it is, that is as good as having waited for it."""
    machine = thread.machine
    machine.scheduler.give_way()
    turn = barrier.waits.get((thread.warpgroup, thread.lanes[0]), 0)
    if not _is_passed(barrier, turn):
        if barrier.coming:
            advance(thread.kernel_launch, barrier.coming[0])
        return False
    wait(thread, barrier, line)
    return True


def _wait_for(thread: GpuThread, barrier: Barrier, turn: int, line: str) -> None:
    machine, line = thread.machine, line or thread.around

    def blocked() -> Wait:
        return Wait(
            owner=thread.owner,
            on=f"{barrier.name} (phase {turn})",
            needed=barrier.arrivals,
            had=barrier.arrivals - barrier.pending,
            unit="arrivals",
            line=line,
            program=thread.program,
        )

    with thread.span("wait", barrier.name):
        while not _is_passed(barrier, turn):
            if barrier.completed > turn:
                _report_overrun(thread, barrier, turn, line)
            if barrier.coming:
                advance(thread.kernel_launch, barrier.coming[0])
                continue
            task = machine.scheduler.current
            if task is not None:
                barrier.waiting.append(task)
            if not machine.scheduler.block(blocked):
                raise thread.deadlock([blocked()])
        if barrier.completed > turn + 1:
            _report_overrun(thread, barrier, turn, line)
        for phase in barrier.phases[turn : barrier.completed]:
            at = (line, thread.program, thread.kernel)
            thread.recording.events.append(Acquired(thread.number, phase.token, *at))
            for operation in phase.operations:
                know(operation)


def _is_passed(barrier: Barrier, turn: int) -> bool:
    """What the parity says to a thread that waits for a phase."""
    return barrier.completed > turn and (barrier.completed - turn) % 2 == 1


def _go_on_to_next(machine: Machine, barrier: Barrier) -> None:
    if barrier.pending or barrier.expected:
        return
    barrier.pending = barrier.arrivals
    after = Token(barrier.name, tensor_core=barrier.facts.tensor_core)
    barrier.phases[-1].token.after = after
    barrier.phases.append(BarrierPhase(after))
    barrier.wake(machine)


def _touch(thread: GpuThread, barrier: Barrier, line: str) -> None:
    """Note that a block arrives at the barrier of another one, which must not have ended."""
    if barrier.block is thread.block:
        return
    door = barrier.block.doors[barrier.number : barrier.number + 1]
    record_access(thread, door, "add", barrier.name, line)


def _report_overrun(thread: GpuThread, barrier: Barrier, turn: int, line: str) -> None:
    message = (
        f"{barrier.name} has completed phase {barrier.completed - 1} before {thread.owner} waits "
        f"for phase {turn}: a wait distinguishes only odd phases from even ones"
    )
    thread.report("phase", message, line, ref=barrier.name, seed=thread.machine.seed)


def barrier_at(found: Any) -> Barrier:
    """The one barrier that a reference names.

    Raises:
      SimulationError: it names several.
    """
    if isinstance(found, Barrier):
        return found
    if found.size != 1:
        raise SimulationError(
            f"a reference to {found.size} barriers must be indexed: only one is used"
        )
    return found.reshape(-1)[0]


# What engines do beside the threads of a block: TMA copies, ``cp.async``, ``wgmma``, ``tcgen05``.
#
# An operation is a few steps (it reads its sources, writes its targets, arrives at a barrier),
# which happen at any time between its start and the wait that proves it done: with seed 0 as late
# as a wait lets them, with another seed at any time before. To add one:
#
#     sides = [Side(source, False, "x_ref"), Side(target, True, "buffer")]
#     operation = Operation(Asynchronous("the TMA copy", sides), thread.block)
#     start(thread, operation, steps=[read, write_and_arrive], barriers=[barrier], line=line)
#
# ``steps`` are functions without arguments, called in order. The last one arrives at ``barriers``,
# by ``barriers.complete``: a wait on one of them makes the operation go on. What is waited for
# otherwise (``wait_smem_to_gmem``, ``wgmma_wait``) is kept by the thread in ``OperationGroups``;
# ``finish`` makes it happen and records that the thread knows. Operations with equal
# ``Asynchronous.chain`` happen one after the other, in the order in which they were started, as
# those of one tensor core do.
#
# The monitor of order reads the sides: an access to them that neither comes before the start nor
# after what proves the operation done is a race. ``Side.proxied`` is for engines that see what
# threads wrote only after ``commit_smem``.


Step = Callable[[], None]

#: With a seed, the share of events at which an operation goes on: one of these for the whole run,
#: so that engines are fast in some runs and late in others.
_GOES_ON = (0.05, 0.3, 0.7)


@dataclass(eq=False)
class EngineOperation:
    """An operation that was started.

    Attributes:
      record: what the monitor of order sees of it.
      block: that started it, or whose memory it writes.
      steps: what is left of it.
      reads: how many steps are left when its sources have been read.
      barriers: that wait for it.
      lasting: whether its writes may come after the end of its block.
      waited: whether a thread knows that it is done.
      released: whether a thread knows that its sources were read.
      before: other operations that are done when this one is.
    """

    record: Asynchronous
    block: ThreadBlock
    steps: deque[Step] = field(default_factory=deque)
    reads: int = 0
    barriers: Sequence[Barrier] = ()
    lasting: bool = False
    waited: bool = False
    released: bool = False
    before: Sequence[EngineOperation] = ()


def reading_then_writing[Value](
    read: Callable[[], Value], write: Callable[[Value], None]
) -> list[Step]:
    """The steps of an operation that reads all its sources before it writes.

    Args:
      read: gives what the sources hold at that time.
      write: writes the targets; it gets what was read.
    """
    values: list[Value] = []
    return [lambda: values.append(read()), lambda: write(values[0])]


def start(
    thread: GpuThread,
    operation: EngineOperation,
    *,
    steps: Sequence[Step],
    line: str,
    barriers: Sequence[Barrier] = (),
    reads: int | None = None,
) -> None:
    """Begin an operation, of which nothing need have happened when this returns.

    Args:
      thread: who starts it.
      operation: what it is, and the memory that it accesses.
      steps: what happens, in order.
      line: ``file:line`` of the start.
      barriers: that the last step arrives at.
      reads: how many steps are left when its sources have been read; one less than there are if
        that is not given.
    """
    launch, record = thread.kernel_launch, operation.record
    record.thread, record.line = thread.number, line or thread.around
    record.program, record.kernel = thread.program, thread.kernel
    record.apart = launch.lanes_apart and len(thread.lanes) > 1
    operation.steps.extend(steps)
    operation.reads = max(len(steps) - 1, 0) if reads is None else reads
    operation.barriers = barriers
    thread.recording.events.append(Forked(thread.number, record))
    if thread.access_monitor is not None:
        for side in record.sides:
            thread.access_monitor.note(
                thread, side.region, side.name, line, writes=side.writes, adds=side.adds
            )
    launch.operations.append(operation)
    operation.block.open[id(operation)] = operation
    for barrier in barriers:
        barrier.coming.append(operation)
        barrier.wake(thread.machine)
    go_on(thread)
    thread.machine.scheduler.pause()


def go_on(thread: GpuThread) -> None:
    """With a seed: let some operations happen."""
    machine, launch = thread.machine, thread.kernel_launch
    if not machine.seed:
        return
    share = _GOES_ON[machine.seed % len(_GOES_ON)]
    while launch.operations and machine.random.random() < share:
        at = int(machine.random.integers(len(launch.operations)))
        advance(launch, launch.operations[at])


def advance(launch: GpuLaunch, operation: EngineOperation) -> None:
    """Let the next step of an operation happen, or of one that must happen before it."""
    chain = operation.record.chain
    if chain is not None:
        operation = next(each for each in launch.operations if each.record.chain == chain)
    if operation.steps:
        operation.steps.popleft()()
    if not operation.steps:
        launch.operations.remove(operation)
        for barrier in operation.barriers:
            barrier.coming.remove(operation)


def run_steps(operation: EngineOperation, *, sources_only: bool = False) -> None:
    """Let an operation happen: all of it, or until its sources have been read."""
    launch = operation.block.cluster.launch
    left = operation.reads if sources_only else 0
    while len(operation.steps) > left:
        advance(launch, operation)


def finish(thread: GpuThread, operation: EngineOperation, *, sources_only: bool = False) -> None:
    """A thread waits for an operation, or until its sources have been read."""
    run_steps(operation, sources_only=sources_only)
    operation.released = True
    if not sources_only:
        know(operation)
    thread.recording.events.append(
        Finished(thread.number, operation.record, writes=not sources_only)
    )


def wait_groups(
    thread: GpuThread, groups: OperationGroups, left: int, *, sources_only: bool = False
) -> None:
    """Wait until at most ``left`` groups are under way."""
    count = max(len(groups.closed) - left, 0)
    for group in groups.closed[:count]:
        for operation in group:
            finish(thread, operation, sources_only=sources_only)
    if not sources_only:
        del groups.closed[:count]


def know(operation: EngineOperation) -> None:
    """Note that a thread knows that an operation is done."""
    operation.waited = True
    operation.block.open.pop(id(operation), None)
    for each in operation.before:
        if not each.waited:
            know(each)


def settle(block: ThreadBlock, thread: GpuThread) -> None:
    """Let what a block has under way happen at its end, and report what no thread waited for."""
    device = block.cluster.launch.thread.number
    for operation in list(block.open.values()):
        run_steps(operation)
        record = operation.record
        # Whatever a kernel has under way is done when it ends.
        thread.recording.events.append(Finished(device, record))
        if not record.sides or (operation.lasting and operation.released):
            continue
        names = [side.name for side in record.sides if side.name]
        from_ = [side.name for side in record.sides if not side.writes and side.name]
        to = [side.name for side in record.sides if side.writes and side.name]
        between = " to ".join(" and ".join(dict.fromkeys(each)) for each in (from_, to) if each)
        thread.machine.report(
            Finding(
                kind="unwaited",
                message=f"{record.what} from {between} is not waited for before its block ends",
                kernel=record.kernel,
                program=record.program,
                line=record.line,
                ref=names[-1] if names else "",
                seed=thread.machine.seed,
            )
        )
    block.open.clear()


# What atomic operations and reducing copies make of the old elements and the new ones.


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


def reducer(name: str, dtype: Any) -> Callable[[Array, Array], Array]:
    """The function of the old elements and the new ones, rounded once to their dtype.

    Args:
      name: ``"add"``, ``"min"``, ``"max"``, ``"and"``, ``"or"`` or ``"xor"``; what it may be
      prefixed
        with (``"smin"``, ``"umax"``) says how bits are read, which the dtype says here.
      dtype: of the elements.

    Raises:
      SimulationError: there is no such operation.
    """
    dtype = np.dtype(dtype)
    function = _FUNCTIONS.get(name) or _FUNCTIONS.get(name[1:])
    if function is None:
        raise SimulationError(f"the simulator does not know the atomic operation {name!r}")
    if dtype.kind in "iu" and dtype.itemsize >= 4:
        return lambda old, new: function(old, new)
    wide = np.dtype(np.int32) if dtype.kind in "iu" else np.dtype(np.float32)
    wide = dtype if dtype.itemsize >= 4 else wide
    return lambda old, new: convert(function(convert(old, wide), convert(new, wide)), dtype)
