"""Copies that run beside the cores, and the semaphores that say how far they are.

A copy is any number of chunks. Each is two events in this order: its part of the source is read,
its part of the target is written; then their bytes are added to the semaphores. Chunks of different
copies interleave. When each event happens is up to the machine: in the plain order (seed 0) a copy
is one chunk and happens as late as a wait lets it, with another seed at any time before.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.findings import Owner, Wait
from pallas_sim.memory import Elements, Region
from pallas_sim.recording import Signalled, Started, Waited
from pallas_sim.scheduler import Task, deadlock

if TYPE_CHECKING:
    from pallas_sim.machine import Machine, Thread

#: With a seed, the share of operations at which a copy goes on: one of these for the whole run, so
#: that copies are fast in some runs and late in others.
_GOES_ON = (0.05, 0.3, 0.7)

#: Who has started a copy that is not started.
_NOBODY = Owner()

#: With a seed, the most chunks of a copy.
_CHUNKS = 4


@dataclass(slots=True, weakref_slot=True, eq=False)
class Semaphore:
    """A counter that copies and signals add to, and waits take from.

    Attributes:
      name: of the reference it belongs to, with its index.
      kind: ``"dma"``, which counts bytes, ``"regular"`` or ``"barrier"``.
      count: what is there to be taken.
      promised: what was added, or will be by copies that were started.
      taken: what waits took.
      copies: those that add to it and are not proved to be done.
      coming: those of them that have something left to add.
      waiting: the tasks that wait for more.
      lasting: whether it outlives the kernel.
    """

    name: str
    kind: str
    count: int = 0
    promised: int = 0
    taken: int = 0
    copies: list[Copy] = field(default_factory=list)
    coming: list[Copy] = field(default_factory=list)
    waiting: list[Task] = field(default_factory=list)
    lasting: bool = False


@dataclass(slots=True, eq=False)
class Chunk:
    """A part of a copy.

    Attributes:
      copy: of which it is a part.
      size: bytes that each semaphore gets.
      key: which elements of source and target it has; None for all of them.
      values: what was read; None before.
    """

    copy: Copy
    size: int
    key: tuple[slice, ...] | None = None
    values: Array | None = None

    def read(self) -> None:
        """Read its part of the source."""
        copy = self.copy
        if copy.read is not None:
            self.values = copy.read()
        else:
            assert isinstance(copy.source, np.ndarray)
            self.values = (copy.source if self.key is None else copy.source[self.key]).copy()

    def write(self) -> None:
        """Write its part of the target."""
        copy, values = self.copy, self.values
        assert values is not None
        if copy.write is not None:
            copy.write(values)
        else:
            assert isinstance(copy.target, np.ndarray)
            copy.target[... if self.key is None else self.key] = values


@dataclass(slots=True, weakref_slot=True, eq=False)
class Copy:
    """A copy that was started.

    Attributes:
      source: the memory that is read.
      target: the memory that is written; None while it is that of a device that is not there yet.
      names: of both references.
      size: bytes that each semaphore gets.
      sent: the semaphore that gets them once the source is read, or None.
      done: the semaphore that gets them once the target is written, or None.
      line: where it was started.
      program: the grid point at which it was started.
      kernel: name of the kernel that started it, or "".
      owner: who started it.
      home: the device whose memory the target is.
      read: reads the source, where that is no view of memory.
      write: writes the target, where that is no view of memory, or something is added.
      whole: whether it cannot be divided into chunks.
      begun: whether it was started.
      adds: whether it adds to the target, element by element and atomically.
      lists: the memory of indices that it reads.
      unread: chunks whose source is not read.
      unwritten: chunks that are read and not written.
      waited: whether a wait took its bytes, and those of all others, from a semaphore.
      reported: whether it was found that nothing waits for it.
    """

    source: Region
    target: Region | None
    names: tuple[str, str]
    size: int
    sent: Semaphore | None
    done: Semaphore | None
    line: str
    program: tuple[int, ...] = ()
    kernel: str = ""
    owner: Owner = _NOBODY
    home: int = 0
    read: Callable[[], Array] | None = None
    write: Callable[[Array], None] | None = None
    whole: bool = True
    begun: bool = False
    adds: bool = False
    lists: tuple[Region, ...] = ()
    unread: list[Chunk] = field(default_factory=list)
    unwritten: list[Chunk] = field(default_factory=list)
    waited: bool = False
    reported: bool = False

    @property
    def sides(self) -> list[tuple[Region, bool]]:
        """The memory that it accesses, and whether it writes it."""
        sides = [(self.source, False), *((each, False) for each in self.lists)]
        return sides if self.target is None else [*sides, (self.target, True)]

    @property
    def semaphores(self) -> Sequence[Semaphore]:
        """Those that get its bytes, each once."""
        sent, done = self.sent, self.done
        if sent is None or sent is done:
            return () if done is None else (done,)
        return (sent,) if done is None else (sent, done)

    @property
    def movable(self) -> bool:
        """Whether its next event can happen."""
        return bool(self.unread) or bool(self.unwritten and self.target is not None)


def start(thread: Thread, copy: Copy) -> None:
    """Begin a copy, of which nothing need have happened when this returns."""
    machine = thread.machine
    copy.program, copy.kernel = thread.program, thread.kernel
    copy.owner, copy.begun = thread.owner, True
    copy.unread = _chunks(machine, copy)
    machine.recording.events.append(Started(thread.number, copy))
    if machine.timeline is not None:
        machine.timeline.start(thread, copy)
    for semaphore in copy.semaphores:
        promise(machine, semaphore, copy)
    machine.copies.append(copy)
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
        machine.timeline.signal(thread, semaphore, value, line)
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
    span = None if timeline is None else timeline.wait(thread, semaphore, value, line)

    while semaphore.count < value:
        coming = [copy for copy in semaphore.coming if copy.movable]
        if coming:
            advance(machine, machine.choose(coming))
        else:
            _block(thread, semaphore, value, line)
    if value >= semaphore.promised - semaphore.taken:
        for copy in semaphore.copies:
            copy.waited = True
            if timeline is not None:
                timeline.prove(machine, copy)
        semaphore.copies.clear()
    if decrement:
        semaphore.count -= value
        semaphore.taken += value
    machine.recording.events.append(
        Waited(thread.number, semaphore, value, decrement, line, thread.program)
    )
    if timeline is not None and span is not None:
        timeline.satisfy(thread, span, semaphore, takes=decrement)


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
        raise deadlock(machine, thread, (blocked(),))


def release(thread: Thread, semaphores: Iterable[Semaphore], line: str) -> None:
    """End the life of semaphores: report what is left on them, and finish their copies."""
    machine = thread.machine
    for semaphore in semaphores:
        if not semaphore.count and not semaphore.copies:
            continue
        for copy in list(semaphore.copies):
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
    """The next event of a copy: one chunk is read, or written."""
    random = machine.random if machine.seed else None
    writes = bool(copy.unwritten) and copy.target is not None
    if copy.unread and not (writes and (random is None or random.random() < 0.5)):
        chunk = copy.unread.pop(0)
        chunk.read()
        copy.unwritten.append(chunk)
        _add(machine, copy.sent, copy, chunk.size, last=not copy.unread)
        if machine.timeline is not None:
            machine.timeline.move(machine, copy, "read", chunk.size)
        return
    at = 0 if random is None else int(random.integers(len(copy.unwritten)))
    chunk = copy.unwritten.pop(at)
    chunk.write()
    finished = not copy.unread and not copy.unwritten
    _add(machine, copy.done, copy, chunk.size, last=finished)
    if finished:
        machine.copies.remove(copy)
    if machine.timeline is not None:
        machine.timeline.move(machine, copy, "written", chunk.size)
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
    """The chunks of a copy: one, or with a seed several along the first axis that has them."""
    if not machine.seed or copy.whole:
        return [Chunk(copy, copy.size)]
    source, target = copy.source, copy.target
    if isinstance(source, Elements) or isinstance(target, Elements | None):
        return [Chunk(copy, copy.size)]
    axis = next((axis for axis, size in enumerate(source.shape) if size > 1), None)
    if axis is None:
        return [Chunk(copy, copy.size)]
    rows = source.shape[axis]
    count = int(machine.random.integers(1, min(_CHUNKS, rows) + 1))
    edges = [rows * number // count for number in range(count + 1)]
    row = copy.size // rows
    return [
        Chunk(copy, row * (last - first), (*(slice(None),) * axis, slice(first, last)))
        for first, last in itertools.pairwise(edges)
    ]


def _go_on(machine: Machine) -> None:
    """With a seed: let some copies happen."""
    if not machine.seed:
        return
    share = _GOES_ON[machine.seed % len(_GOES_ON)]
    while machine.copies and machine.random.random() < share:
        copy = machine.copies[int(machine.random.integers(len(machine.copies)))]
        if copy.movable:
            advance(machine, copy)


def _unit(semaphore: Semaphore) -> str:
    return "bytes" if semaphore.kind == "dma" else ""
