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

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.findings import Access, Wait
from pallas_sim.gpu.threads import Cluster, GpuLaunch, GpuThread
from pallas_sim.machine import Thread
from pallas_sim.memory import Elements, Region
from pallas_sim.order.accesses import bounds_of, index_of, root
from pallas_sim.recording import Earlier, Recording, Released, Token, Touched


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


# What clusters do to global memory that nothing orders with other clusters.
#
# Blocks of different clusters run at any time, and in any order. Unless a kernel has semaphores,
# two accesses of different clusters to one element are a race if one of them writes, except if
# both are atomic. For every element it is enough to know one access that writes, two clusters that
# read, and two that change it atomically: of two, one is another one's.


@dataclass(slots=True, eq=False)
class _ArrayShadow:
    """The accesses to an array, element by element: numbers in ``Footprints.accesses``, or 0."""

    array: Array
    written: Array
    read: tuple[Array, Array]
    changed: tuple[Array, Array]


@dataclass(slots=True, eq=False)
class _Reads:
    """Which lines read an array that the kernel does not write.

    Attributes:
      array: that owns the memory.
      spans: an access of each line, and where the bytes begin and end that it read.
    """

    array: Array
    spans: dict[str, tuple[Access, int, int]] = field(default_factory=dict)

    def note(self, thread: Thread, region: Region, name: str, line: str) -> None:
        """A line reads a region."""
        base = self.array.__array_interface__["data"][0]
        low, high = (at - base for at in bounds_of(region))
        before = self.spans.get(line)
        if before is None:
            access = Access(
                kind="read",
                ref=name,
                owner=thread.owner,
                index=index_of(region),
                line=line,
                program=thread.program,
            )
            before = (access, low, high)
        self.spans[line] = (before[0], min(before[1], low), max(before[2], high))


@dataclass(eq=False)
class Footprints:
    """The accesses of the clusters of one launch.

    Attributes:
      seed: of the run.
      cluster: number of the cluster that runs.
      accesses: by number; there is no number 0.
      shadows: of the arrays that the kernel writes, by identity.
      reads: of the other arrays, by identity: which line read which bytes, from the first to the
        last.
      concurrent: whether clusters run at the same time, and the monitor of order compares them.
    """

    seed: int = 0
    cluster: int = 0
    accesses: list[Access | None] = field(default_factory=lambda: [None])
    shadows: dict[int, _ArrayShadow] = field(default_factory=dict)
    reads: dict[int, _Reads] = field(default_factory=dict)
    concurrent: bool = False
    _clusters: Array = field(default_factory=lambda: np.zeros(256, np.int32))

    def watch(self, array: Array) -> None:
        """Note the accesses to an array from here on."""
        whole = root(array)

        def none() -> Array:
            return np.zeros(whole.shape, np.int32)

        self.shadows[id(whole)] = _ArrayShadow(whole, none(), (none(), none()), (none(), none()))

    def watch_reads(self, array: Array) -> None:
        """Note which lines read an array that the kernel does not write."""
        whole = root(array)
        self.reads[id(whole)] = _Reads(whole)

    def note(
        self, thread: Thread, region: Region, name: str, line: str, *, writes: bool, adds: bool
    ) -> None:
        """Note an access of the cluster that runs; see ``machine.Beside``."""
        whole = root(region)
        shadow = self.shadows.get(id(whole))
        if shadow is None:
            reads = self.reads.get(id(whole))
            if reads is not None and not writes:
                reads.note(thread, region, name, line)
            return
        access = Access(
            kind="write" if writes else "read",
            ref=name,
            owner=thread.owner,
            index=index_of(region),
            line=line,
            program=thread.program,
        )
        number = len(self.accesses)
        self.accesses.append(access)
        if number == len(self._clusters):
            self._clusters = np.concatenate([self._clusters, np.zeros_like(self._clusters)])
        self._clusters[number] = self.cluster
        others = [shadow.written]
        others += shadow.read if writes or adds else ()
        others += shadow.changed if not adds else ()
        for each in () if self.concurrent else others:
            part = same_part(each, region, whole)
            theirs = part[(part > 0) & (self._clusters[part] != self.cluster)]
            if theirs.size:
                self._report(thread, access, int(theirs.flat[0]))
        kept = (shadow.written,) if writes and not adds else shadow.changed if adds else shadow.read
        _keep(kept, region, whole, number, self._clusters, self.cluster)

    def ahead(self, name: str) -> KernelAhead:
        """What the kernel that ran did, for those that begin before it has ended."""
        found = KernelAhead(name)

        def access(number: int) -> Access:
            given = self.accesses[number]
            assert given is not None
            return given

        for shadow in self.shadows.values():
            for numbers, writes, adds in (
                (shadow.written, True, False),
                (shadow.changed[0], True, True),
                (shadow.read[0], False, False),
            ):
                if numbers.any():
                    found.traces.append(
                        (shadow.array, ElementAccesses(numbers, access, writes, adds))
                    )
        for reads in self.reads.values():
            if reads.spans:
                found.traces.append((reads.array, LineAccesses(list(reads.spans.values()))))
        return found

    def _report(self, thread: Thread, access: Access, other: int) -> None:
        earlier = self.accesses[other]
        assert earlier is not None
        name = access.ref or "memory"
        thread.report(
            "race",
            f"race on {name}: nothing orders two accesses of different blocks",
            access.line,
            ref=access.ref,
            accesses=(access, earlier),
            seed=self.seed,
        )


