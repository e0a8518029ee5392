"""The order of clusters and of kernels: find accesses to global memory that nothing orders.

Clusters of one launch run at any time, and in any order. Unless a kernel has semaphores, two
accesses of different clusters to one element are a race if one of them writes, except if both are
atomic (``Footprints``). For every element it is enough to know one access that writes, two clusters
that read, and two that change it atomically: one of two is always another cluster's. As in
FastTrack (Flanagan and Freund, PLDI 2009), an access then costs a few operations of numpy, whatever
happened before.

A kernel may begin before the one ahead of it has ended (programmatic dependent launch). JAX lets a
kernel that calls ``griddepcontrol_wait`` begin as soon as each block of the kernel ahead has called
``griddepcontrol_launch_dependents`` or has ended. Neither makes visible what that kernel wrote.
Only the wait does, which lasts until all kernels ahead have completed and their memory operations
are performed (PTX ISA, "Parallel Synchronization and Communication Instructions: griddepcontrol";
CUDA Programming Guide, "Programmatic Dependent Launch and Synchronization"). Here kernels run one
after the other all the same. The recording of a kernel that begins early has the accesses of the
kernels ahead to its operands, which their footprints know, as those of another thread. The wait
acquires a token of that thread. So the monitor of order finds the accesses that do not come after a
wait, however the accessing thread learns of it. The order of kernels is that of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Literal

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.findings import Access
from pallas_sim.gpu.threads import EarlyStart
from pallas_sim.machine import Thread
from pallas_sim.memory import Elements, Region
from pallas_sim.order.accesses import (
    address_of,
    addresses_of,
    bounds_of,
    index_of,
    root,
    same_part,
    same_view,
)
from pallas_sim.recording import Touched

#: ``"volatile"``: a load that is no race with an atomic.
GlobalAccessKind = Literal["read", "write", "atomic", "volatile"]

#: The earlier accesses that an access is a race with.
RACES_WITH: Mapping[GlobalAccessKind, tuple[GlobalAccessKind, ...]] = MappingProxyType(
    {
        "read": ("write", "atomic"),
        "write": ("write", "read", "atomic", "volatile"),
        "atomic": ("write", "read"),
        "volatile": ("write",),
    }
)


@dataclass(slots=True, eq=False)
class _ArrayShadow:
    """The last accesses to an array, element by element.

    Attributes:
      array: that owns the memory.
      last: numbers of accesses from 1, or 0; of reads and atomics those of two clusters.
    """

    array: Array
    last: Mapping[GlobalAccessKind, Array]


@dataclass(slots=True, eq=False)
class _Reads:
    """The lines that read an array which the kernel does not write.

    Attributes:
      array: that owns the memory.
      spans: an access of each line, and where the bytes begin and end that it read.
    """

    array: Array
    spans: dict[str, tuple[Access, int, int]] = field(default_factory=dict)

    def note(self, thread: Thread, region: Region, name: str, line: str) -> None:
        """Note that a line reads a region."""
        low, high = (at - address_of(self.array) for at in bounds_of(region))
        access, least, most = self.spans.get(line) or (
            _access(thread, region, name, line, "read")(),
            low,
            high,
        )
        self.spans[line] = access, min(least, low), max(most, high)

    def find(self, memory: Array, region: Region) -> Access | None:
        """Find a line's read; see ``EarlierAccesses``. Its first and last byte are known only."""
        low, high = (at - address_of(memory) for at in bounds_of(region))
        spans = self.spans.values()
        return next((access for access, start, end in spans if start < high and low < end), None)


