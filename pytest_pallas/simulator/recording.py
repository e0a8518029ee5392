"""What the threads of a run did to memory and semaphores, in the order in which it happened.

Monitors read it after the run. Nothing is recorded outside of kernels that start copies, use
semaphores or run on several cores: there everything happens in one order.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_pallas.simulator.memory import Region

if TYPE_CHECKING:
    from pytest_pallas.simulator.transfers import Copy, Semaphore


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


@dataclass(slots=True, eq=False)
class Reached:
    """A thread reaches memory or a semaphore of another device.

    Attributes:
      thread: its number.
      key: of the allocation, with its device.
      name: of the reference.
      writes: whether a copy goes there; a signal otherwise.
      line: ``file:line``.
      program: the grid point.
      kernel: name of the kernel, or "".
    """

    thread: int
    key: Any
    name: str
    writes: bool
    line: str
    program: tuple[int, ...]
    kernel: str


Event = Touched | Started | Signalled | Waited | Synchronized | Entered | Reached


@dataclass(eq=False)
class Recording:
    """The events of a run.

    Attributes:
      events: in the order in which they happened.
      kernels: how many kernels are running whose events matter.
    """

    events: list[Event] = field(default_factory=list[Event])
    kernels: int = 0
