"""Accesses to memory while the events of a run are gone through, and which of them overlap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.memory import Arena, Elements, Region
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
      ended: the times from which threads know it to be done without learning it from others.
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
    ended: dict[int, int] = field(default_factory=dict[int, int])

    def is_over(self, clock: Array) -> bool:
        """Return whether what has this clock knows it to be done."""
        return any(clock[thread] >= time for thread, time in self.ended.items())

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
      held: what was held of locks during an access of a thread; None without locks.
    """

    thread: int
    time: int
    region: Region
    writes: bool
    adds: bool
    event: Touched | SideInFlight
    others: dict[int, int] | None = None
    held: Array | None = None

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
      kept: which elements reach something, of an output that its kernel only writes; None for all.
    """

    flights: AddressRanges[SideInFlight] = field(default_factory=AddressRanges["SideInFlight"])
    begun: int = 0
    past: dict[Any, PastAccess] = field(default_factory=dict)
    ordered: AddressRanges[PastAccess] = field(default_factory=AddressRanges["PastAccess"])
    kept: Array | None = None

    def drops(self, *regions: Region) -> bool:
        """Return whether all elements of one of these regions are written and reach nothing."""
        if self.kept is None:
            return False
        for region in regions:
            whole = root(region)
            inside = region.memory if isinstance(region, Elements) else region
            same = whole.shape == self.kept.shape and inside.dtype == whole.dtype
            if same and not same_part(self.kept, region, whole).any():
                return True
        return False

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
    if isinstance(region, Elements):
        starts = addresses_of(region)
        if not starts.size:
            return bounds_of(region.memory[:0])
        return int(starts.min()), int(starts.max()) + region.memory.itemsize
    start: int = region.__array_interface__["data"][0]
    if region.flags.c_contiguous:
        return start, start + region.nbytes
    low, high = np.lib.array_utils.byte_bounds(region)
    return int(low), int(high)


def address_of(array: Array) -> int:
    """Return the address of the first element of an array."""
    return array.__array_interface__["data"][0]


def same_part(array: Array, region: Region, whole: Array) -> Array:
    """Return the elements of an array, shaped as ``whole``, for a region of ``whole``."""
    if isinstance(region, Elements):
        return same_part(array, region.memory, whole)[(*region.key, ...)]
    return same_view(array, region, whole)


def same_view(array: Array, region: Array, whole: Array) -> Array:
    """Do what ``same_part`` does for a view; the result is a view, too."""
    offset = (address_of(region) - address_of(whole)) // whole.itemsize
    steps = [stride // whole.itemsize * array.itemsize for stride in region.strides]
    return np.lib.stride_tricks.as_strided(array.reshape(-1)[offset:], region.shape, steps)


def addresses_of(region: Region) -> Array:
    """Return the address of the first byte of each element of a region, int64 without axes."""
    memory, key = (region.memory, region.key) if isinstance(region, Elements) else (region, ())
    starts: Any = np.int64(memory.__array_interface__["data"][0])
    for index, stride in zip(key, memory.strides, strict=False):
        starts = starts + index.astype(np.int64) * stride
    rest = list(zip(memory.shape, memory.strides, strict=True))[len(key) :]
    for size, stride in rest:
        starts = starts[..., None] + np.arange(size, dtype=np.int64) * stride
    return np.ravel(starts)


def place_of(region: Region) -> tuple[Any, ...]:
    """Return a key that is equal for regions that are the same elements."""
    if isinstance(region, Elements):
        return (*place_of(region.memory), *(axis.tobytes() for axis in region.key))
    address = region.__array_interface__["data"][0]
    return (address, region.itemsize, region.shape, region.strides)


def overlap(one: Region, other: Region) -> bool:
    """Return whether two regions share a byte."""
    if isinstance(other, Elements) and not isinstance(one, Elements):
        one, other = other, one
    if isinstance(one, Elements):
        return _is_touched(one, other)
    assert not isinstance(other, Elements)
    if not one.size or not other.size or not np.may_share_memory(one, other):
        return False
    try:
        return bool(np.shares_memory(one, other, max_work=_WORK))
    except np.exceptions.TooHardError:
        return True  # a race that is not there is reported rather than one missed


def _is_touched(elements: Elements, other: Region) -> bool:
    """Return whether another region has a byte of some elements."""
    (low, high), (start, end) = bounds_of(elements), bounds_of(other)
    if low >= end or start >= high:
        return False
    if isinstance(other, np.ndarray) and end - start == other.nbytes:  # without gaps
        starts = addresses_of(elements)
        return bool(((starts < end) & (starts + elements.memory.itemsize > start)).any())
    # Mark the bytes of the elements. Pages of these zeros that nobody reads or writes cost nothing.
    low = min(low, start)
    marks = np.zeros(max(high, end) - low, np.bool_)
    marks[_bytes_of(elements) - low] = True
    if isinstance(other, Elements):
        return bool(marks[_bytes_of(other) - low].any())
    shape, strides = (*other.shape, other.itemsize), (*other.strides, 1)
    return bool(np.ndarray(shape, np.bool_, marks, start - low, strides).any())


def _bytes_of(elements: Elements) -> Array:
    """Return the address of each byte of some elements."""
    return addresses_of(elements)[:, None] + np.arange(elements.memory.itemsize)


#: Of more elements than these, the box is not looked for one by one, and may be too large.
_BOXED = 1 << 18


def whole_of(one: tuple[Region, str], other: tuple[Region, str]) -> Array:
    """Return the reference that two regions, with the names of their references, are parts of.

    It is an allocation, as a rule. In an arena it is a reference made of that; the arena itself if
    the regions are parts of different ones.
    """
    arena = root(one[0])
    if not isinstance(arena, Arena):
        return arena
    for _, name in (one, other):
        reference = arena.references.get(name)
        if reference is None:
            continue
        start, end = bounds_of(reference)
        parts = {bounds_of(region) for region, _ in (one, other)} - {bounds_of(arena)}
        if all(start <= low and high <= end for low, high in parts):
            return reference
    return np.asarray(arena)


def index_of(region: Region, whole: Array | None = None) -> tuple[tuple[int, int], ...]:
    """Return the smallest box that has a region: ``(start, stop)`` along each axis.

    The axes are those of the whole reference, whatever shape and dtype the region has. So the boxes
    of two regions that overlap do, too. () of a region or a reference without elements or axes.

    Args:
      region: a part of the reference, or memory that has all of it.
      whole: the reference; None for the allocation.
    """
    whole = root(region) if whole is None else whole
    memory = region.memory if isinstance(region, Elements) else region
    if not whole.ndim or not whole.size or not memory.size:
        return ()
    (low, high), (start, end) = bounds_of(region), bounds_of(whole)
    if low < start or high > end:
        return tuple((0, size) for size in whole.shape)
    base = whole.__array_interface__["data"][0]
    if isinstance(region, np.ndarray):
        offset = region.__array_interface__["data"][0] - base
        steps = [*zip(region.strides, region.shape, strict=True), (1, region.itemsize)]
        box = _box_of_steps(offset, steps, whole)
        if box is not None:
            return box
        if high - low == region.nbytes or region.size > _BOXED:
            return _box_of_range(low - base, high - base - 1, whole)
    starts = addresses_of(region) - base
    if not starts.size:
        return ()
    first, _ = _coordinates(starts, whole)
    last, _ = _coordinates(starts + memory.itemsize - 1, whole)
    return tuple(
        (int(np.min(low)), int(np.max(high)) + 1) for low, high in zip(first, last, strict=True)
    )


def _outermost_first(whole: Array) -> list[int]:
    """Return the axes of an allocation that have several elements."""
    axes = [axis for axis, size in enumerate(whole.shape) if size > 1 and whole.strides[axis]]
    return sorted(axes, key=lambda axis: -whole.strides[axis])


def _coordinates(offset: Any, whole: Array) -> tuple[list[Any], Any]:
    """Return the index along each axis of the element that has a byte, and which byte that is."""
    index: list[Any] = [0] * whole.ndim
    for axis in _outermost_first(whole):
        index[axis], offset = divmod(offset, whole.strides[axis])
    return index, offset


def _box_of_steps(
    offset: int, steps: Sequence[tuple[int, int]], whole: Array
) -> tuple[tuple[int, int], ...] | None:
    """Return the box of what is so many steps from a byte; None if it reaches around an edge.

    Args:
      offset: of the first byte.
      steps: bytes of a step, and how many elements it has.
      whole: the allocation.
    """
    first, byte = _coordinates(offset, whole)
    last = list(first)
    for step, size in steps:
        along, inside = _coordinates(step, whole)
        last = [at + (size - 1) * more for at, more in zip(last, along, strict=True)]
        byte += (size - 1) * inside
    if byte >= whole.itemsize or any(at >= dim for at, dim in zip(last, whole.shape, strict=True)):
        return None
    return tuple((start, end + 1) for start, end in zip(first, last, strict=True))


def _box_of_range(first: int, last: int, whole: Array) -> tuple[tuple[int, int], ...]:
    """Return the box of all elements from one byte to another."""
    (low, _), (high, _) = _coordinates(first, whole), _coordinates(last, whole)
    box = [(start, end + 1) for start, end in zip(low, high, strict=True)]
    around = False
    for axis in _outermost_first(whole):
        if around:
            box[axis] = 0, whole.shape[axis]
        around = around or low[axis] != high[axis]
    return tuple(box)


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
