"""The monitor of order: which accesses of a recorded run nothing orders.

Happened-before is kept in vector clocks (Lamport 1978; Mattern 1989): a clock says of each thread
how far that one has come in every order of the same events, not in this run only. A wait takes an
amount from a semaphore, whosever it is. So it proves that a copy is done only if it took all that
the semaphore can have been given by then, and ``increments`` says which clocks it proves by cases.

What the semaphore can have been given are all increments that do not come after the wait, those
too that came later in this run: another run may have them earlier (Netzer and Miller 1992 call
these racing messages). Whether an increment comes after a wait depends on what other waits prove.
So the clocks are a greatest fixpoint: the first pass over the events takes all that came later for
ordered, each further pass uses the clocks of the pass before, and the last one changes none of
them. No clock rises from one pass to the next, so there is a last one. Most runs need one pass.

The clocks are sound: by induction over any run of the same events, what a clock says has happened
there. They are exact where each semaphore has one thread that takes from it. Then an event that
can happen still can after any other, so the run without thread B from t on reaches all that does
not depend on B at t, and that are the events whose clocks do not know it.
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
from pytest_pallas.simulator.monitors.increments import Increment, amount_of
from pytest_pallas.simulator.monitors.order_findings import finding_of
from pytest_pallas.simulator.monitors.passes import (
    OrderPass,
    check,
    locate_all,
    note,
    racing_increments,
    sum_of_clocks,
    tick,
    users_of,
)
from pytest_pallas.simulator.monitors.tokens import (
    find_overruns,
    mark_converged,
    pass_on,
    tensor_clock_of,
)

if TYPE_CHECKING:
    from pytest_pallas.simulator.concurrency.transfers import Copy, Semaphore

Array = np.ndarray[Any, Any]


def disorder(events: Sequence[Event], owners: Sequence[Owner], seed: int) -> list[Finding]:
    """Races, and accesses to devices that are not known to be there.

    Args:
      events: of a run.
      owners: of its threads, by number.
      seed: of the run.
    """
    this = happens_before(events, _renumber(events, owners))
    find_overruns(this)
    return [finding_of(this, each, seed) for each in this.violations]


def happens_before(events: Sequence[Event], owners: Sequence[Owner]) -> OrderPass:
    """Go through the events until the clocks are stable.

    Args:
      events: of a run.
      owners: of its threads, by number; each has an event.

    Returns:
      The last pass.
    """
    located = locate_all(events)
    users = users_of(events, located)
    this = OrderPass(events, owners, {}, users, located)
    _run(this)
    racing, before = racing_increments(this), None
    while racing:
        before = sum_of_clocks(this) if before is None else before
        this = OrderPass(events, owners, racing, users, located)
        _run(this)
        # No clock rises, so clocks with equal sums are equal.
        after = sum_of_clocks(this)
        if after >= before:
            break
        racing, before = racing_increments(this), after
    return this


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


def _run(this: OrderPass) -> None:
    count = len(this.owners)
    this.clocks = np.zeros((count, count), np.int32)
    np.fill_diagonal(this.clocks, 1)
    this.proxy_clocks, this.tensor_clocks, this.converged = (
        np.zeros_like(this.clocks) for _ in range(3)
    )
    for number, event in enumerate(this.events):
        this.order = number
        if isinstance(event, Waited):
            _wait(this, number, event)
        else:
            _HANDLERS.get(type(event), pass_on)(this, event)


def _start(this: OrderPass, event: Started) -> None:
    copy, thread = event.copy, event.thread
    clock = tick(this, thread)
    for semaphore in copy.semaphores:
        increment = Increment(thread, copy.size, clock, event, copy)
        this.semaphore(semaphore).increase(increment, this.order)
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
    # A signal that subtracts gives nothing, and no wait may rely on what it took.
    increment = Increment(event.thread, max(event.amount, 0), clock, event)
    this.semaphore(event.semaphore).increase(increment, this.order)


def _wait(this: OrderPass, number: int, event: Waited) -> None:
    history = this.semaphore(event.semaphore)
    thread = event.thread
    row = this.clocks[thread]
    racing = this.racing.get(number, ())
    waiters = len(this.users[event.semaphore])
    taken = history.taken_before(row) + event.amount
    while True:
        clock = history.prove(thread, taken, racing)
        if clock is not None:
            np.maximum(row, clock, out=row)
        for increment in history.learn(thread, row):
            increment.waiters += 1
            increment.close(waiters, number)
        # What it has learnt may say that other threads took something before.
        relied_on, taken = (
            taken,
            taken if waiters == 1 else history.taken_before(row) + event.amount,
        )
        if taken == relied_on:
            break
    if history.given + amount_of(racing) <= taken:
        for increment in history.prove_copies(thread):
            increment.done = True
            increment.close(waiters, number)
            assert increment.copy is not None
            _done(this, increment.copy, event.semaphore, thread, int(row[thread]))
    row[thread] += 1
    history.wait(thread, int(row[thread]), number, event.amount if event.takes else 0)


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
    this.tensor_clocks[rows] = np.max([tensor_clock_of(this, each) for each in rows], axis=0)
    this.clocks[rows] = this.clocks[rows].max(axis=0)
    this.proxy_clocks[rows] = this.proxy_clocks[rows].max(axis=0)
    for thread in rows:
        mark_converged(this, thread)
    this.converged[rows] = this.converged[rows].max(axis=0)
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
