"""Run copies beside the cores, and count their progress on semaphores.

A copy has one or more chunks, and a chunk has two events. First its part of the source is read, and
its bytes are added to the semaphore ``sent``; later its part of the target is written, and its
bytes are added to ``done``. The seed decides when events happen. With seed 0 a copy is one chunk,
and its events happen as late as possible: when a wait needs them. With another seed they may happen
at any time before that, and chunks of several copies interleave.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from pallas_sim.findings import Signal, Wait
from pallas_sim.machine import Machine, Thread
from pallas_sim.memory import Elements
from pallas_sim.recording import Chunk, Copy, Semaphore, Signalled, Started, Waited

#: With a seed, the probability that a copy advances when a core starts a copy, signals or waits.
#: The seed picks one of these for the whole run, so that copies are fast in some runs and late in
#: others.
_ADVANCES = (0.05, 0.3, 0.7)

#: With a seed, the most chunks of a copy. A few suffice to expose a kernel that reads a buffer
#: before all of it has arrived; more only make the run slower, because each chunk adds events.
_MOST_CHUNKS = 4


def start(thread: Thread, copy: Copy) -> None:
    """Start a copy. When this returns, any number of its events may have happened, or none."""
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
    # On a chip, this copy or others may finish before the core's next instruction.
    _advance_some(machine)
    machine.scheduler.pause()


def promise(machine: Machine, semaphore: Semaphore, copy: Copy) -> None:
    """Record that a copy will add to a semaphore, and wake the tasks that wait for the semaphore.

    They can then advance the copy themselves (``wait``).
    """
    semaphore.give(copy.owner, copy.line, copy.size, copy=True)
    semaphore.copies.append(copy)
    semaphore.coming.append(copy)
    if semaphore.waiting:
        _wake(machine, semaphore)


def signal(thread: Thread, semaphore: Semaphore, value: int, line: str = "") -> None:
    """Add ``value`` to a semaphore, and wake the tasks that wait for it."""
    machine = thread.machine
    semaphore.count += value
    semaphore.give(thread.owner, line, value, copy=False)
    machine.recording.events.append(
        Signalled(thread.number, semaphore, value, line, thread.program)
    )
    if machine.timeline is not None:
        machine.timeline.signal(thread.owner, thread.program, semaphore, value, line)
    _wake(machine, semaphore)
    _advance_some(machine)
    machine.scheduler.pause()


def wait(
    thread: Thread, semaphore: Semaphore, value: int, line: str, *, decrement: bool = True
) -> None:
    """Block until a semaphore has reached ``value``; subtract that, unless ``decrement`` is False.

    Raises:
      DeadlockError: no copy and no other task can raise the semaphore to ``value``.
    """
    machine = thread.machine
    timeline = machine.timeline
    _advance_some(machine)
    machine.scheduler.stop()
    moves_by_choice = machine.choices.explores and machine.scheduler.current is not None
    span = timeline and timeline.wait(thread.owner, thread.program, semaphore, value, line)
    # Copies advance only as far as this wait needs, which is as late as a chip can be: so a kernel
    # that reads the target of a copy too early sees its old contents.
    while semaphore.count < value:
        coming = [copy for copy in semaphore.coming if copy.movable]
        if coming and not moves_by_choice:
            advance(machine, coming[machine.choices.among(len(coming))])
        else:
            _block(thread, semaphore, value, line)
    # A wait does not name the copies whose bytes it takes. Only if it takes all bytes that were
    # promised and not taken yet has it waited for each of these copies.
    if value >= semaphore.promised - semaphore.taken:
        for copy in semaphore.copies:
            copy.waited = True
            if timeline is not None:
                timeline.move(copy, "waited", copy.size)
        semaphore.copies.clear()
    if decrement:
        semaphore.take(thread.owner, line, value)
    else:
        semaphore.looked = True
    machine.recording.events.append(
        Waited(thread.number, semaphore, value, decrement, line, thread.program)
    )
    if timeline is not None and span is not None:
        timeline.satisfy(span, semaphore, takes=decrement)


def _block(thread: Thread, semaphore: Semaphore, value: int, line: str) -> None:
    """Let other tasks run until one of them adds to the semaphore, or promises to.

    Raises:
      DeadlockError: there is no other task.
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
        machine.choices.look(thread, "wait", semaphore, line)
    if not machine.scheduler.block(blocked):
        raise thread.deadlock([blocked()])


