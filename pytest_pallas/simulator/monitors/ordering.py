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

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_pallas.findings import Finding, Owner
from pytest_pallas.simulator.concurrency.recording import (
    Completed,
    Entered,
    Event,
    Reached,
    Signalled,
    Started,
    Synchronized,
    Touched,
    Waited,
)
from pytest_pallas.simulator.monitors.accesses import PastAccess, SideInFlight, place_of
from pytest_pallas.simulator.monitors.order_findings import finding_of
from pytest_pallas.simulator.monitors.passes import (
    OrderPass,
    check,
    locate_all,
    note,
    tick,
    users_of,
)
from pytest_pallas.simulator.monitors.promises import Promise, amount_of, size_of
from pytest_pallas.simulator.monitors.tokens import find_overruns, known_of_core, pass_on, settle

if TYPE_CHECKING:
    from pytest_pallas.simulator.concurrency.transfers import Copy, Semaphore

Array = np.ndarray[Any, Any]

#: Passes over the events; each may only weaken what waits prove, and two or three are usual.
_PASSES = 20


def disorder(events: Sequence[Event], owners: Sequence[Owner], seed: int) -> list[Finding]:
    """Races, and accesses to devices that are not known to be there.

    Args:
      events: of a run.
      owners: of its threads, by number.
      seed: of the run.
    """
    owners = _renumber(events, owners)
    located = locate_all(events)
    users = users_of(events, located)
    this = OrderPass(events, owners, {}, users, located)
    _go(this)
    for _ in range(_PASSES):
        given = this.given
        if all(size_of(more) <= size_of(given.get(n, ())) for n, more in this.rivals.items()):
            break
        this = OrderPass(events, owners, this.rivals, users, located)
        _go(this)
    find_overruns(this)
    return [finding_of(this, each, seed) for each in this.found]


def _renumber(events: Sequence[Event], owners: Sequence[Owner]) -> list[Owner]:
    """Number the threads of these events anew, and give them: a run may have many others."""
    numbers: dict[int, int] = {}

    def new(number: int) -> int:
        return numbers.setdefault(number, len(numbers))

    for event in events:
        if isinstance(event, Synchronized):
            event.threads = tuple(map(new, event.threads))
        elif not isinstance(event, Completed):
            event.thread = new(event.thread)
    return [owners[number] for number in numbers]


def _go(this: OrderPass) -> None:
    count = len(this.owners)
    this.clocks = np.zeros((count, count), np.int32)
    np.fill_diagonal(this.clocks, 1)
    this.fenced, this.core, this.settled = (np.zeros_like(this.clocks) for _ in range(3))
    for number, event in enumerate(this.events):
        this.order = number
        if isinstance(event, Waited):
            _wait(this, number, event)
        else:
            _HANDLERS.get(type(event), pass_on)(this, event)
    for count in this.counts.values():
        this.rivals.update(count.rivals())


def _start(this: OrderPass, event: Started) -> None:
    copy, thread = event.copy, event.thread
    clock = tick(this, thread)
    for semaphore in copy.semaphores:
        _promise(this, semaphore, Promise(thread, copy.size, clock, event, copy))
    flights = this.flights[copy] = []
    for region, writes, place, bounds in this.located[event]:
        adds = writes and copy.adds
        flight = SideInFlight(copy, region, writes, adds, thread, clock, bounds, place=place)
        memory = this.memory(place)
        check(this, memory, flight, bounds, clock, thread)
        memory.begin(flight)
        flights.append(flight)


def _signal(this: OrderPass, event: Signalled) -> None:
    clock = tick(this, event.thread)
    promise = Promise(event.thread, event.amount, clock, event)
    _promise(this, event.semaphore, promise)


def _promise(this: OrderPass, semaphore: Semaphore, promise: Promise) -> None:
    this.count(semaphore).promise(promise, this.order)


def _wait(this: OrderPass, number: int, event: Waited) -> None:
    count = this.count(event.semaphore)
    thread = event.thread
    row = this.clocks[thread]
    taken = count.taken + event.amount
    rivals = this.given.get(number, ())
    given = count.promised + amount_of(rivals)
    waiters = len(this.users[event.semaphore])
    for promise in list(count.begun(thread, given, taken, rivals)):
        promise.known += 1
        promise.close(waiters, number)
        if promise.thread != thread:
            np.maximum(row, promise.clock, out=row)
    if given <= taken:
        for promise in count.copies:
            promise.done = True
            promise.close(waiters, number)
            assert promise.copy is not None
            _done(this, promise.copy, event.semaphore, thread, int(row[thread]))
        count.copies.clear()
    if event.takes:
        count.taken = taken
    row[thread] += 1
    times, numbers = count.waits.setdefault(thread, ([], []))
    times.append(int(row[thread]))
    numbers.append(number)


def _done(this: OrderPass, copy: Copy, semaphore: Semaphore, thread: int, time: int) -> None:
    """A wait proves that the source is read, and the target written if it is of that side."""
    if copy.sent is not semaphore and copy.done is not semaphore:
        return
    for flight in this.flights.get(copy, ()):
        if flight.writes and copy.done is not semaphore:
            continue
        if flight.past is not None:  # another wait has proved it, to another thread
            flight.past.learn(thread, time)
            continue
        memory = this.memory(flight.place)
        if memory.end(flight) and len(this.users[flight.place]) > 1:
            past = PastAccess(thread, time, flight.region, flight.writes, flight.adds, flight)
            memory.ordered.add(flight.bounds, past)
            flight.past = past


def _synchronize(this: OrderPass, event: Synchronized) -> None:
    rows = list(event.threads)
    this.core[rows] = np.max([known_of_core(this, thread) for thread in rows], axis=0)
    this.clocks[rows] = this.clocks[rows].max(axis=0)
    this.fenced[rows] = this.fenced[rows].max(axis=0)
    for thread in rows:
        settle(this, thread)
    this.settled[rows] = this.settled[rows].max(axis=0)
    for thread in rows:
        this.clocks[thread, thread] += 1


def _touch(this: OrderPass, event: Touched) -> None:
    ((region, _, place, bounds),) = this.located[event]
    memory = this.memories.get(place)
    if memory is None:
        if len(this.users[place]) < 2:
            return
        memory = this.memory(place)
    thread = event.thread
    row = this.clocks[thread]
    if event.earlier is None:  # an access of an earlier kernel is no new one
        check(this, memory, event, bounds, row, thread)
    if len(this.users[place]) > 1:
        key = (thread, event.writes, event.adds, *place_of(region))
        time = int(row[thread])
        past = PastAccess(thread, time, region, event.writes, event.adds, event)
        memory.keep(key, past, bounds)


def _reach(this: OrderPass, event: Entered | Reached | Any) -> None:
    if isinstance(event, Entered):
        this.entered[event.key] = (event.thread, int(this.clocks[event.thread, event.thread]))
        tick(this, event.thread)
        return
    home = this.entered.get(event.key)
    if home is None or this.clocks[event.thread, home[0]] < home[1]:
        note(this, "entry", event, home)


_HANDLERS: dict[type, Callable[[OrderPass, Any], None]] = {
    Touched: _touch,
    Started: _start,
    Signalled: _signal,
    Synchronized: _synchronize,
    Entered: _reach,
    Reached: _reach,
}