@dataclass(eq=False)
class Footprints:
    """The accesses of the clusters of one launch.

    Attributes:
      seed: of the run.
      cluster: number of the cluster that runs.
      accesses: make those of arrays that the kernel writes, in order. Only those that are reported
        are made.
      shadows: of the arrays that the kernel writes, by identity.
      reads: of the other arrays, by identity.
      kept: which elements reach something, of outputs that the kernel only writes, by identity.
      concurrent: whether clusters run at the same time, and the monitor of order compares them.
    """

    seed: int = 0
    cluster: int = 0
    accesses: list[Callable[[], Access]] = field(default_factory=list[Callable[[], Access]])
    shadows: dict[int, _ArrayShadow] = field(default_factory=dict)
    reads: dict[int, _Reads] = field(default_factory=dict)
    kept: dict[int, Array] = field(default_factory=dict)
    concurrent: bool = False
    _clusters: Array = field(default_factory=lambda: np.zeros(256, np.int32))

    def watch(self, array: Array) -> None:
        """Note the accesses to an array from here on."""
        whole = root(array)
        kept: Mapping[GlobalAccessKind, int] = {"write": 1, "read": 2, "atomic": 2}
        self.shadows[id(whole)] = _ArrayShadow(
            whole, {kind: np.zeros((n, *whole.shape), np.int32) for kind, n in kept.items()}
        )

    def watch_reads(self, array: Array) -> None:
        """Note which lines read an array that the kernel does not write."""
        whole = root(array)
        self.reads[id(whole)] = _Reads(whole)

    def note(
        self, thread: Thread, region: Region, name: str, line: str, *, writes: bool, adds: bool
    ) -> None:
        """Note an access of the cluster that runs; see ``machine.AccessMonitor``."""
        whole = root(region)
        identity = id(whole)
        shadow = self.shadows.get(identity)
        if shadow is None:
            reads = self.reads.get(identity)
            if reads is not None and not writes:
                reads.note(thread, region, name, line)
            return
        kind: GlobalAccessKind = "atomic" if adds else "write" if writes else "read"
        access = _access(thread, region, name, line, "write" if writes else "read")
        self.accesses.append(access)
        kept = self.kept.get(identity)
        region = _elements_of(region, whole)
        number = len(self.accesses)
        if number == len(self._clusters):
            self._clusters = np.concatenate([self._clusters, np.zeros_like(self._clusters)])
        self._clusters[number] = self.cluster
        for other in () if self.concurrent else RACES_WITH[kind]:
            for numbers in shadow.last.get(other, ()):
                part = same_part(numbers, region, whole)
                racing = (part > 0) & (self._clusters[part] != self.cluster)
                if kept is not None:
                    racing &= same_part(kept, region, whole)
                theirs = part[racing]
                if theirs.size:
                    self._report(thread, access(), self.accesses[int(theirs.flat[0]) - 1]())
        self._keep(shadow.last[kind], region, whole, number)

    def kernel_ahead(self, name: str) -> KernelAhead:
        """Return the accesses of the kernel, for kernels that begin before it has ended."""
        kernel = KernelAhead(name)
        # One access of a kind is enough: a wait orders all accesses of a kernel ahead, or none.
        for shadow in self.shadows.values():
            for kind in ("write", "atomic", "read"):
                numbers = shadow.last[kind][0]
                kernel.keep(shadow.array, numbers, lambda number: self.accesses[number - 1](), kind)
        for reads in self.reads.values():
            if reads.spans:
                kernel.traces.append(EarlierAccesses(reads.array, reads.find))
        return kernel

    def _report(self, thread: Thread, access: Access, earlier: Access) -> None:
        name = access.ref or "memory"
        thread.report(
            "race",
            f"race on {name}: nothing orders two accesses of different blocks",
            access.line,
            ref=access.ref,
            accesses=(access, earlier),
            seed=self.seed,
        )

    def _keep(self, kept: Array, region: Region, whole: Array, number: int) -> None:
        """Remember an access; of two numbers, the second one is of another cluster than the first.

        So an access of any third cluster is compared with another cluster's.
        """
        inside = region.memory if isinstance(region, Elements) else region
        key: Any = (*region.key, ...) if isinstance(region, Elements) else ...
        first = same_view(kept[0], inside, whole)
        if len(kept) > 1:
            second = same_view(kept[1], inside, whole)
            before = first[key]
            theirs = (before > 0) & (self._clusters[before] != self.cluster)
            if theirs.any():
                second[key] = np.where(theirs, before, second[key])
        first[key] = number


def _access(
    thread: Thread, region: Region, name: str, line: str, kind: Any
) -> Callable[[], Access]:
    """Return what makes the access of a thread to a region, as the thread is now."""
    owner, program = thread.owner, thread.program
    return lambda: Access(
        kind=kind, ref=name, owner=owner, index=index_of(region), line=line, program=program
    )


