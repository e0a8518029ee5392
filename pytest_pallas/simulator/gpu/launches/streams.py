"""Kernels that begin before the one ahead of them has ended: programmatic dependent launch.

JAX lets a kernel that calls ``griddepcontrol_wait`` begin as soon as each block of the kernel ahead
has called ``griddepcontrol_launch_dependents`` or has ended. Neither makes visible what that one
wrote: only the wait does, which lasts until all kernels ahead have completed and their memory
operations are performed (PTX ISA, "Parallel Synchronization and Communication Instructions:
griddepcontrol"; CUDA Programming Guide, "Programmatic Dependent Launch and Synchronization").

Kernels are run one after the other all the same. What those ahead did to an operand is in the
recording of the one that begins early, as accesses of a thread of their own; the wait acquires a
token of that thread. So the monitor of order finds what does not come after a wait, in whatever way
the thread that accesses learns of it. The order of kernels is that of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np

from pytest_pallas.findings import Access
from pytest_pallas.simulator.concurrency.recording import (
    Earlier,
    Recording,
    Released,
    Token,
    Touched,
)
from pytest_pallas.simulator.memory.references import Elements, Region
from pytest_pallas.simulator.monitors.accesses import bounds_of, root
from pytest_pallas.simulator.thread import Thread

Array = np.ndarray[Any, Any]


class EarlierAccesses(Protocol):
    """What a kernel did to an array."""

    @property
    def writes(self) -> bool:
        """Whether it wrote the elements."""
        ...

    @property
    def adds(self) -> bool:
        """Whether it did so by atomic operations."""
        ...

    def on(self, memory: Array) -> Earlier:
        """The same of memory that stands for the array, with as many bytes in the same order."""
        ...


@dataclass(frozen=True, slots=True, eq=False)
class ElementAccesses:
    """Accesses that are known element by element.

    Attributes:
      numbers: of the last access to each element, or 0.
      access: what has a number.
      writes: see ``EarlierAccesses``.
      adds: see ``EarlierAccesses``.
    """

    numbers: Array
    access: Callable[[int], Access]
    writes: bool = True
    adds: bool = False

    def on(self, memory: Array) -> Earlier:
        """See ``EarlierAccesses``."""
        numbers = self.numbers.reshape(-1)

        def find(region: Region) -> Access | None:
            if memory.size == numbers.size and region_dtype(region) == memory.dtype:
                part = same_part(numbers.reshape(memory.shape), region, memory)
            else:  # the elements are others
                part = numbers
            found = part[part > 0]
            return self.access(int(found.flat[0])) if found.size else None

        return find


@dataclass(frozen=True, slots=True, eq=False)
class LineAccesses:
    """Reads, of which only the first and the last byte are known.

    Attributes:
      spans: each access, and where the bytes begin and end that its line read.
      writes: see ``EarlierAccesses``.
      adds: see ``EarlierAccesses``.
    """

    spans: Sequence[tuple[Access, int, int]]
    writes: bool = False
    adds: bool = False

    def on(self, memory: Array) -> Earlier:
        """See ``EarlierAccesses``."""
        base = memory.__array_interface__["data"][0]

        def find(region: Region) -> Access | None:
            low, high = (at - base for at in bounds_of(region))
            return next((one for one, start, end in self.spans if start < high and low < end), None)

        return find


@dataclass(eq=False)
class KernelAhead:
    """A kernel that may not have ended when the next one begins.

    Attributes:
      name: of the kernel.
      traces: what it did to arrays, with the array that owns the memory.
    """

    name: str
    traces: list[tuple[Array, EarlierAccesses]] = field(
        default_factory=list[tuple[Array, "EarlierAccesses"]]
    )

    def to(self, value: Array) -> Iterator[EarlierAccesses]:
        """What it did to an array that is an operand of a later kernel.

        A slice, or an array with its axes in another order, is made by a kernel of XLA's.
        """
        whole = root(value)
        if not value.flags.c_contiguous or value.nbytes != whole.nbytes:
            return
        for array, trace in self.traces:
            if array is whole:
                yield trace


@dataclass(eq=False)
class EarlyStart:
    """The begin of a kernel that need not wait for those ahead of it.

    Attributes:
      thread: the number of the thread that stands for these.
      token: that ``griddepcontrol_wait`` acquires.
      accesses: what they did to operands.
      joined: whether a block of the kernel waits before it lets the next kernel begin, so that this
        one cannot begin before those ahead have ended.
    """

    thread: int
    token: Token = field(default_factory=lambda: Token("griddepcontrol"))
    accesses: list[Touched] = field(default_factory=list[Touched])
    joined: bool = False

    def record(self, recording: Recording) -> None:
        """Begin a recording of threads that may run beside the kernels ahead."""
        recording.events += [replace(each, thread=self.thread) for each in self.accesses]
        recording.events.append(Released(self.thread, self.token))


def begin_early(
    device: Thread, operands: Sequence[tuple[Any, Array, str, bool]]
) -> EarlyStart | None:
    """What a kernel must know that may begin before those ahead of it have ended.

    Args:
      device: that runs it.
      operands: of each, its value, its memory in the kernel, its name, and whether it is written.

    Returns:
      None if there is no kernel ahead.
    """
    ahead: list[KernelAhead] = device.device.ahead
    if not ahead:
        return None
    names = " and ".join(dict.fromkeys(each.name for each in ahead))
    owner = replace(device.owner, thread=f"the kernel ahead ({names})")
    machine = device.machine
    start = EarlyStart(machine.owners.setdefault(owner, len(machine.owners)))
    for value, memory, name, written in operands:
        for trace in (trace for each in ahead for trace in each.to(value)):
            if not (trace.writes or written):
                continue
            start.accesses.append(
                Touched(
                    start.thread,
                    memory,
                    trace.writes,
                    name,
                    "",
                    (),
                    adds=trace.adds,
                    kernel=device.kernel,
                    earlier=trace.on(memory),
                )
            )
    return start


def end(device: Thread, kernel: KernelAhead, start: EarlyStart | None) -> None:
    """Note that a kernel is ahead of those that come."""
    waits = start is None or start.joined
    device.device.ahead = [kernel] if waits else [*device.device.ahead, kernel]


def region_dtype(region: Region) -> np.dtype[Any]:
    """The dtype of the elements of a region."""
    return region.memory.dtype if isinstance(region, Elements) else region.dtype


def same_part(array: Array, region: Region, whole: Array) -> Array:
    """The elements of an array of the shape of ``whole`` for those of a region of it."""
    if isinstance(region, Elements):
        return same_part(array, region.memory, whole)[(*region.key, ...)]
    return same_view(array, region, whole)


def same_view(array: Array, region: Array, whole: Array) -> Array:
    """As ``same_part``, of a view, and a view itself."""
    base = whole.__array_interface__["data"][0]
    offset = (region.__array_interface__["data"][0] - base) // whole.itemsize
    width = array.itemsize
    steps = [stride // whole.itemsize * width for stride in region.strides]
    flat = array.reshape(-1)[offset:]
    return np.lib.stride_tricks.as_strided(flat, region.shape, steps)
