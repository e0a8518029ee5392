"""Accesses to memory while the events of a run are gone through, and which of them overlap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.memory import Elements, Region
from pallas_sim.recording import Asynchronous, Copy, Side, Touched

#: How hard ``numpy.shares_memory`` may try: the exact answer is a Diophantine problem, which takes
#: exponential time at worst. Views of one array are decided long before.
_WORK = 10_000


@dataclass(slots=True, eq=False)
class SideInFlight:
    """One side of a copy, or of an asynchronous operation, that is not proved to be done.

    Attributes:
      origin: which copy or operation.
      region: the memory of this side.
      writes: whether it is the target.
      adds: whether it is written by adding, which is atomic.
      thread: that started it.
      clock: of that thread when it did.
      bounds: of the region, as addresses.
      allocation: see ``LocatedRegion``.
      side: the memory that an asynchronous operation accesses; None of a copy.
      proxy_clock: of the writes of threads that it sees through the asynchronous proxy; None if it
        sees all that its thread knows.
      converged: the time up to which all lanes of its own thread have done what they had to do;
        None if one warp started it, or it writes through no other proxy than threads.
      refill_clock: of the reads of threads that a fence orders before its writes; None if they need
        none.
      tensor_clock: of what its thread knows that others did to tensor memory; None of other memory.
      chain: of the operation: see ``Asynchronous``.
      number: of the flight, in the order in which those of an allocation began.
      past: what it became when a thread first knew it to be done.
    """

    origin: Copy | Asynchronous
    region: Region
    writes: bool
    adds: bool
    thread: int
    clock: Array
    bounds: tuple[int, int]
    allocation: int
    side: Side | None = None
    proxy_clock: Array | None = None
    converged: int | None = None
    refill_clock: Array | None = None
    tensor_clock: Array | None = None
    chain: Any = None
    number: int = 0
    past: PastAccess | None = None

    def past_at(self, thread: int, time: int) -> PastAccess:
        """Return this side as an access that is over, which a thread knows from a time on."""
        return PastAccess(thread, time, self.region, self.writes, self.adds, self)


@dataclass(slots=True, eq=False)
class PastAccess:
    """An access that is over, as an epoch: a thread, and a time of it (FastTrack).

    A copy has an epoch for each thread whose wait proved it: it happened before what comes after
    one of these waits.

    Attributes:
      thread: that made it, or whose wait proved first that a copy did.
      time: from which that thread knows it.
      region: the memory.
      writes: whether it wrote.
      adds: whether it wrote by adding.
      event: what it was.
      others: the times from which other threads know it, whose waits proved it, too.
    """

    thread: int
    time: int
    region: Region
    writes: bool
    adds: bool
    event: Touched | SideInFlight
    others: dict[int, int] | None = None

    def learn(self, thread: int, time: int) -> None:
        """Note that a thread knows it from a time on, unless it knew it before."""
        if thread != self.thread:
            if self.others is None:
                self.others = {}
            self.others.setdefault(thread, time)

    def is_of(self, thread: int) -> bool:
        """Return whether a thread knows it without learning it from another one."""
        return thread == self.thread or (self.others is not None and thread in self.others)

    def time_of(self, thread: int) -> int:
        """Return the time from which a thread knows it without learning it from another; else 0."""
        return self.time if thread == self.thread else (self.others or {}).get(thread, 0)

    def is_before(self, clock: Array) -> bool:
        """Return whether it happened before what has this clock."""
        if clock[self.thread] >= self.time:
            return True
        others = self.others or {}
        return any(clock[thread] >= time for thread, time in others.items())


@dataclass(slots=True, eq=False)
class AddressRanges[Item]:
    """Items that belong to ranges of addresses, found by address.

    Attributes:
      starts: where the ranges begin, in order.
      items: the items with the end of their range, in that order.
      longest: bytes of the longest range so far.
    """

    starts: list[int] = field(default_factory=list)
    items: list[tuple[int, Item]] = field(default_factory=list)
    longest: int = 0

    def add(self, bounds: tuple[int, int], item: Item) -> None:
        """Add an item behind those whose range begins at the same address."""
        start, end = bounds
        at = bisect_right(self.starts, start)
        self.starts.insert(at, start)
        self.items.insert(at, (end, item))
        if end - start > self.longest:
            self.longest = end - start

    def remove(self, bounds: tuple[int, int], item: Item) -> bool:
        """Remove an item that was added with these bounds; False if it is not there."""
        starts, items = self.starts, self.items
        at = bisect_left(starts, bounds[0])
        while at < len(starts) and starts[at] == bounds[0]:
            if items[at][1] is item:
                del starts[at], items[at]
                return True
            at += 1
        return False

    def near(self, bounds: tuple[int, int]) -> Sequence[Item]:
        """Return the items whose range shares an address with another, by their first address."""
        start, end = bounds
        # Ranges are in the order of their starts: none that begins earlier can reach this far.
        first = bisect_right(self.starts, start - self.longest)
        last = bisect_left(self.starts, end, first)
        if first == last:
            return ()
        return [item for stop, item in self.items[first:last] if stop > start]


@dataclass(slots=True, eq=False)
class AllocationHistory:
    """One allocation while the events are gone through.

    Attributes:
      flights: the sides of copies that are not proved to be done, by address.
      begun: how many sides of copies were started.
      past: the last access of each kind to each region, by thread.
      ordered: these accesses, and copies that are proved to be done, by address.
    """

    flights: AddressRanges[SideInFlight] = field(default_factory=AddressRanges["SideInFlight"])
    begun: int = 0
    past: dict[Any, PastAccess] = field(default_factory=dict)
    ordered: AddressRanges[PastAccess] = field(default_factory=AddressRanges["PastAccess"])

    def keep(self, key: Any, past: PastAccess, bounds: tuple[int, int]) -> PastAccess:
        """Note an access to a region; ``key`` is equal for those that it makes superfluous.

        Returns:
          What is kept of it.
        """
        before = self.past.get(key)
        if before is not None:
            before.thread, before.time, before.others = past.thread, past.time, past.others
            before.event = past.event
            return before
        self.past[key] = past
        self.ordered.add(bounds, past)
        return past

    def begin(self, flight: SideInFlight) -> None:
        """Note that a side of a copy may be under way from here on."""
        flight.number = self.begun
        self.begun += 1
        self.flights.add(flight.bounds, flight)

    def end(self, flight: SideInFlight) -> bool:
        """Note that a side of a copy is proved to be done; False if it was before."""
        return self.flights.remove(flight.bounds, flight)

    def flights_near(self, bounds: tuple[int, int]) -> Sequence[SideInFlight]:
        """Return the sides of copies that may access memory between two addresses, oldest first."""
        near = self.flights.near(bounds)
        return near if len(near) < 2 else sorted(near, key=attrgetter("number"))


class LocatedRegion(NamedTuple):
    """Where in memory an access or one side of a copy is.

    Attributes:
      region: which part.
      writes: whether it is written.
      allocation: equal for the parts of one allocation.
      bounds: of the region, as addresses.
    """

    region: Region
    writes: bool
    allocation: int
    bounds: tuple[int, int]


def locate(region: Region, *, writes: bool) -> LocatedRegion:
    """Find the allocation and the addresses of a region."""
    return LocatedRegion(region, writes, id(root(region)), bounds_of(region))


def conflict(one: Touched | SideInFlight, other: SideInFlight | PastAccess) -> bool:
    """Return whether two accesses must be ordered: one writes, unless both add."""
    return (one.writes or other.writes) and not (one.adds and other.adds)


def root(region: Region) -> Array:
    """Return the array that owns the memory of a region."""
    array = region.memory if isinstance(region, Elements) else region
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def bounds_of(region: Region) -> tuple[int, int]:
    """Return the addresses of the first byte of a region, and behind its last."""
    array = region.memory if isinstance(region, Elements) else region
    start: int = array.__array_interface__["data"][0]
    if array.flags.c_contiguous:
        return start, start + array.nbytes
    low, high = np.lib.array_utils.byte_bounds(array)
    return int(low), int(high)


def place_of(region: Region) -> tuple[Any, ...]:
    """Return a key that is equal for regions that are the same elements."""
    if isinstance(region, Elements):
        return (*place_of(region.memory), *(axis.tobytes() for axis in region.key))
    return (region.__array_interface__["data"][0], region.shape, region.strides)


def overlap(one: Region, other: Region) -> bool:
    """Return whether two regions share an element."""
    if isinstance(one, Elements):
        if not np.may_share_memory(one.memory, root(other)):
            return False
        if (
            isinstance(other, Elements)
            and place_of(one.memory) == place_of(other.memory)
            and len(one.key) == len(other.key)
        ):
            return not _points(one).isdisjoint(_points(other))
        return any(overlap(other, part) for part in _parts(one))
    if isinstance(other, Elements):
        return overlap(other, one)
    if not one.size or not other.size or not np.may_share_memory(one, other):
        return False
    try:
        return bool(np.shares_memory(one, other, max_work=_WORK))
    except np.exceptions.TooHardError:
        return True  # a race that is not there is reported rather than one missed


def _parts(elements: Elements) -> Iterator[Array]:
    """Yield a view of each element, or of each row where only the first axes are indexed."""
    for point in _points(elements):
        yield elements.memory[(*point, ...)]


def _points(elements: Elements) -> set[tuple[int, ...]]:
    """Return the index of each element along the first axes."""
    return {*zip(*(axis.tolist() for axis in elements.key), strict=True)}


def index_of(region: Region) -> tuple[tuple[int, int], ...]:
    """Return the elements of its allocation that a region begins and ends at, along each axis."""
    whole = root(region)
    if isinstance(region, Elements):
        return ()
    if whole.ndim == 0 or not whole.size or not whole.flags.c_contiguous:
        return ()
    if region.dtype != whole.dtype or not region.size:
        return ()
    offset = region.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    starts = np.unravel_index(offset // whole.itemsize, whole.shape)
    steps = dict(zip(region.strides, region.shape, strict=True))
    ends = [
        int(start) + steps.get(stride, 1)
        for start, stride in zip(starts, whole.strides, strict=True)
    ]
    return tuple((int(start), end) for start, end in zip(starts, ends, strict=True))


# Operations of a tensor core that keep their order (PTX ISA 9.0, 9.7.16.6.2, "pipelined").

#: Accesses that keep their order: what the first one is, and the second one.
_DIRECT = frozenset(
    {
        *(("copied", "operand"), ("copied", "sums")),
        *(("operand", "sums"), ("operand", "copied")),
    }
)

#: Among more operations than these, order is not looked for, and taken to be there.
_MOST = 256


def are_pipelined(
    first: SideInFlight, second: SideInFlight, started: Sequence[Asynchronous]
) -> bool:
    """Return whether two sides of operations of one unit are accessed in this order.

    Args:
      first: of the operation that was started first.
      second: of the one that was started last.
      started: all that the unit was given so far, in order.
    """
    assert first.side is not None
    assert second.side is not None
    roles = (first.side.role, second.side.role)
    if "" in roles or roles in _DIRECT:
        return True
    if roles == ("sums", "sums") and place_of(first.region) == place_of(second.region):
        return True
    assert isinstance(first.origin, Asynchronous)
    assert isinstance(second.origin, Asynchronous)
    return _is_reached(first.origin, second.origin, started)


def _is_reached(first: Asynchronous, second: Asynchronous, started: Sequence[Asynchronous]) -> bool:
    """Return whether operations in between put two others into their order."""
    between: list[Asynchronous] = []
    for operation in reversed(started):
        if operation is first:
            break
        if operation is not second and operation.thread == second.thread:
            between.append(operation)
            if _follows(operation, second) and _follows(first, operation):
                return True
    if len(between) > _MOST:  # a search of all paths is quadratic
        return True
    reached = [first]
    for operation in (*reversed(between), second):
        if any(_follows(before, operation) for before in reached):
            reached.append(operation)
    return reached[-1] is second


def _follows(first: Asynchronous, second: Asynchronous) -> bool:
    """Return whether an operation is done as a whole after another one, because PTX pairs them."""
    if _sides(first, "copied"):
        return not _sides(second, "copied")
    sums = [place_of(side.region) for side in _sides(first, "sums")]
    if any(place_of(side.region) in sums for side in _sides(second, "sums")):
        return True
    read = _sides(first, "operand")
    copied = _sides(second, "copied")
    return any(overlap(one.region, other.region) for one in read for other in copied)


def _sides(operation: Asynchronous, role: str) -> list[Side]:
    return [side for side in operation.sides if side.role == role]