def _elements_of(region: Region, whole: Array) -> Region:
    """Return the elements of an allocation that a region has, whatever dtype the region has."""
    width = (region.memory if isinstance(region, Elements) else region).itemsize
    if width == whole.itemsize:
        return region
    starts = addresses_of(region)[:, None] - address_of(whole)
    numbers = np.unique((starts + np.arange(0, width, whole.itemsize)) // whole.itemsize)
    return Elements(whole, np.unravel_index(numbers, whole.shape))


# Kernels ahead.


@dataclass(frozen=True, slots=True, eq=False)
class EarlierAccesses:
    """The accesses of a kernel ahead to an array.

    Attributes:
      array: that owns the memory.
      find: returns an access to a part of other memory that stands for the array, with as many
        bytes in the same order; None if there was none.
      writes: whether it wrote the elements.
      adds: whether it did so by atomic operations.
    """

    array: Array
    find: Callable[[Array, Region], Access | None]
    writes: bool = False
    adds: bool = False


@dataclass(eq=False)
class KernelAhead:
    """A kernel that may not have ended when the next one begins.

    Attributes:
      name: of the kernel.
      traces: its accesses.
    """

    name: str
    traces: list[EarlierAccesses] = field(default_factory=list[EarlierAccesses])

    def keep(
        self,
        array: Array,
        numbers: Array,
        access: Callable[[int], Access],
        kind: GlobalAccessKind,
    ) -> None:
        """Keep accesses that are known element by element.

        Args:
          array: that owns the memory.
          numbers: of the last access to each element, or 0.
          access: returns the access of a number.
          kind: of the accesses.
        """
        flat = numbers.reshape(-1)

        def find(memory: Array, region: Region) -> Access | None:
            part = flat  # if the elements are others than those of the array
            dtype = region.memory.dtype if isinstance(region, Elements) else region.dtype
            if memory.size == flat.size and dtype == memory.dtype:
                part = same_part(flat.reshape(memory.shape), region, memory)
            known = part[part > 0]
            return access(int(known.flat[0])) if known.size else None

        if numbers.any():
            self.traces.append(EarlierAccesses(array, find, kind != "read", kind == "atomic"))

    def accesses_to(self, value: Array) -> Iterator[EarlierAccesses]:
        """Yield its accesses to an array that is an operand of a later kernel.

        A slice, or an array with its axes in another order, is the result of a kernel of XLA's.
        """
        whole = root(value)
        if value.flags.c_contiguous and value.nbytes == whole.nbytes:
            yield from (trace for trace in self.traces if trace.array is whole)


def begin_early(
    device: Thread, operands: Sequence[tuple[Any, Array, str, bool]]
) -> EarlyStart | None:
    """Collect the accesses of kernels ahead for one that may begin before they have ended.

    Args:
      device: that runs it.
      operands: value, memory in the kernel and name of each, and whether it is written.

    Returns:
      None if there is no kernel ahead.
    """
    ahead: list[KernelAhead] = device.device.ahead
    if not ahead:
        return None
    names = " and ".join(dict.fromkeys(kernel.name for kernel in ahead))
    owner = replace(device.owner, thread=f"the kernel ahead ({names})")
    owners = device.machine.owners
    start = EarlyStart(owners.setdefault(owner, len(owners)))
    start.accesses += [
        Touched(
            start.thread,
            memory,
            trace.writes,
            name,
            "",
            (),
            adds=trace.adds,
            kernel=device.kernel,
            earlier=partial(trace.find, memory),
        )
        for value, memory, name, written in operands
        for kernel in ahead
        for trace in kernel.accesses_to(value)
        if trace.writes or written
    ]
    return start


def end_kernel(device: Thread, kernel: KernelAhead, start: EarlyStart | None) -> None:
    """Note that a kernel is ahead of the next ones.

    The kernels ahead of it stay ahead only if it began early, and let the next one begin before it
    waited for them.
    """
    waits = start is None or start.joined
    device.device.ahead = [kernel] if waits else [*device.device.ahead, kernel]
