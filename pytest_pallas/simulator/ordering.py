"""The monitor of order: which accesses of a recorded run nothing orders.

Happened-before is kept in vector clocks (Lamport 1978; Mattern 1989). A wait orders what it proves:
it names no copy and no signal, it takes an amount, whosever it is. So it proves that a copy is done
only if everything that the semaphore can have been given by then was taken, and that something was
begun (a signal, a copy) only if all that can happen without it does not satisfy the wait: what its
sender does afterwards cannot. What the semaphore can have been given are all
promises that are not ordered after the wait, those too that came later in this run: another run
may have them earlier (Netzer and Miller 1992 call these message races). Whether a promise is
ordered after a wait depends on what other waits prove, so the events are gone through again until
nothing changes; what is proved only ever becomes less.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from pytest_pallas.findings import Access, Finding, Owner, Signal, Wait
from pytest_pallas.simulator.memory import Elements, Region
from pytest_pallas.simulator.recording import (
    Entered,
    Event,
    Reached,
    Signalled,
    Started,
    Synchronized,
    Touched,
    Waited,
)

if TYPE_CHECKING:
    from pytest_pallas.simulator.transfers import Copy, Semaphore

Array = np.ndarray[Any, Any]

#: How hard ``numpy.shares_memory`` may try; views of one array are decided long before.
_WORK = 10_000

#: Passes over the events; each may only weaken what waits prove, and two or three are usual.
_PASSES = 20

#: Findings of one run: a race of a loop shows at every step.
_MOST = 32


@dataclass(slots=True, eq=False)
class _Promise:
    """What a semaphore gets: a copy's bytes, or a signal.

    Attributes:
      thread: who promised it.
      amount: how much it is.
      clock: of that thread when it did.
      event: the signal, or the start of the copy.
      copy: the copy, or None.
      done: whether a wait proved the copy to be done.
      known: to which threads a wait proved that it was begun.
    """

    thread: int
    amount: int
    clock: Array
    event: Started | Signalled
    copy: Copy | None = None
    done: bool = False
    known: set[int] = field(default_factory=set[int])

    def follows(self, other: _Promise) -> bool:
        """Whether it happens only after another one."""
        return self is not other and bool(self.clock[other.thread] >= other.clock[other.thread])


@dataclass(slots=True, eq=False)
class _Count:
    """A semaphore while the events are gone through.

    Attributes:
      promised: by all promises so far.
      taken: by all waits so far.
      open: promises that no wait has proved.
      waits: for each thread that waited, the times and numbers of its waits, in order.
    """

    promised: int = 0
    taken: int = 0
    open: list[_Promise] = field(default_factory=list["_Promise"])
    waits: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict[int, Any])


@dataclass(slots=True, eq=False)
class _Flight:
    """One side of a copy that is not proved to be done.

    Attributes:
      copy: which.
      region: the memory of this side.
      writes: whether it is the target.
      adds: whether it is written by adding, which is atomic.
      thread: that started it.
      clock: of that thread when it did.
      bounds: of the region, as addresses.
      place: of the allocation; see ``_Side``.
      past: what it became when a wait proved it to be done.
    """

    copy: Copy
    region: Region
    writes: bool
    adds: bool
    thread: int
    clock: Array
    bounds: tuple[int, int]
    place: int
    past: _Past | None = None


@dataclass(slots=True, eq=False)
class _Past:
    """An access that happened: known to whoever knows the time of one of some threads.

    Attributes:
      known: the time from which each thread knows it: the one that made it, or those whose waits
        prove that a copy did.
      region: the memory.
      writes: whether it wrote.
      adds: whether it wrote by adding.
      event: what it was.
    """

    known: dict[int, int]
    region: Region
    writes: bool
    adds: bool
    event: Touched | _Flight


@dataclass(slots=True, eq=False)
class _Memory:
    """One allocation while the events are gone through.

    Attributes:
      flights: the sides of copies that are not proved to be done.
      past: the last access of each kind to each region, by thread.
      starts: where the regions of ``ordered`` begin, in order.
      ordered: the accesses of ``past`` with the end of their region, in that order.
      longest: bytes of the longest of these regions.
    """

    flights: dict[_Flight, None] = field(default_factory=dict["_Flight", None])
    past: dict[Any, _Past] = field(default_factory=dict[Any, "_Past"])
    starts: list[int] = field(default_factory=list[int])
    ordered: list[tuple[int, _Past]] = field(default_factory=list[tuple[int, "_Past"]])
    longest: int = 0

    def keep(self, key: Any, past: _Past, bounds: tuple[int, int]) -> None:
        """Note an access to a region; ``key`` is equal for those that it makes superfluous."""
        before = self.past.get(key)
        if before is not None:
            before.known, before.event = past.known, past.event
            return
        self.past[key] = past
        start, end = bounds
        at = bisect_right(self.starts, start)
        self.starts.insert(at, start)
        self.ordered.insert(at, (end, past))
        self.longest = max(self.longest, end - start)

    def near(self, start: int, end: int) -> Iterator[_Past]:
        """The accesses to regions that may have bytes between two addresses."""
        first = bisect_right(self.starts, start - self.longest)
        last = bisect_left(self.starts, end)
        for stop, past in self.ordered[first:last]:
            if stop > start:
                yield past


class _Side(NamedTuple):
    """Memory that an event accesses.

    Attributes:
      region: which part.
      writes: whether it writes it.
      place: equal for the parts of one allocation.
      bounds: of the region, as addresses.
    """

    region: Region
    writes: bool
    place: int
    bounds: tuple[int, int]


#: The memory of each access and copy, which is the same in all passes.
_Sides = dict[Any, list[_Side]]


@dataclass(eq=False)
class _Pass:
    """One pass over the events.

    Attributes:
      owners: of the threads, by number.
      given: for a wait's number, what was promised later in the run that it could have taken, as
        known so far.
      users: the threads that access an allocation, or wait on a semaphore.
      sides: the memory of each access and copy.
      flights: the sides of each copy that was started.
      clocks: of the threads, a row each.
      counts: of the semaphores.
      memories: of the allocations, by the identity of the array that owns them.
      entered: who made an allocation of a device, and when.
      rivals: for a wait's number, what was promised later that it could have taken.
      left: for a wait's number, what was promised before and not proved by it.
      last: the last wait of a thread on a semaphore.
      found: kinds and events of what is out of order.
    """

    owners: Sequence[Owner]
    given: dict[int, list[_Promise]]
    users: dict[Any, set[int]]
    sides: _Sides
    flights: dict[Copy, list[_Flight]] = field(default_factory=dict[Any, list["_Flight"]])
    clocks: Array = field(default_factory=lambda: np.zeros((0, 0), np.int64))
    counts: dict[Semaphore, _Count] = field(default_factory=dict[Any, _Count])
    memories: dict[int, _Memory] = field(default_factory=dict[int, _Memory])
    entered: dict[Any, tuple[int, int]] = field(default_factory=dict[Any, tuple[int, int]])
    rivals: dict[int, list[_Promise]] = field(default_factory=dict[int, list[_Promise]])
    left: dict[int, list[_Promise]] = field(default_factory=dict[int, list[_Promise]])
    last: dict[tuple[int, Any], Waited] = field(default_factory=dict[Any, Waited])
    found: list[tuple[str, Any, Any]] = field(default_factory=list[Any])

    def count(self, semaphore: Semaphore) -> _Count:
        """What a semaphore has got and given so far."""
        found = self.counts.get(semaphore)
        if found is None:
            found = self.counts[semaphore] = _Count()
        return found


def disorder(events: Sequence[Event], owners: Sequence[Owner], seed: int) -> list[Finding]:
    """Races, and accesses to devices that are not known to be there.

    Args:
      events: of a run.
      owners: of its threads, by number.
      seed: of the run.
    """
    sides = _sides(events)
    users = _users(events, sides)
    this = _Pass(owners, {}, users, sides)
    _go(this, events)
    for _ in range(_PASSES):
        given = this.given
        if all(len(more) <= len(given.get(n, ())) for n, more in this.rivals.items()):
            break
        this = _Pass(owners, this.rivals, users, sides)
        _go(this, events)
    return [_finding(this, each, seed) for each in this.found]


def _go(this: _Pass, events: Sequence[Event]) -> None:
    count = len(this.owners)
    this.clocks = np.zeros((count, count), np.int64)
    np.fill_diagonal(this.clocks, 1)
    for number, event in enumerate(events):
        if isinstance(event, Waited):
            _wait(this, number, event)
        else:
            _HANDLERS[type(event)](this, event)


def _tick(this: _Pass, thread: int) -> Array:
    """The clock that others learn now; what the thread does from here on they do not know."""
    row = this.clocks[thread]
    told = row.copy()
    row[thread] += 1
    return told


def _start(this: _Pass, event: Started) -> None:
    copy, thread = event.copy, event.thread
    clock = _tick(this, thread)
    for semaphore in dict.fromkeys((copy.sent, copy.done)):
        if semaphore is not None:
            _promise(this, semaphore, _Promise(thread, copy.size, clock, event, copy))
    flights = this.flights[copy] = []
    for side in this.sides[event]:
        adds = side.writes and copy.adds
        flight = _Flight(
            copy, side.region, side.writes, adds, thread, clock, side.bounds, side.place
        )
        memory = this.memories.get(side.place)
        if memory is None:
            memory = this.memories[side.place] = _Memory()
        _check(this, memory, flight, flight.bounds, clock, thread)
        memory.flights[flight] = None
        flights.append(flight)


def _signal(this: _Pass, event: Signalled) -> None:
    clock = _tick(this, event.thread)
    promise = _Promise(event.thread, event.amount, clock, event)
    _promise(this, event.semaphore, promise)


def _promise(this: _Pass, semaphore: Semaphore, promise: _Promise) -> None:
    count = this.count(semaphore)
    count.promised += promise.amount
    count.open.append(promise)
    for waiter, (times, numbers) in count.waits.items():
        # Waits of which this thread does not know could have taken this.
        for number in numbers[bisect_right(times, int(promise.clock[waiter])) :]:
            this.rivals.setdefault(number, []).append(promise)


def _wait(this: _Pass, number: int, event: Waited) -> None:
    count = this.count(event.semaphore)
    thread = event.thread
    row = this.clocks[thread]
    taken = count.taken + event.amount
    rivals = this.given.get(number, ())
    given = count.promised
    if rivals:
        given += sum(promise.amount for promise in rivals)
    waiters = this.users[event.semaphore]
    unproved: set[int] = set()
    left: list[_Promise] = []
    for promise in count.open:
        if thread not in promise.known and promise.thread not in unproved:
            if _is_begun(promise, count.open, rivals, given, taken):
                promise.known.add(thread)
                np.maximum(row, promise.clock, out=row)
            else:  # nor is what the same thread promised later
                unproved.add(promise.thread)
        if promise.copy is not None and not promise.done and given <= taken:
            promise.done = True
            _done(this, promise.copy, event.semaphore, thread, int(row[thread]))
        if not (promise.done or promise.copy is None) or promise.known != waiters:
            left.append(promise)
    count.open = left
    if event.takes:
        count.taken = taken
    row[thread] += 1
    times, numbers = count.waits.setdefault(thread, ([], []))
    times.append(int(row[thread]))
    numbers.append(number)
    this.last[thread, event.semaphore] = event
    this.left[number] = left


def _is_begun(
    promise: _Promise, before: list[_Promise], rivals: Sequence[_Promise], given: int, taken: int
) -> bool:
    """Whether a wait could not be satisfied without a promise, and what follows from it."""
    others = given - promise.amount
    if others >= taken:
        others -= sum(each.amount for each in before if each.follows(promise))
        if others >= taken:
            others -= sum(each.amount for each in rivals if each.follows(promise))
    return others < taken


def _done(this: _Pass, copy: Copy, semaphore: Semaphore, thread: int, time: int) -> None:
    """A wait proves that the source is read, and the target written if it is of that side."""
    if copy.sent is not semaphore and copy.done is not semaphore:
        return
    for flight in this.flights.get(copy, ()):
        if flight.writes and copy.done is not semaphore:
            continue
        if flight.past is not None:  # another wait has proved it, to another thread
            flight.past.known.setdefault(thread, time)
            continue
        memory = this.memories[flight.place]
        if memory.flights.pop(flight, flight) is None and len(this.users[flight.place]) > 1:
            past = _Past({thread: time}, flight.region, flight.writes, flight.adds, flight)
            memory.keep(flight, past, flight.bounds)
            flight.past = past


def _synchronize(this: _Pass, event: Synchronized) -> None:
    rows = list(event.threads)
    this.clocks[rows] = this.clocks[rows].max(axis=0)
    for thread in rows:
        this.clocks[thread, thread] += 1


def _touch(this: _Pass, event: Touched) -> None:
    (side,) = this.sides[event]
    place, bounds = side.place, side.bounds
    memory = this.memories.get(place)
    if memory is None:
        if len(this.users[place]) < 2:
            return
        memory = this.memories[place] = _Memory()
    thread = event.thread
    row = this.clocks[thread]
    _check(this, memory, event, bounds, row, thread)
    if len(this.users[place]) > 1:
        region = event.region
        key = (thread, event.writes, event.adds, *_place(region))
        time = int(row[thread])
        past = _Past({thread: time}, region, event.writes, event.adds, event)
        memory.keep(key, past, bounds)


def _check(
    this: _Pass,
    memory: _Memory,
    event: Touched | _Flight,
    bounds: tuple[int, int],
    clock: Array,
    thread: int,
) -> None:
    """Note the accesses that are not ordered with one."""
    region = event.region
    frees = isinstance(event, Touched) and event.frees
    start, end = bounds
    for flight in memory.flights:
        if flight.bounds[0] >= end or flight.bounds[1] <= start or not _conflict(event, flight):
            continue
        if isinstance(event, _Flight) and event.copy is flight.copy:
            continue
        if frees and (flight.copy.reported or _is_lasting(flight.copy)):
            continue
        if overlap(region, flight.region):
            _note(this, "race", event, flight)
    for past in memory.near(start, end):
        if any(each == thread or clock[each] >= time for each, time in past.known.items()):
            continue
        if _conflict(event, past) and overlap(region, past.region):
            _note(this, "race", event, past.event)


def _conflict(one: Touched | _Flight, other: _Flight | _Past) -> bool:
    """Whether two accesses must be ordered: one writes, unless both add."""
    return (one.writes or other.writes) and not (one.adds and other.adds)


def _is_lasting(copy: Copy) -> bool:
    """Whether a later kernel may wait for a copy."""
    return copy.done is not None and copy.done.lasting


def _reach(this: _Pass, event: Entered | Reached | Any) -> None:
    if isinstance(event, Entered):
        this.entered[event.key] = (event.thread, int(this.clocks[event.thread, event.thread]))
        _tick(this, event.thread)
        return
    home = this.entered.get(event.key)
    if home is None or this.clocks[event.thread, home[0]] < home[1]:
        _note(this, "entry", event, home)


_HANDLERS: dict[type, Callable[[_Pass, Any], None]] = {
    Touched: _touch,
    Started: _start,
    Signalled: _signal,
    Synchronized: _synchronize,
    Entered: _reach,
    Reached: _reach,
}


def _note(this: _Pass, kind: str, first: Any, second: Any) -> None:
    if len(this.found) < _MOST:
        this.found.append((kind, first, second))


def _sides(events: Sequence[Event]) -> _Sides:
    """The memory that accesses and copies access."""
    sides: _Sides = {}
    for event in events:
        if isinstance(event, Touched):
            sides[event] = [_side(event.region, event.writes)]
        elif isinstance(event, Started):
            sides[event] = [_side(region, writes) for region, writes in event.copy.sides]
    return sides


def _side(region: Region, writes: bool) -> _Side:
    return _Side(region, writes, id(root(region)), _bounds(region))


def _users(events: Sequence[Event], sides: _Sides) -> dict[Any, set[int]]:
    """The threads that access an allocation, themselves or by copies, or wait on a semaphore."""
    users: dict[Any, set[int]] = {}
    for event in events:
        if isinstance(event, Touched | Started):
            for side in sides[event]:
                users.setdefault(side.place, set()).add(event.thread)
        elif isinstance(event, Waited):
            users.setdefault(event.semaphore, set()).add(event.thread)
    return users


def root(region: Region) -> Array:
    """The array that owns the memory of a region."""
    array = region.memory if isinstance(region, Elements) else region
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _bounds(region: Region) -> tuple[int, int]:
    """The addresses of the first byte of a region, and behind its last."""
    array = region.memory if isinstance(region, Elements) else region
    start: int = array.__array_interface__["data"][0]
    if array.flags.c_contiguous:
        return start, start + array.nbytes
    low, high = np.lib.array_utils.byte_bounds(array)
    return int(low), int(high)


def _place(region: Region) -> tuple[Any, ...]:
    """Equal for regions that are the same elements."""
    if isinstance(region, Elements):
        return (*_place(region.memory), *(axis.tobytes() for axis in region.key))
    return (region.__array_interface__["data"][0], region.shape, region.strides)


def overlap(one: Region, other: Region) -> bool:
    """Whether two regions share an element."""
    if isinstance(one, Elements):
        if not np.may_share_memory(one.memory, root(other)):
            return False
        if (
            isinstance(other, Elements)
            and _place(one.memory) == _place(other.memory)
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
        return True


def _parts(elements: Elements) -> Iterator[Array]:
    """A view of each element, or of each row where only the first axes are indexed."""
    for point in _points(elements):
        yield elements.memory[(*point, ...)]


def _points(elements: Elements) -> set[tuple[int, ...]]:
    """The index of each element along the first axes."""
    return {*zip(*(axis.tolist() for axis in elements.key), strict=True)}


def _finding(this: _Pass, found: tuple[str, Any, Any], seed: int) -> Finding:
    kind, first, second = found
    if kind == "entry":
        return _entry(this, first, seed)
    later, earlier = _access(this, first), _access(this, second)
    waits = tuple(_unproved(this, second))
    return Finding(
        kind="race",
        message=f"race on {later.ref or 'memory'}: nothing orders two accesses",
        kernel=first.kernel if isinstance(first, Touched) else first.copy.kernel,
        program=later.program,
        line=later.line,
        ref=later.ref,
        accesses=(later, earlier),
        waits=waits,
        seed=seed,
    )


def _entry(this: _Pass, event: Reached, seed: int) -> Finding:
    owner = this.owners[event.thread]
    device = event.key[0]
    what = "copies to" if event.writes else "signals"
    access = Access(
        kind="write",
        ref=event.name,
        owner=owner,
        home=device,
        line=event.line,
        program=event.program,
        copy=event.writes,
    )
    return Finding(
        kind="entry",
        message=(
            f"{owner} {what} {event.name} of device {device}, and nothing orders that with the "
            f"point at which device {device} has entered the kernel; let the devices wait for each "
            "other before, with pltpu.get_barrier_semaphore()"
        ),
        kernel=event.kernel,
        program=event.program,
        line=event.line,
        ref=event.name,
        accesses=(access,),
        seed=seed,
    )


def _access(this: _Pass, event: Touched | _Flight) -> Access:
    if isinstance(event, Touched):
        return Access(
            kind="write" if event.writes else "read",
            ref=event.name,
            owner=this.owners[event.thread],
            index=_index(event.region),
            line=event.line,
            program=event.program,
        )
    copy = event.copy
    return Access(
        kind="write" if event.writes else "read",
        ref=copy.names[1] if event.writes else copy.names[0],
        owner=this.owners[event.thread],
        home=copy.home if event.writes else None,
        index=_index(event.region),
        line=copy.line,
        program=copy.program,
        copy=True,
        clock=int(event.clock[event.thread]),
    )


def _index(region: Region) -> tuple[tuple[int, int], ...]:
    """The elements of its allocation that a region begins and ends at, along each axis."""
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


def _unproved(this: _Pass, event: Any) -> Iterator[Wait]:
    """The last waits on the semaphores of a copy, with what else could have satisfied them."""
    if not isinstance(event, _Flight):
        return
    copy = event.copy
    semaphore = copy.done if event.writes else (copy.sent or copy.done)
    for (thread, each), wait in this.last.items():
        if each is not semaphore:
            continue
        numbers = this.counts[each].waits[thread][1]
        rivals = [p for n in numbers for p in (*this.left.get(n, ()), *this.rivals.get(n, ()))]
        signals = tuple(dict.fromkeys(_signal_of(this, rival) for rival in rivals))
        if signals:
            yield Wait(
                owner=this.owners[thread],
                on=each.name,
                needed=wait.amount,
                had=wait.amount,
                unit="bytes" if each.kind == "dma" else "",
                line=wait.line,
                program=wait.program,
                signals=signals,
            )


def _signal_of(this: _Pass, promise: _Promise) -> Signal:
    event = promise.event
    line, program = (
        (event.copy.line, event.copy.program)
        if isinstance(event, Started)
        else (event.line, event.program)
    )
    return Signal(
        owner=this.owners[promise.thread],
        amount=promise.amount,
        line=line,
        program=program,
        copy=promise.copy is not None,
    )
