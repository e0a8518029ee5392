"""Copies that run beside the cores, and the semaphores that say how far they are.

A copy is any number of chunks. Each is two events in this order: its part of the source is read,
its part of the target is written; then their bytes are added to the semaphores. Chunks of different
copies interleave. When each event happens is up to the machine: in the plain order (seed 0) a copy
is one chunk and happens as late as a wait lets it, with another seed at any time before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from pallas_sim.findings import Wait
from pallas_sim.machine import Machine, Thread
from pallas_sim.memory import Elements
from pallas_sim.recording import Chunk, Copy, Semaphore, Signalled, Started, Waited

#: With a seed, the share of operations at which a copy goes on: one of these for the whole run, so
#: that copies are fast in some runs and late in others.
_GOES_ON = (0.05, 0.3, 0.7)

#: With a seed, the most chunks of a copy. Few suffice to show a kernel that reads a buffer before
#: all of it is there, and each costs events.
_CHUNKS = 4


def start(thread: Thread, copy: Copy) -> None:
    """Begin a copy. Nothing of it need have happened when this returns."""
    machine = thread.machine
    copy.program, copy.kernel = thread.program, thread.kernel
    copy.owner, copy.begun = thread.owner, True
    copy.unread = _chunks(machine, copy)
    machine.recording.events.append(Started(thread.number, copy))
    if machine.timeline is not None:
        machine.timeline.start(copy)
    for semaphore in copy.semaphores:
        promise(machine, semaphore, copy)
    machine.copies.append(copy)
    # On a chip, a copy may be done, or others, before the core's next instruction.
    _go_on(machine)
    machine.scheduler.pause()


def promise(machine: Machine, semaphore: Semaphore, copy: Copy) -> None:
    """Note that a copy will add to a semaphore, and wake who waits for that."""
    semaphore.promised += copy.size
    semaphore.copies.append(copy)
    semaphore.coming.append(copy)
    if semaphore.waiting:
        _wake(machine, semaphore)


def signal(thread: Thread, semaphore: Semaphore, value: int, line: str = "") -> None:
    """Add to a semaphore."""
    machine = thread.machine
    semaphore.count += value
    semaphore.promised += value
    machine.recording.events.append(
        Signalled(thread.number, semaphore, value, line, thread.program)
    )
    if machine.timeline is not None:
        machine.timeline.signal(thread.owner, thread.program, semaphore, value, line)
    _wake(machine, semaphore)
    _go_on(machine)
    machine.scheduler.pause()


def wait(
    thread: Thread, semaphore: Semaphore, value: int, line: str, *, decrement: bool = True
) -> None:
    """Go on once a semaphore has ``value``, and take it.

    Raises:
      DeadlockError: it never will.
    """
    machine = thread.machine
    timeline = machine.timeline
    _go_on(machine)
    span = timeline and timeline.wait(thread.owner, thread.program, semaphore, value, line)
    # Copies move only as far as somebody waits for them, which is as late as a chip can be: a
    # kernel that reads their target too early sees its old contents.
    while semaphore.count < value:
        coming = [copy for copy in semaphore.coming if copy.movable]
        if coming:
            advance(machine, machine.choose(coming))
        else:
            _block(thread, semaphore, value, line)
    # A wait does not say whose bytes it takes. Only one that takes all that was promised is a wait
    # for each of these copies.
    if value >= semaphore.promised - semaphore.taken:
        for copy in semaphore.copies:
            copy.waited = True
            if timeline is not None:
                timeline.move(copy, "waited", copy.size)
        semaphore.copies.clear()
    if decrement:
        semaphore.count -= value
        semaphore.taken += value
    machine.recording.events.append(
        Waited(thread.number, semaphore, value, decrement, line, thread.program)
    )
    if timeline is not None and span is not None:
        timeline.satisfy(span, semaphore, takes=decrement)


def _block(thread: Thread, semaphore: Semaphore, value: int, line: str) -> None:
    """Let others go on until there may be more.

    Raises:
      DeadlockError: there are no others.
    """
    machine = thread.machine

    def blocked() -> Wait:
        return Wait(
            owner=thread.owner,
            on=semaphore.name,
            needed=value,
            had=semaphore.count,
            unit=_unit(semaphore),
            line=line,
            program=thread.program,
        )

    task = machine.scheduler.current
    if task is not None:
        semaphore.waiting.append(task)
    if not machine.scheduler.block(blocked):
        raise thread.deadlock([blocked()])


def release(thread: Thread, semaphores: Iterable[Semaphore], line: str) -> None:
    """End the life of semaphores: report what is left on them, and finish their copies."""
    machine = thread.machine
    for semaphore in semaphores:
        if not semaphore.count and not semaphore.copies:
            continue
        for copy in list(semaphore.copies):
            # The finding says that nothing waits for it. What the run computes must not depend on
            # whether it was in time, too.
            while copy.movable:
                advance(machine, copy)
            if not copy.waited and not copy.reported:
                copy.reported = True
                source, target = copy.names
                message = (
                    f"the copy from {source} to {target} is not waited for before {semaphore.name} "
                    "ends"
                )
                line_of_copy = copy.line or line
                thread.report("unwaited", message, line_of_copy, ref=target, seed=machine.seed)
        if semaphore.count and not semaphore.copies:
            unit = _unit(semaphore)
            left = f"{semaphore.count}{unit and ' ' + unit}"
            message = f"{semaphore.name} ends with {left} that no wait took"
            thread.report("leftover", message, line, ref=semaphore.name, seed=machine.seed)
        semaphore.copies.clear()


def advance(machine: Machine, copy: Copy) -> None:
    """Make the next event of a copy happen: one chunk is read, or written."""
    random = machine.random if machine.seed else None
    writes = bool(copy.unwritten) and copy.target is not None
    if copy.unread and not (writes and (random is None or random.random() < 0.5)):
        chunk = copy.unread.pop(0)
        chunk.read()
        copy.unwritten.append(chunk)
        _add(machine, copy.sent, copy, chunk.size, last=not copy.unread)
        if machine.timeline is not None:
            machine.timeline.move(copy, "read", chunk.size)
        return
    at = 0 if random is None else int(random.integers(len(copy.unwritten)))
    chunk = copy.unwritten.pop(at)  # in any order: an interconnect may have several ways
    chunk.write()
    finished = not copy.unread and not copy.unwritten
    _add(machine, copy.done, copy, chunk.size, last=finished)
    if finished:
        machine.copies.remove(copy)
    if machine.timeline is not None:
        machine.timeline.move(copy, "written", chunk.size)
    if machine.inspector is not None:
        machine.inspector.written(copy)


def _add(
    machine: Machine, semaphore: Semaphore | None, copy: Copy, size: int, *, last: bool
) -> None:
    if semaphore is None:
        return
    semaphore.count += size
    if last:
        semaphore.coming.remove(copy)
    if semaphore.waiting:
        _wake(machine, semaphore)


def _wake(machine: Machine, semaphore: Semaphore) -> None:
    for task in semaphore.waiting:
        machine.scheduler.wake(task)
    semaphore.waiting.clear()


def _chunks(machine: Machine, copy: Copy) -> list[Chunk]:
    """Return the chunks of a copy: one, or with a seed several along the first long axis."""
    whole, source = [Chunk(copy, copy.size)], copy.source
    if not machine.seed or copy.whole:
        return whole
    if isinstance(source, Elements) or isinstance(copy.target, Elements | None):
        return whole
    axis = next((axis for axis, size in enumerate(source.shape) if size > 1), None)
    if axis is None:
        return whole
    rows = source.shape[axis]
    count = int(machine.random.integers(1, min(_CHUNKS, rows) + 1))
    edges = [rows * number // count for number in range(count + 1)]
    row = copy.size // rows
    return [
        Chunk(copy, row * (last - first), (*(slice(None),) * axis, slice(first, last)))
        for first, last in itertools.pairwise(edges)
    ]


def _go_on(machine: Machine) -> None:
    """Let some copies happen, with a seed."""
    if not machine.seed:
        return
    share = _GOES_ON[machine.seed % len(_GOES_ON)]
    while machine.copies and machine.random.random() < share:
        copy = machine.copies[int(machine.random.integers(len(machine.copies)))]
        if copy.movable:
            advance(machine, copy)


def _unit(semaphore: Semaphore) -> str:
    return "bytes" if semaphore.kind == "dma" else ""
