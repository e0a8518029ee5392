"""What engines do beside the threads of a block: TMA copies, ``cp.async``, ``wgmma``, ``tcgen05``.

An operation is a few steps (it reads its sources, writes its targets, arrives at a barrier), which
happen at any time between its start and the wait that proves it done: with seed 0 as late as
a wait lets them, with another seed at any time before. To add one:

    sides = [Side(source, False, "x_ref"), Side(target, True, "buffer")]
    operation = Operation(Asynchronous("the TMA copy", sides), thread.block)
    start(thread, operation, steps=[read, write_and_arrive], barriers=[barrier], line=line)

``steps`` are functions without arguments, called in order. The last one arrives at ``barriers``, by
``barriers.complete``: a wait on one of them makes the operation go on. What is waited for otherwise
(``wait_smem_to_gmem``, ``wgmma_wait``) is kept by the thread in ``OperationGroups``;
``finish`` makes it happen and records that the thread knows. Operations with equal
``Asynchronous.chain`` happen one after the other, in the order in which they were started, as those
of one tensor core do.

The monitor of order reads the sides: an access to them that neither comes before the start nor
after what proves the operation done is a race. ``Side.proxied`` is for engines that see what
threads wrote only after ``commit_smem``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pytest_pallas.findings import Finding
from pytest_pallas.simulator.concurrency.recording import Asynchronous, Finished, Forked
from pytest_pallas.simulator.gpu.threads import GpuLaunch, GpuThread, OperationGroups

if TYPE_CHECKING:
    from pytest_pallas.simulator.gpu.barriers import Barrier
    from pytest_pallas.simulator.gpu.threads import ThreadBlock

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


def complete(operation: EngineOperation, *, sources_only: bool = False) -> None:
    """Let an operation happen: all of it, or until its sources have been read."""
    launch = operation.block.cluster.launch
    left = operation.reads if sources_only else 0
    while len(operation.steps) > left:
        advance(launch, operation)


def finish(thread: GpuThread, operation: EngineOperation, *, sources_only: bool = False) -> None:
    """A thread waits for an operation, or until its sources have been read."""
    complete(operation, sources_only=sources_only)
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
        complete(operation)
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