def _keep(
    kept: tuple[Array, ...],
    region: Region,
    whole: Array,
    number: int,
    clusters: Array,
    cluster: int,
) -> None:
    """Remember an access; of two places, the second one keeps what is another cluster's."""
    inside = region.memory if isinstance(region, Elements) else region
    key: Any = (*region.key, ...) if isinstance(region, Elements) else ...
    first = same_view(kept[0], inside, whole)
    if len(kept) > 1:
        second = same_view(kept[1], inside, whole)
        before = first[key]
        theirs = (before > 0) & (clusters[before] != cluster)
        second[key] = np.where(theirs, before, second[key])
    first[key] = number


# Cluster launch control: clusters of a grid that have not begun are taken over by others.
#
# A request cancels the launch of one cluster, whichever, and answers with its place in the grid, or
# says that none is left (PTX ISA 9.0, 9.7.13.18 "clusterlaunchcontrol.try_cancel"). The answer goes
# to all blocks of the cluster that sent the request, as JAX's lowering has it
# (``.multicast::cluster::all``).
#
# How many clusters a GPU begins at once, and which one a request gets, is not published. Here the
# first half begins and the next one is taken, or with a seed any number and any one. Another one
# begins when one ends, or when no thread can go on.


#: Bytes of an answer.
ANSWER = 16

#: What the first word of an answer is.
_TAKEN, _NONE_LEFT = 0x7A, 0x70

#: What a run says of itself that uses it.
NOTE = (
    "which clusters a GPU begins at first, and which one try_cluster_cancel takes over, is not "
    "published"
)


def hold_back(launch: GpuLaunch, clusters: Sequence[Cluster]) -> None:
    """Let some clusters begin at once, and the others later or never."""
    machine, count = launch.thread.machine, len(clusters)
    first = int(machine.random.integers(1, count + 1)) if machine.seed else -(-count // 2)
    launch.pending.extend(clusters[first:])


@contextmanager
def beginning_when_idle(launch: GpuLaunch) -> Generator[None]:
    """When no thread can go on, another cluster begins."""
    idle = launch.thread.machine.scheduler.idle
    begin = partial(begin_next, launch)
    idle.append(begin)
    try:
        yield
    finally:
        idle.remove(begin)


def may_begin(thread: GpuThread) -> bool:
    """Wait until the cluster of a thread begins; False if another one has taken it over."""
    cluster = thread.block.cluster
    launch, scheduler = cluster.launch, thread.machine.scheduler
    while cluster in launch.pending:
        task = scheduler.current
        assert task is not None
        launch.held.setdefault(id(cluster), []).append(task)
        scheduler.block(lambda: Wait(owner=thread.owner, on="the begin of its cluster"))
    return not cluster.cancelled


def begin_next(launch: GpuLaunch) -> bool:
    """Let the next cluster begin; False if there is none."""
    if not launch.pending:
        return False
    _release(launch, launch.pending.popleft())
    return True


def take_over(launch: GpuLaunch) -> Cluster | None:
    """A cluster that has not begun, and never will; None if there is none."""
    machine, pending = launch.thread.machine, launch.pending
    if not pending:
        return None
    at = int(machine.random.integers(len(pending))) if machine.seed else 0
    cluster = pending[at]
    del pending[at]
    cluster.cancelled = True
    _release(launch, cluster)
    return cluster


def _release(launch: GpuLaunch, cluster: Cluster) -> None:
    for task in launch.held.pop(id(cluster), ()):
        launch.thread.machine.scheduler.wake(task)


def answer_of(cluster: Cluster | None) -> np.ndarray[Any, Any]:
    """The bytes of an answer; the hardware's are not published."""
    words = np.zeros(ANSWER // 4, np.int32)
    if cluster is None:
        words[0] = _NONE_LEFT
    else:
        sizes = [size for _, size in cluster.launch.mesh.grid]
        words[0] = _TAKEN
        words[1] = np.ravel_multi_index(cluster.point, sizes) if sizes else 0
    return words.view(np.uint8)


def point_in(answer: np.ndarray[Any, Any], sizes: Sequence[int]) -> tuple[int, ...] | None:
    """The place in the grid of the cluster that was taken over.

    Args:
      answer: 16 bytes; uninitialized memory counts as a request that failed.
      sizes: of the grid's axes.
    """
    words = np.ascontiguousarray(answer).view(np.uint8).reshape(-1).view(np.int32)
    if int(words[0]) != _TAKEN:
        return None
    return tuple(map(int, np.unravel_index(int(words[1]), sizes))) if sizes else ()
