"""Operations of engines beside the threads: TMA copies, ``cp.async``, ``wgmma``, ``tcgen05``.

An operation is a few steps: it reads its sources, writes its targets, arrives at a barrier. They
happen at any time between its start and the wait that proves it done: with seed 0 as late as a wait
lets them, with another seed at any time before. With seed 0, a kernel that reads too early gets the
old values, and one that overwrites sources too early sends the new ones. To add an operation:

    sides = [Side(source, False, "x_ref"), Side(target, True, "buffer")]
    operation = EngineOperation(Asynchronous("the TMA copy", sides), thread.block)
    start(thread, operation, steps=[read, write_and_arrive], barriers=[barrier], line=line)

``steps`` are functions without arguments, called in order. The last one arrives at ``barriers`` by
``complete``, and a wait on one of them makes the operation go on. Operations that a thread waits
for by other instructions (``wait_smem_to_gmem``, ``wgmma_wait``) are in its ``OperationGroups``;
``finish`` runs one and records that the thread knows. Operations with equal ``Asynchronous.chain``
happen in the order in which they were started, as on one tensor core.

The monitor of order reads the sides: an access to them is a race if it comes neither before the
start nor after the proof that the operation is done. ``Side.proxied`` is for engines that see
writes of threads only after ``commit_smem`` (PTX ISA, "Memory Consistency Model: Proxies").
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pallas_sim.findings import Finding, Wait
from pallas_sim.gpu.threads import (
    Barrier,
    EngineOperation,
    GpuLaunch,
    GpuThread,
    OperationGroups,
    Step,
    ThreadBlock,
    WarpOperations,
    Warps,
)
from pallas_sim.order.accesses import overlap
from pallas_sim.recording import Asynchronous, Completed, Finished, Forked, Released, Side

#: With a seed, the share of events at which an operation goes on. A run has one of these, so that
#: engines are fast in some runs and late in others.
_GOES_ON = (0.05, 0.3, 0.7)


def reading_then_writing[Value](
    read: Callable[[], Value], write: Callable[[Value], None]
) -> list[Step]:
    """Return the steps of an operation that reads all its sources before it writes.

    Args:
      read: returns the content of the sources.
      write: takes that content, and writes the targets.
    """
    values: list[Value] = []
    return [lambda: values.append(read()), lambda: write(values[0])]


def refills(thread: GpuThread, *, of_jax: bool) -> bool:
    """Return whether a write through the asynchronous proxy needs a fence after earlier reads.

    Args:
      thread: that starts it.
      of_jax: whether a pipeline of JAX's starts it. There the kernel can put a fence only if it
        releases the buffer itself (``manual_consumed_barriers``).
    """
    fences = thread.machine.read_fences
    return fences == "all" or (fences == "kernel" and (thread.released or not of_jax))


def start(
    thread: GpuThread,
    operation: EngineOperation,
    *,
    steps: Sequence[Step],
    line: str,
    barriers: Sequence[Barrier] = (),
    reads: int | None = None,
) -> None:
    """Start an operation, which may not have done anything yet when this returns.

    Args:
      thread: that starts it.
      operation: with the memory that it accesses.
      steps: in order.
      line: ``file:line`` of the start.
      barriers: that the last step arrives at.
      reads: how many steps are left when its sources have been read; by default all but the first.
    """
    launch, record = thread.kernel_launch, operation.record
    record.thread, record.line = thread.number, line or thread.around
    record.program, record.kernel = thread.program, thread.kernel
    record.apart = launch.lanes_apart and len(thread.lanes) > 1
    operation.steps.extend(steps)
    operation.count = len(steps)
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
        # A thread that waits there has to look again, because it is to make the operation go on.
        if not moves_by_choice(thread):
            barrier.wake(thread.machine)
    go_on(thread)
    thread.machine.scheduler.pause()


def moves_by_choice(thread: GpuThread) -> bool:
    """Return whether operations move by choice only, so that a wait makes none of them go on."""
    return thread.machine.choices.explores and thread.machine.scheduler.current is not None


def go_on(thread: GpuThread) -> None:
    """Let some operations take steps, if the run has a seed."""
    choices, launch = thread.machine.choices, thread.kernel_launch
    share = choices.one_of(_GOES_ON)
    while launch.operations and choices.chance(share):
        advance(launch, launch.operations[choices.among(len(launch.operations))])


def advance(launch: GpuLaunch, operation: EngineOperation) -> None:
    """Run the next step of an operation, or of one that must happen before it."""
    chain = operation.record.chain
    if chain is not None:
        operation = next(other for other in launch.operations if other.record.chain == chain)
    if operation.steps:
        operation.steps.popleft()()
    if not operation.steps:
        launch.operations.remove(operation)
        for barrier in operation.barriers:
            barrier.coming.remove(operation)
    for task in operation.waiting:
        launch.thread.machine.scheduler.wake(task)
    operation.waiting.clear()


@dataclass(frozen=True, eq=False)
class LaunchEngines:
    """What moves beside the threads of a launch; see ``machine.Engines``.

    Attributes:
      launch: which one.
    """

    launch: GpuLaunch

    def started(self) -> Sequence[EngineOperation]:
        """Return the operations that are not done."""
        return self.launch.operations

    def movable(self) -> Sequence[EngineOperation]:
        """Return the operations whose next step can happen: the first one of each chain."""
        chains: dict[Any, EngineOperation] = {}
        for operation in self.launch.operations:
            chain = operation.record.chain
            chains.setdefault(operation if chain is None else chain, operation)
        return list(chains.values())

    def move(self, operation: EngineOperation) -> Sequence[Side]:
        """Let the next step happen: it reads unless all sources were read, and may be the last."""
        reads = len(operation.steps) > operation.reads
        advance(self.launch, operation)
        writes = not operation.steps
        return [side for side in operation.record.sides if (writes if side.writes else reads)]


def complete(
    operation: EngineOperation, barrier: Barrier, *, nbytes: int = 0, arrivals: int = 0
) -> None:
    """Arrive at a barrier as the last step of an operation, so that waiting threads know.

    Args:
      operation: that is done.
      barrier: where it arrives.
      nbytes: bytes that it brings, which a thread has announced.
      arrivals: how many arrivals of the phase it counts for: 1 for ``tcgen05.commit``.
    """
    phase, thread = barrier.phases[-1], operation.block.warpgroups[0]
    phase.operations.append(operation)
    thread.recording.events.append(Completed(operation.record, phase.token))
    barrier.expected -= nbytes
    count_arrivals(thread, barrier, arrivals, operation.record.line)


def count_arrivals(thread: GpuThread, barrier: Barrier, arrivals: int, line: str) -> None:
    """Count arrivals at a barrier, and report more of them than its phase has.

    Args:
      thread: that arrives, or a thread of the block whose engine does.
      barrier: where.
      arrivals: how many; 0 if bytes have come.
      line: ``file:line``.
    """
    machine = thread.machine
    barrier.pending -= arrivals
    if barrier.pending < 0:
        message = (
            f"more arrivals at {barrier.name} than the {barrier.arrivals} of its phase: "
            f"{barrier.expected} bytes are missing before it is complete"
        )
        finding = thread.report("phase", message, line, ref=barrier.name, seed=machine.seed)
        machine.shown.add(finding.key)
        barrier.pending = 0  # so that the run goes on as if it had not arrived
    barrier.end_phase_if_complete(machine, line)


def run_steps(operation: EngineOperation, *, sources_only: bool = False) -> None:
    """Run the steps of an operation: all of them, or those that read its sources."""
    left = operation.reads if sources_only else 0
    while len(operation.steps) > left:
        advance(operation.block.cluster.launch, operation)


def finish(thread: GpuThread, operation: EngineOperation, *, sources_only: bool = False) -> None:
    """Wait for an operation, or until its sources have been read."""
    _wait_for_steps(thread, operation, operation.reads if sources_only else 0)
    operation.released = True
    if not sources_only:
        know(operation)
    thread.recording.events.append(
        Finished(thread.number, operation.record, writes=not sources_only)
    )


def _wait_for_steps(thread: GpuThread, operation: EngineOperation, left: int) -> None:
    """Wait until an operation has so many steps left."""
    if not moves_by_choice(thread):
        run_steps(operation, sources_only=left > 0)
        return
    scheduler = thread.machine.scheduler
    scheduler.stop()  # what comes before does not come after the operation
    while len(operation.steps) > left:
        task = scheduler.current
        assert task is not None
        operation.waiting.append(task)
        scheduler.block(lambda: Wait(owner=thread.owner, on=operation.record.what))
    thread.machine.choices.operation_done(operation, operation.count - left)


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
    for earlier in operation.before:
        if not earlier.waited:
            know(earlier)


def end_block(block: ThreadBlock, thread: GpuThread) -> None:
    """Run the operations of a block to their end, and report those that no thread waited for."""
    device = block.cluster.launch.thread.number
    for operation in list(block.open.values()):
        _wait_for_steps(thread, operation, 0)
        record = operation.record
        # The end of a kernel proves to the device that all of its operations are done.
        thread.recording.events.append(Finished(device, record))
        # A store to global memory may end after its block, but not before its sources have been
        # read: they are shared memory, which another block gets next.
        if not record.sides or (operation.lasting and operation.released):
            continue
        names = [side.name for side in record.sides if side.name]
        from_ = [side.name for side in record.sides if not side.writes and side.name]
        to = [side.name for side in record.sides if side.writes and side.name]
        between = " to ".join(" and ".join(dict.fromkeys(ends)) for ends in (from_, to) if ends)
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


# The tensor core of Blackwell.
#
# It runs the products and copies of a block in order. A warp learns from a barrier that its own are
# done: ``tcgen05.commit`` arrives there for all of them. Warps wait for their own loads from tensor
# memory and stores to it. In the recording, the tensor core is a thread of its own for each warp
# that starts something. This thread knows what the tensor core has done, and a commit passes that
# on. So a product needs no wait for an earlier one of the same tensor core.


def start_on_tensor_core(
    thread: GpuThread, what: str, sides: Sequence[Side], steps: Sequence[Step], line: str
) -> None:
    """Start a product or a copy.

    Args:
      thread: that starts it.
      what: its name in messages.
      sides: the memory that it accesses.
      steps: in order.
      line: ``file:line``.
    """
    mine = _operations_of_warp(thread)
    record = Asynchronous(what, list(sides), chain=_chain(thread.block))
    operation, events = EngineOperation(record, thread.block), thread.recording.events

    def last_step() -> None:
        steps[-1]()
        events.append(Finished(mine.number, record))

    # A wait for a product proves that the operations which it continues are done, too.
    operation.before = [
        earlier
        for warp in thread.block.tensor_core.started.values()
        for earlier in warp.unknown
        if not earlier.waited and _continues(record, earlier.record)
    ]
    mine.unknown.append(operation)
    _enter_chain(thread)
    start(thread, operation, steps=[*steps[:-1], last_step], line=line)


def _operations_of_warp(thread: GpuThread) -> WarpOperations:
    """Return what the tensor core does for a thread; the first of its warps starts that."""
    started, warp = thread.block.tensor_core.started, (thread.warpgroup, thread.lanes[0])
    if warp not in started:
        name = ", ".join(filter(None, (thread.owner.thread, "tensor core")))
        owners = thread.machine.owners
        number = owners.setdefault(replace(thread.owner, thread=name), len(owners))
        started[warp] = WarpOperations(number)
    return started[warp]


def _continues(record: Asynchronous, earlier: Asynchronous) -> bool:
    """Return whether a product adds to, or reads, what an earlier one writes to tensor memory."""
    return any(
        overlap(one.region, other.region)
        for one in record.sides
        for other in earlier.sides
        if one.tensor_core and one.role != "copied" and other.tensor_core and other.writes
    )


def commit(thread: GpuThread, barriers: Sequence[Barrier], line: str) -> None:
    """Arrive at barriers once everything is done that this thread has started."""
    mine, events = _operations_of_warp(thread), thread.recording.events
    mine.unknown = [operation for operation in mine.unknown if not operation.waited]
    covered = list(mine.unknown)
    record = Asynchronous("the tcgen05 commit", [], chain=_chain(thread.block))
    operation = EngineOperation(record, thread.block)

    def arrive() -> None:
        for barrier in barriers:
            phase = barrier.phases[-1]
            phase.operations += covered
            events.append(Released(mine.number, phase.token))
            complete(operation, barrier, arrivals=1)

    _enter_chain(thread)
    start(thread, operation, steps=[arrive], barriers=barriers, line=line)


def _enter_chain(thread: GpuThread) -> None:
    """Take the next place in the order of the tensor core, which several warps may want."""
    thread.machine.scheduler.stop()
    choices = thread.machine.choices
    choices.operate("change", ("tensor core", *thread.block.location), 0)
    choices.matter = choices.matter or len(thread.block.tensor_core.started) > 1


def _chain(block: ThreadBlock) -> tuple[str, int]:
    return "tcgen05", id(block)


def load_from_tensor_memory(thread: GpuThread, side: Side, line: str) -> None:
    """Note a load. Its values are known here, but on the chip it may read until the wait for it."""
    record = Asynchronous(
        "the load from tensor memory", [side], thread.number, line, thread.program, thread.kernel
    )
    thread.recording.events.append(Forked(thread.number, record))
    thread.block.tensor_core.loads.append(((thread.warpgroup, thread.lanes), record))


def wait_for_loads(thread: GpuThread) -> None:
    """Wait for the loads of a thread from tensor memory."""
    core = thread.block.tensor_core
    for warps, record in core.loads:
        if _is_of(thread, warps):
            thread.recording.events.append(Finished(thread.number, record))
    core.loads = [load for load in core.loads if not _is_of(thread, load[0])]


def store_to_tensor_memory(thread: GpuThread, side: Side, write: Step, line: str) -> None:
    """Start a store."""
    operation = EngineOperation(Asynchronous("the store to tensor memory", [side]), thread.block)
    start(thread, operation, steps=[write], line=line)
    thread.block.tensor_core.stores.append(((thread.warpgroup, thread.lanes), operation))


def wait_for_stores(thread: GpuThread) -> None:
    """Wait for the stores of a thread to tensor memory."""
    core = thread.block.tensor_core
    for warps, operation in core.stores:
        if _is_of(thread, warps):
            finish(thread, operation)
    core.stores = [store for store in core.stores if not _is_of(thread, store[0])]


def _is_of(thread: GpuThread, warps: Warps) -> bool:
    """Return whether warps belong to a thread: a warpgroup waits for its warps' operations."""
    return warps[0] == thread.warpgroup and set(warps[1]) <= set(thread.lanes)
