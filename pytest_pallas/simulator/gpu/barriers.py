"""Barriers in shared memory: phases, arrivals, and bytes that copies bring.

A phase of a barrier is complete once as many have arrived as it counts, and all bytes that they
announced are there (PTX ISA, "Parallel Synchronization and Communication Instructions:
mbarrier"). A wait tests one bit, the parity of the phase. So a barrier that has gone on by
two phases looks as if it had not gone on at all: that is reported, as are arrivals that a phase
cannot take.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_pallas.compat.avals import BarrierFacts
from pytest_pallas.findings import Wait
from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.concurrency.recording import Acquired, Completed, Released, Token
from pytest_pallas.simulator.concurrency.scheduler import Task, deadlock
from pytest_pallas.simulator.gpu.operations import advance, go_on, know
from pytest_pallas.simulator.gpu.threads import GpuThread, ThreadBlock
from pytest_pallas.simulator.memory.accesses import record_access

if TYPE_CHECKING:
    from pytest_pallas.simulator.gpu.operations import EngineOperation
    from pytest_pallas.simulator.machine import Machine


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
    machine, timeline, line = thread.machine, thread.machine.timeline, line or thread.around
    span = None if timeline is None else timeline.begin(thread, "wait", barrier.name)

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
            raise deadlock(machine, thread, (blocked(),))
    if barrier.completed > turn + 1:
        _report_overrun(thread, barrier, turn, line)
    for phase in barrier.phases[turn : barrier.completed]:
        at = (line, thread.program, thread.kernel)
        thread.recording.events.append(Acquired(thread.number, phase.token, *at))
        for operation in phase.operations:
            know(operation)
    if timeline is not None and span is not None:
        timeline.end(thread, span)


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