def release(thread: Thread, semaphores: Iterable[Semaphore], line: str) -> None:
    """Finish the copies of semaphores whose scope ends; report unwaited copies and leftover counts.

    A finding is at the line of its copy, if that is known, and otherwise at ``line``.
    """
    machine = thread.machine
    for semaphore in semaphores:
        if not semaphore.count and not semaphore.copies:
            continue
        reported = 0  # bytes of copies that nothing waits for, which is a finding of its own
        for copy in list(semaphore.copies):
            # Finish the copy, so that the outputs of the run do not depend on how far it came. The
            # missing wait is a finding in any case.
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
            reported += copy.size if copy.reported else 0
        if semaphore.count and semaphore.count != reported:
            _report_leftover(thread, semaphore, line)
        semaphore.copies.clear()


def _report_leftover(thread: Thread, semaphore: Semaphore, line: str) -> None:
    """Report what a semaphore has at its end, with who gave and who took."""
    unit = _unit(semaphore)
    amount = f"{semaphore.count}{unit and ' ' + unit}"
    message = f"{semaphore.name} ends with {amount} that no wait took"
    if semaphore.count < 0:
        message = f"{semaphore.name} ends at {amount}: signals took more than was given"
    signals = tuple(
        Signal(owner=owner, amount=value, line=at, copy=copy)
        for (owner, at, copy), value in semaphore.given.items()
    )
    waits = tuple(
        Wait(owner=owner, on=semaphore.name, needed=value, had=value, unit=unit, line=at)
        for (owner, at), value in semaphore.took.items()
    )
    facts: dict[str, Any] = {"ref": semaphore.name, "signals": signals, "waits": waits}
    thread.report("leftover", message, line, seed=thread.machine.seed, **facts)


def advance(machine: Machine, copy: Copy) -> None:
    """Make one event of a copy happen: read a chunk, or write one that was read.

    With a seed, chance picks between the two where both are possible.
    """
    can_write = bool(copy.unwritten) and copy.target is not None
    choices = machine.choices
    if copy.unread and not (can_write and (not choices.vary or choices.chance(0.5))):
        chunk = copy.unread.pop(0)
        chunk.read()
        copy.unwritten.append(chunk)
        _add(machine, copy.sent, copy, chunk.size, last=not copy.unread)
        if machine.timeline is not None:
            machine.timeline.move(copy, "read", chunk.size)
        return
    number = choices.among(len(copy.unwritten))
    chunk = copy.unwritten.pop(number)  # in any order: an interconnect may have several paths
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
    """Add the bytes of a chunk to a semaphore, if there is one; ``last`` if no more will come."""
    if semaphore is None:
        return
    semaphore.count += size
    if last:
        semaphore.coming.remove(copy)
    if semaphore.waiting:
        _wake(machine, semaphore)


def _wake(machine: Machine, semaphore: Semaphore) -> None:
    """Wake all tasks that wait for a semaphore; each looks for itself whether it has enough."""
    for task in semaphore.waiting:
        machine.scheduler.wake(task)
    semaphore.waiting.clear()


def _chunks(machine: Machine, copy: Copy) -> list[Chunk]:
    """Return the chunks of a copy: with a seed, up to ``_MOST_CHUNKS``; otherwise one.

    They divide the first axis that is longer than 1. A copy of elements that arrays of indices
    name, or to a target that is not there yet, is one chunk.
    """
    undivided, source = [Chunk(copy, copy.size)], copy.source
    if not machine.choices.vary or copy.whole:
        return undivided
    if isinstance(source, Elements) or isinstance(copy.target, Elements | None):
        return undivided
    axis = next((axis for axis, size in enumerate(source.shape) if size > 1), None)
    if axis is None:
        return undivided
    rows = source.shape[axis]
    count = 1 + machine.choices.among(min(_MOST_CHUNKS, rows))
    edges = [rows * number // count for number in range(count + 1)]
    return [
        Chunk(
            copy,
            copy.size * last // rows - copy.size * first // rows,
            (*(slice(None),) * axis, slice(first, last)),
        )
        for first, last in itertools.pairwise(edges)
    ]


def _advance_some(machine: Machine) -> None:
    """With a seed, advance copies that chance picks; with seed 0 only waits advance copies."""
    choices = machine.choices
    share = choices.one_of(_ADVANCES)
    while machine.copies and choices.chance(share):
        copy = machine.copies[choices.among(len(machine.copies))]
        if copy.movable:
            advance(machine, copy)


def _unit(semaphore: Semaphore) -> str:
    return "bytes" if semaphore.kind == "dma" else ""
