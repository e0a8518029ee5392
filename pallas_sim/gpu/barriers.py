"""Barriers in shared memory: phases, arrivals, and bytes that copies bring.

A phase of a barrier is complete after as many arrivals as it counts, and once all announced bytes
are there (PTX ISA, "Parallel Synchronization and Communication Instructions: mbarrier"). A wait
tests one bit, the parity of the phase. So a barrier that has gone on by two phases looks as if it
had not gone on at all. That is reported, as are more arrivals than a phase takes. A wait runs the
operations of engines that arrive at the barrier (``engines.py``).

A block also has 16 barriers of the hardware, with numbers, where threads of several warpgroups meet
(PTX ISA, "barrier.cta"). Only inlined code names them.
"""

from __future__ import annotations

from typing import Any

from pallas_sim.accesses import record_access
from pallas_sim.compat.jaxprs import BarrierFacts
from pallas_sim.errors import SimulationError
from pallas_sim.findings import Wait
from pallas_sim.gpu.engines import advance, count_arrivals, go_on, know, moves_by_choice
from pallas_sim.gpu.threads import Barrier, GpuThread
from pallas_sim.recording import Acquired, Released


def barrier_at(part: Any) -> Barrier:
    """Return the only barrier of a part of a reference to barriers.

    Raises:
      SimulationError: it has several.
    """
    if isinstance(part, Barrier):
        return part
    if part.size != 1:
        raise SimulationError(
            f"a reference to {part.size} barriers must be indexed: only one is used"
        )
    return part.reshape(-1)[0]


def arrive(thread: GpuThread, barrier: Barrier, line: str, *, expects: int = 0) -> None:
    """Arrive at a barrier, and announce bytes that the phase has to wait for.

    Args:
      thread: that arrives.
      barrier: of its own block, or of another one of the cluster.
      line: ``file:line``.
      expects: bytes.
    """
    thread.machine.scheduler.stop()
    _arrive(thread, barrier, line or thread.around, expects)


def _arrive(thread: GpuThread, barrier: Barrier, line: str, expects: int = 0) -> None:
    machine = thread.machine
    if barrier.block is not thread.block:
        # An arrival accesses shared memory of another block, which must not have ended.
        door = barrier.block.doors[barrier.number : barrier.number + 1]
        record_access(thread, door, "add", barrier.name, line)
    # One lane may announce the bytes of a copy before the others of its warpgroup have come.
    together = not expects
    thread.recording.events.append(Released(thread.number, barrier.phases[-1].token, together))
    barrier.expected += expects
    count_arrivals(thread, barrier, 1, line)
    go_on(thread)
    if not machine.choices.explores:
        machine.scheduler.pause()


def arrive_in_cluster(thread: GpuThread, barrier: Barrier, line: str) -> None:
    """Arrive at a barrier; at one of a cluster, in all blocks that take part."""
    axes = barrier.facts.axes
    # One instruction, whose lanes arrive in a block each: nobody passes one barrier in between.
    thread.machine.scheduler.stop()
    line = line or thread.around
    if axes is None:
        _arrive(thread, barrier, line)
        return
    cluster, here = thread.block.cluster, barrier.block
    blocks = [block for names in axes for block in cluster.along(here, names)]
    if barrier.facts.leader:
        blocks = blocks[:1]
    for block in dict.fromkeys(blocks or [here]):
        _arrive(thread, block.memory[barrier.site].data[barrier.index], line)


def wait(thread: GpuThread, barrier: Barrier, line: str) -> None:
    """Wait for the next phase that the thread has not waited for.

    Raises:
      DeadlockError: it never completes.
    """
    go_on(thread)
    thread.machine.scheduler.stop()
    _pass(thread, barrier, line)


def _pass(thread: GpuThread, barrier: Barrier, line: str) -> None:
    # Warps count their waits one by one: a WarpMesh may have let one of them wait alone.
    warps = [(thread.warpgroup, warp) for warp in thread.lanes]
    for turn in sorted({barrier.waits.get(warp, 0) for warp in warps}):
        _wait_for_phase(thread, barrier, turn, line or thread.around)
    for warp in warps:
        barrier.waits[warp] = barrier.waits.get(warp, 0) + 1


