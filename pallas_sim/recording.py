"""The record of a run: its semaphores and copies, and what threads did to them and to memory.

Events stand in the order in which they happened. The proof of order (``order``) reads them after
the run, or after each kernel that runs alone. Nothing is recorded outside of kernels that start
copies, use semaphores or run on several cores: there everything happens in one order.

First comes what events are about: a ``Semaphore``, and a ``Copy`` with its ``Chunk``s (``copies``
says what happens to them). Then the events of a TPU's threads, and last those of a GPU's, whose
barriers pass on ``Token``s and whose engines do ``Asynchronous`` operations.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.findings import Access, Owner
from pallas_sim.memory import Region
from pallas_sim.scheduler import Task

#: Who has started a copy that is not started.
_NOBODY = Owner()


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
      looked: whether something looked at the count without taking from it.
      given: what was added, by who signalled or started the copy, line, and whether it was a copy.
      took: what waits took, by who waited and line.
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
    looked: bool = False
    given: dict[tuple[Owner, str, bool], int] = field(default_factory=dict)
    took: dict[tuple[Owner, str], int] = field(default_factory=dict)

    def give(self, owner: Owner, line: str, amount: int, *, copy: bool) -> None:
        """Note who adds to it, now or by a copy that was started."""
        self.promised += amount
        key = (owner, line, copy)
        self.given[key] = self.given.get(key, 0) + amount

    def take(self, owner: Owner, line: str, amount: int) -> None:
        """Take an amount, which is there, and note who does."""
        self.count -= amount
        self.taken += amount
        key = (owner, line)
        self.took[key] = self.took.get(key, 0) + amount


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
        sides = [(self.source, False), *((indices, False) for indices in self.lists)]
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


# Events.

#: Stands for the line of the access that ends the shared memory of a block.
END_OF_BLOCK = "the end of the block"

#: Gives an access of an earlier kernel to a region, or None if there was none.
Earlier = Callable[[Region], Access | None]


class Event:
    """Something that happened in a run."""

    __slots__ = ()


@dataclass(slots=True, eq=False)
class ThreadEvent(Event):
    """Something that a thread, named by its number, did or knows."""

    thread: int


@dataclass(slots=True, eq=False)
class Touched(ThreadEvent):
    """A thread read or wrote memory.

    Attributes:
      thread: its number.
      region: the memory.
      writes: whether it wrote.
      name: of the reference.
      line: ``file:line``, or what stands there.
      program: the grid point.
      frees: whether the kernel is done with the memory.
      adds: whether it wrote by adding, which is atomic.
      kernel: name of the kernel, or "".
      home: the device whose memory it is, if not the thread's own.
      earlier: of what a kernel did that may still run: which of its accesses a region meets.
    """

    region: Region
    writes: bool
    name: str
    line: str
    program: tuple[int, ...]
    frees: bool = False
    adds: bool = False
    kernel: str = ""
    home: int | None = None
    earlier: Earlier | None = None


@dataclass(slots=True, eq=False)
class Started(ThreadEvent):
    """A thread started a copy."""

    copy: Copy


@dataclass(slots=True, eq=False)
class Signalled(ThreadEvent):
    """A thread added to a semaphore."""

    semaphore: Semaphore
    amount: int
    line: str
    program: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Waited(ThreadEvent):
    """A wait of a thread was satisfied."""

    semaphore: Semaphore
    amount: int
    takes: bool
    line: str
    program: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Synchronized(Event):
    """Threads met: what each did before happened before what any does afterwards."""

    threads: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Entered(ThreadEvent):
    """Memory of a device can be reached by others from here on.

    Attributes:
      thread: that allocated it.
      key: of the allocation, with its device.
    """

    key: Any


#: What a thread does to the memory of another device: an access may be a load or a store.
Reach = Literal["signals", "copies to", "accesses"]


@dataclass(slots=True, eq=False)
class ReachedDevice(ThreadEvent):
    """A thread reaches memory or a semaphore of another device.

    Attributes:
      thread: its number.
      key: of the allocation, with its device.
      name: of the reference.
      how: what it does there, in words.
      line: ``file:line``.
      program: the grid point.
      kernel: name of the kernel, or "".
      remedy: what the kernel should do.
    """

    key: Any
    name: str
    how: Reach
    line: str
    program: tuple[int, ...]
    kernel: str
    remedy: str

    def access(self, owner: Owner) -> Access:
        """Return it as an access to the memory of the other device, by an owner."""
        return Access(
            kind="write",
            ref=self.name,
            owner=owner,
            home=self.key[0],
            line=self.line,
            program=self.program,
            copy=self.how == "copies to",
        )


@dataclass(slots=True, eq=False)
class Token:
    """Passes on what threads have done: one phase of a barrier, for example.

    Attributes:
      name: of what it belongs to.
      after: of the next phase of the barrier, once this one is complete.
      tensor_core: whether it also orders what threads did to tensor memory.
    """

    name: str = ""
    after: Token | None = None
    tensor_core: bool = True


@dataclass(slots=True, eq=False)
class Side:
    """Memory that an asynchronous operation reads or writes.

    Attributes:
      region: the memory.
      writes: whether it writes.
      name: of the reference.
      adds: whether it writes by an atomic operation.
      atomic: of which kind: see ``choices.atomic_kind``.
      proxied: whether it does so through the asynchronous proxy, to which what threads wrote
        before is visible only after a fence.
      home: the device whose memory it is.
      tensor_core: whether it is tensor memory, which not every barrier orders.
      role: in an operation of a tensor core, ``"sums"``, ``"operand"`` or ``"copied"``: see
        ``order.accesses``; "" in any other.
    """

    region: Region
    writes: bool
    name: str
    adds: bool = False
    proxied: bool = False
    home: int = 0
    tensor_core: bool = False
    role: str = ""
    atomic: str = ""


@dataclass(slots=True, eq=False)
class Asynchronous:
    """What an engine does beside the threads, as the monitor of order sees it.

    Attributes:
      what: it is, in words: ``"the TMA copy"``.
      sides: the memory that it accesses.
      thread: the number of the thread that started it.
      line: where it was started.
      program: the grid point at which it was started.
      kernel: name of the kernel.
      chain: operations with equal chains happen one after the other; None for those that have none.
      apart: whether one of several warps starts it, which may be ahead of the others.
      refills: whether it may overwrite what threads have read only after a fence.
    """

    what: str
    sides: list[Side]
    thread: int = -1
    line: str = ""
    program: tuple[int, ...] = ()
    kernel: str = ""
    chain: Any = None
    apart: bool = False
    refills: bool = False


@dataclass(slots=True, eq=False)
class Released(ThreadEvent):
    """What a thread has done happened before what those do who acquire the token later.

    Attributes:
      thread: its number.
      token: which one.
      together: whether all lanes of the thread arrive, once they have done what they have to do.
    """

    token: Token
    together: bool = False


@dataclass(slots=True, eq=False)
class Acquired(ThreadEvent):
    """A thread knows what those had done who released the token, and what was completed with it."""

    token: Token
    line: str = ""
    program: tuple[int, ...] = ()
    kernel: str = ""


@dataclass(slots=True, eq=False)
class Fenced(ThreadEvent):
    """What a thread knows to be written is visible to its asynchronous operations from here on.

    Its lanes wait for each other, too.
    """


@dataclass(slots=True, eq=False)
class Forked(ThreadEvent):
    """A thread started an asynchronous operation."""

    operation: Asynchronous


@dataclass(slots=True, eq=False)
class Completed(Event):
    """An asynchronous operation is done, and a thread that acquires the token knows that."""

    operation: Asynchronous
    token: Token


@dataclass(slots=True, eq=False)
class Finished(ThreadEvent):
    """A thread knows that an operation has read its sources; with ``writes``, that it is done."""

    operation: Asynchronous
    writes: bool = True


@dataclass(eq=False)
class Recording:
    """The events of a run, in the order in which they happened."""

    events: list[Event] = field(default_factory=list)
