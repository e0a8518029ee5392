"""What the threads of a run did to memory and semaphores, in the order in which it happened.

Monitors read it after the run. Nothing is recorded outside of kernels that start copies, use
semaphores or run on several cores: there everything happens in one order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from pallas_sim.findings import Access
from pallas_sim.memory import Region

if TYPE_CHECKING:
    from pallas_sim.copies import Copy, Semaphore

#: Stands for the line of the access that ends the shared memory of a block.
END_OF_BLOCK = "the end of the block"

#: Gives an access of an earlier kernel to a region, or None if there was none.
Earlier = Callable[[Region], Access | None]


@dataclass(slots=True, eq=False)
class Touched:
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

    thread: int
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
class Started:
    """A thread started a copy."""

    thread: int
    copy: Copy


@dataclass(slots=True, eq=False)
class Signalled:
    """A thread added to a semaphore."""

    thread: int
    semaphore: Semaphore
    amount: int
    line: str
    program: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Waited:
    """A wait of a thread was satisfied."""

    thread: int
    semaphore: Semaphore
    amount: int
    takes: bool
    line: str
    program: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Synchronized:
    """Threads met: what each did before happened before what any does afterwards."""

    threads: tuple[int, ...]


@dataclass(slots=True, eq=False)
class Entered:
    """Memory of a device can be reached by others from here on.

    Attributes:
      thread: that allocated it.
      key: of the allocation, with its device.
    """

    thread: int
    key: Any


#: What a thread does to the memory of another device: an access may be a load or a store.
Reach = Literal["signals", "copies to", "accesses"]


@dataclass(slots=True, eq=False)
class Reached:
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

    thread: int
    key: Any
    name: str
    how: Reach
    line: str
    program: tuple[int, ...]
    kernel: str
    remedy: str


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
      proxied: whether it does so through the asynchronous proxy, to which what threads wrote
        before is visible only after a fence.
      home: the device whose memory it is.
      tensor_core: whether it is tensor memory, which not every barrier orders.
      role: in an operation of a tensor core, ``"sums"``, ``"operand"`` or ``"copied"``: see
        ``pipelines``; "" in any other.
    """

    region: Region
    writes: bool
    name: str
    adds: bool = False
    proxied: bool = False
    home: int = 0
    tensor_core: bool = False
    role: str = ""


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
    """

    what: str
    sides: list[Side]
    thread: int = -1
    line: str = ""
    program: tuple[int, ...] = ()
    kernel: str = ""
    chain: Any = None
    apart: bool = False


@dataclass(slots=True, eq=False)
class Released:
    """What a thread has done happened before what those do who acquire the token later.

    Attributes:
      thread: its number.
      token: which one.
      together: whether all lanes of the thread arrive, once they have done what they have to do.
    """

    thread: int
    token: Token
    together: bool = False


@dataclass(slots=True, eq=False)
class Acquired:
    """A thread knows what those had done who released the token, and what was completed with it."""

    thread: int
    token: Token
    line: str = ""
    program: tuple[int, ...] = ()
    kernel: str = ""


@dataclass(slots=True, eq=False)
class Fenced:
    """What a thread knows to be written is visible to its asynchronous operations from here on.

    Its lanes wait for each other, too.
    """

    thread: int


@dataclass(slots=True, eq=False)
class Forked:
    """A thread started an asynchronous operation."""

    thread: int
    operation: Asynchronous


@dataclass(slots=True, eq=False)
class Completed:
    """An asynchronous operation is done, and a thread that acquires the token knows that."""

    operation: Asynchronous
    token: Token


@dataclass(slots=True, eq=False)
class Finished:
    """A thread knows that an operation has read its sources; with ``writes``, that it is done."""

    thread: int
    operation: Asynchronous
    writes: bool = True


Event = (
    Touched
    | Started
    | Signalled
    | Waited
    | Synchronized
    | Entered
    | Reached
    | Released
    | Acquired
    | Fenced
    | Forked
    | Completed
    | Finished
)


@dataclass(eq=False)
class Recording:
    """The events of a run.

    Attributes:
      events: in the order in which they happened.
      kernels: how many kernels are running whose events matter.
    """

    events: list[Event] = field(default_factory=list)
    kernels: int = 0