def meet(thread: GpuThread, number: int, count: int, line: str, *, waits: bool) -> None:
    """Arrive at a barrier of the hardware with all lanes, and wait for the others (PTX ISA, "bar").

    Args:
      thread: a warpgroup or a warp.
      number: of the barrier in the block, 0 to 15.
      count: threads of the block that meet there.
      line: ``file:line``.
      waits: whether the thread waits (``bar.sync``), or others wait for it (``bar.arrive``).

    Raises:
      DeadlockError: the others never come.
    """
    line = line or thread.around
    go_on(thread)
    thread.machine.scheduler.stop()
    barrier = _numbered(thread, number, count)
    if barrier.pending == barrier.arrivals:  # the first one says how many the phase takes
        barrier.arrivals = barrier.pending = count
    elif barrier.arrivals != count:
        message = f"{barrier.name} is for {barrier.arrivals} threads, and here for {count}"
        thread.report("phase", message, line, ref=barrier.name, seed=thread.machine.seed)
    turn = barrier.completed
    thread.recording.events.append(Released(thread.number, barrier.phases[-1].token, True))
    count_arrivals(thread, barrier, 32 * len(thread.lanes), line)
    go_on(thread)
    if waits:
        _wait_for_phase(thread, barrier, turn, line)
    elif not thread.machine.choices.explores:
        thread.machine.scheduler.pause()


def _numbered(thread: GpuThread, number: int, count: int) -> Barrier:
    block = thread.block
    if number not in block.numbered:
        facts = BarrierFacts(count)
        barrier = Barrier(f"barrier {number}", block, facts, count, -1 - number, of_hardware=True)
        thread.machine.choices.name(barrier, barrier.location)
        block.numbered[number] = barrier
    return block.numbered[number]


def test(thread: GpuThread, barrier: Barrier, line: str) -> bool:
    """Return whether the next phase is complete; if so, that counts as a wait for it."""
    choices = thread.machine.choices
    thread.machine.scheduler.give_way(barrier)
    choices.look(thread, "look", barrier, line or thread.around)
    if not is_passed(thread, barrier):
        if barrier.coming and not moves_by_choice(thread):
            # A loop of tests must end, so each test runs a step of an operation that arrives there.
            advance(thread.kernel_launch, barrier.coming[0])
        return False
    _pass(thread, barrier, line)
    return True


def is_passed(thread: GpuThread, barrier: Barrier) -> bool:
    """Return whether the next phase that a thread has not waited for is complete."""
    return _is_passed(barrier, barrier.waits.get((thread.warpgroup, thread.lanes[0]), 0))


def _wait_for_phase(thread: GpuThread, barrier: Barrier, turn: int, line: str) -> None:
    machine, line = thread.machine, line or thread.around

    def blocked() -> Wait:
        return Wait(
            owner=thread.owner,
            on=f"{barrier.name} (phase {turn})",
            needed=barrier.arrivals,
            had=barrier.arrivals - barrier.pending,
            unit="threads" if barrier.of_hardware else "arrivals",
            line=line,
            program=thread.program,
        )

    with thread.span("wait", barrier.name):
        while not _is_passed(barrier, turn):
            if barrier.completed > turn:
                _report_overrun(thread, barrier, turn, line)
            if barrier.coming and not moves_by_choice(thread):
                advance(thread.kernel_launch, barrier.coming[0])
                continue
            task = machine.scheduler.current
            if task is not None:
                barrier.waiting.append(task)
            if not machine.scheduler.block(blocked):
                raise thread.deadlock([blocked()])
        if barrier.completed > turn + 1 and not barrier.of_hardware:
            _report_overrun(thread, barrier, turn, line)
        machine.choices.operate("pass", barrier.location, turn, (barrier.name, line))
        # Each phase that is complete by now passes on what its arrivals have done.
        end = turn + 1 if barrier.of_hardware else barrier.completed
        for phase in barrier.phases[turn:end]:
            at = (line, thread.program, thread.kernel)
            thread.recording.events.append(Acquired(thread.number, phase.token, *at))
            for operation in phase.operations:
                know(operation)


def _is_passed(barrier: Barrier, turn: int) -> bool:
    """Return whether a waiting thread is told that a phase is complete."""
    ahead = barrier.completed - turn
    return ahead > 0 and (barrier.of_hardware or ahead % 2 == 1)


def _report_overrun(thread: GpuThread, barrier: Barrier, turn: int, line: str) -> None:
    message = (
        f"{barrier.name} has completed phase {barrier.completed - 1} before {thread.owner} waits "
        f"for phase {turn}: a wait distinguishes only odd phases from even ones"
    )
    finding = thread.report("phase", message, line, ref=barrier.name, seed=thread.machine.seed)
    thread.machine.shown.add(finding.key)
