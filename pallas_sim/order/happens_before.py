"""Happened-before: what each event of a run comes after, in every order of the same events.

It is kept in vector clocks (Lamport 1978; Mattern 1989). Row ``t`` of ``OrderPass.clocks`` is the
clock of thread ``t``: for each thread, how far that one has come in every order of the same
events, not in this run only. An access is an epoch (Flanagan and Freund 2009, "FastTrack"): a
thread with a time of it. It happened before what has a clock ``c`` if ``time <= c[thread]``. An
allocation keeps the last access of each kind by each thread to each region, and each new access
is compared with those that share an address (``check_races``).

**Copies and semaphores.** A wait takes an amount from a semaphore, whosever it is. So it proves
that a copy is done only if it took all that the semaphore can have been given by then;
``semaphores`` says which clocks it proves by cases. What the semaphore can have been given are
all increments that do not come after the wait, those too that came later in this run: another run
may have them earlier (Netzer and Miller 1992 call these racing messages). Whether an increment
comes after a wait depends on what other waits prove. So the clocks are a greatest fixpoint: the
first pass over the events takes all that came later for ordered, each further pass uses the
clocks of the pass before, and the last one changes none of them. No clock rises from one pass to
the next, so there is a last one. Most runs need one pass.

The clocks are sound: by induction over any run of the same events, what a clock says has happened
there. They are exact where each semaphore has one thread that takes from it. Then an event that
can happen still can after any other, so the run without thread B from t on reaches all that does
not depend on B at t, and that are the events whose clocks do not know it.

**Tokens and engines of a GPU.** A barrier says exactly which arrivals and which operations
completed a phase. So nothing is proved of amounts: a thread that acquires a token knows what
those did who released it, and that the operations are done that were completed with it. An
operation of an engine is like a thread that forks from the one that starts it, and joins each
thread that knows that it is done. Each thread has three more clocks:

- ``proxy_clocks``: through the asynchronous proxy an operation sees what threads wrote only as
  far as a fence came between (PTX ISA, "Memory Consistency Model", "Proxies",
  ``fence.proxy.async``).
- ``tensor_clocks``: what it knows of accesses to tensor memory. Only barriers with
  ``orders_tensor_core`` pass that on (``tcgen05.fence``, PTX ISA 9.0, 9.7.16.6.4).
- ``converged``: what all lanes have done. A thread here is a warpgroup, and one of its lanes
  starts a copy, while other warps may still read what it overwrites. JAX's lowering lets them
  wait for each other before, unless the kernel has ``unsafe_no_auto_barriers``, which is safe
  only where this does not happen (the docstring of ``plgpu.CompilerParams``). Then a kernel must
  say so itself, by ``commit_smem`` or by a barrier at which all lanes arrive and that it waits
  for.

A copy that writes through the asynchronous proxy what threads have read needs a fence, too, if it
``refills``: ``machine.READ_FENCES`` says which copies do, and docs/simulator.md why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.findings import Owner
from pallas_sim.order.accesses import (
    AllocationHistory,
    LocatedRegion,
    PastAccess,
    SideInFlight,
    conflict,
    locate,
    overlap,
    place_of,
)
from pallas_sim.order.locks import Locks
from pallas_sim.order.races import OrderPass, check_races, held_during, keep_order, key_of
from pallas_sim.order.semaphores import Increment, Spans, amount_of
from pallas_sim.recording import (
    Acquired,
    Asynchronous,
    Completed,
    Copy,
    Entered,
    Event,
    Fenced,
    Finished,
    Forked,
    ReachedDevice,
    Released,
    Semaphore,
    Signalled,
    Started,
    Synchronized,
    Token,
    Touched,
    Waited,
)

# The fixpoint.


def happens_before(
    events: Sequence[Event], owners: Sequence[Owner], kept: Mapping[int, Array] | None = None
) -> OrderPass:
    """Go through the events until the clocks are stable.

    Args:
      events: of a run.
      owners: of its threads, by number; each has an event.
      kept: see ``OrderPass``.

    Returns:
      The last pass.
    """
    located = _locate_all(events)
    users = _users_of(events, located)
    kept = {} if kept is None else kept
    this = _run(OrderPass(events, owners, {}, users, located, kept))
    racing, before = _racing_increments(this), None
    # Without increments that may come earlier, the pass took nothing for granted: it is the last.
    while racing:
        before = _sum_of_clocks(this) if before is None else before
        this = _run(OrderPass(events, owners, racing, users, located, kept))
        # No clock rises, so clocks with equal sums are equal.
        after = _sum_of_clocks(this)
        if after >= before:
            break
        racing, before = _racing_increments(this), after
    races = any(kind == "race" for kind, _, _ in this.violations)
    locks = Locks.of(this.semaphores) if races else None
    if locks is None:
        return this
    # Its clocks are the same, and the ends of all copies are known.
    facts = this.racing, users, located, kept
    return _run(OrderPass(events, owners, *facts, locks=locks, ends=this.flights))


def _run(this: OrderPass) -> OrderPass:
    for number, event in enumerate(this.events):
        this.order = number
        _HANDLERS[type(event)](this, event)
    return this


def _racing_increments(this: OrderPass) -> dict[int, Spans]:
    """Return, by a wait's number, the later increments that may come before it in another order."""
    return {
        number: spans for history in this.semaphores.values() for number, spans in history.racing()
    }


def _sum_of_clocks(this: OrderPass) -> int:
    """Return the sum of all entries of the clocks that waits can learn."""
    return sum(
        int(np.sum([increment.clock for increment in history.all_increments()], dtype=np.int64))
        for history in this.semaphores.values()
        if history.waits
    )


def _locate_all(events: Sequence[Event]) -> Mapping[Any, Sequence[LocatedRegion]]:
    """Return where the accesses and the sides of copies are, by event."""
    located: dict[Any, list[LocatedRegion]] = {}
    for event in events:
        if isinstance(event, Touched):
            located[event] = [locate(event.region, writes=event.writes)]
        elif isinstance(event, Started):
            located[event] = [locate(region, writes=writes) for region, writes in event.copy.sides]
        elif isinstance(event, Forked):
            sides = event.operation.sides
            located[event] = [locate(side.region, writes=side.writes) for side in sides]
    return located


def _users_of(
    events: Sequence[Event], located: Mapping[Any, Sequence[LocatedRegion]]
) -> Mapping[Any, frozenset[int]]:
    """Return the threads that access an allocation, also by copies, or wait on a semaphore.

    What has one user needs no history: it is in the order of its program.
    """
    users: dict[Any, frozenset[int]] = {}

    def use(shared: Any, *threads: int) -> None:
        before = users.get(shared, frozenset())
        if not before.issuperset(threads):
            users[shared] = _with_threads(before, *threads)

    for event in events:
        if isinstance(event, Waited):
            use(event.semaphore, event.thread)
        elif isinstance(event, (Touched, Started, Forked)):
            # An engine goes on beside its thread, so it is a user of its own.
            engine = (-1,) if isinstance(event, Forked) else ()
            for region in located[event]:
                use(region.allocation, event.thread, *engine)
    return users


@lru_cache
def _with_threads(threads: frozenset[int], *others: int) -> frozenset[int]:
    """Return some threads and others, as one object, because most semaphores have the same."""
    return threads.union(others)


# Memory: an access is compared with the earlier ones.


def _touch(this: OrderPass, event: Touched) -> None:
    ((region, _, allocation, bounds),) = this.located[event]
    shared = len(this.users[allocation]) > 1
    if not shared and allocation not in this.memories:
        return
    memory = this.memories[allocation]
    thread = event.thread
    row = this.clocks[thread]
    if event.earlier is None:  # an access of an earlier kernel is no new one
        check_races(this, memory, event, bounds, row)
    if shared:
        # The last access of a kind stands for those before it: who is ordered with it is ordered
        # with them, too, because they are in the order of one program.
        held = held_during(this, event, row)
        key = (thread, event.writes, event.adds, *place_of(region), *key_of(held))
        past = PastAccess(thread, int(row[thread]), region, event.writes, event.adds, event)
        past.held = held
        memory.keep(key, past, bounds)


# Copies and semaphores.


def _start(this: OrderPass, event: Started) -> None:
    copy, thread = event.copy, event.thread
    clock = this.tick(thread)
    for semaphore in copy.semaphores:
        increment = Increment(thread, copy.size, clock, event, copy)
        this.semaphores[semaphore].increase(increment, this.order)
    this.flights[copy] = []
    for region, writes, allocation, bounds in this.located[event]:
        adds = writes and copy.adds
        _begin(this, SideInFlight(copy, region, writes, adds, thread, clock, bounds, allocation))


def _begin(this: OrderPass, flight: SideInFlight) -> None:
    """Compare a side of a copy or operation with earlier accesses; it is under way from here on."""
    memory = this.memories[flight.allocation]
    check_races(this, memory, flight, flight.bounds, flight.clock)
    if flight.chain is not None:
        _note_before(this, memory, flight)
    memory.begin(flight)
    this.flights[flight.origin].append(flight)


def _signal(this: OrderPass, event: Signalled) -> None:
    clock = this.tick(event.thread)
    # A signal that subtracts gives nothing, and no wait may rely on what it took.
    increment = Increment(event.thread, max(event.amount, 0), clock, event)
    this.semaphores[event.semaphore].increase(increment, this.order)


def _wait(this: OrderPass, event: Waited) -> None:
    history = this.semaphores[event.semaphore]
    thread, number = event.thread, this.order
    row = this.clocks[thread]
    racing = this.racing.get(number, ())
    waiters = len(this.users[event.semaphore])
    taken = history.taken_before(row) + event.amount
    # What the wait proves may say that others took something before, and then it proves more.
    while True:
        clock = history.prove(thread, taken, racing)
        if clock is not None:
            np.maximum(row, clock, out=row)
        for increment in history.learn(thread, row):
            increment.waiters += 1
            increment.close(waiters, number)
        known = taken if waiters == 1 else history.taken_before(row) + event.amount
        if known == taken:
            break
        taken = known
    # All that the semaphore can have been given by then is taken: so each copy has given its part.
    if history.total + amount_of(racing) <= taken:
        for increment in history.prove_copies(thread):
            increment.done = True
            increment.close(waiters, number)
            assert increment.copy is not None
            _end_copy(this, increment.copy, event.semaphore, thread)
    row[thread] += 1
    history.wait(thread, int(row[thread]), number, event.amount if event.takes else 0)


def _end_copy(this: OrderPass, copy: Copy, semaphore: Semaphore, thread: int) -> None:
    """Note what a wait proves: the source is read, or the target written if it is of that side."""
    if copy.sent is not semaphore and copy.done is not semaphore:
        return
    time = int(this.clocks[thread, thread])
    for flight in this.flights.get(copy, ()):
        if flight.writes and copy.done is not semaphore:
            continue
        flight.ended.setdefault(thread, time)
        if flight.past is not None:  # another wait has proved it, to another thread
            flight.past.learn(thread, time)
            continue
        memory = this.memories[flight.allocation]
        if memory.end(flight) and len(this.users[flight.allocation]) > 1:
            flight.past = flight.past_at(thread, time)
            memory.ordered.add(flight.bounds, flight.past)


# Meetings, and the entry of kernels.


def _synchronize(this: OrderPass, event: Synchronized) -> None:
    rows = list(event.threads)
    this.tensor_clocks[rows] = np.max([this.tensor_clock(thread) for thread in rows], axis=0)
    this.clocks[rows] = this.clocks[rows].max(axis=0)
    this.proxy_clocks[rows] = this.proxy_clocks[rows].max(axis=0)
    # All lanes of each thread come to a meeting.
    for thread in rows:
        this.converge(thread)
    this.converged[rows] = this.converged[rows].max(axis=0)
    for thread in rows:
        this.clocks[thread, thread] += 1


def _enter(this: OrderPass, event: Entered) -> None:
    this.entered[event.key] = (event.thread, int(this.tick(event.thread)[event.thread]))


def _reach(this: OrderPass, event: ReachedDevice) -> None:
    home = this.entered.get(event.key)
    if home is None or this.clocks[event.thread, home[0]] < home[1]:
        this.add_violation("entry", event, home)


# Tokens of a GPU's barriers, and operations of its engines.


def _release(this: OrderPass, event: Released) -> None:
    knowledge, thread = this.token(event.token), event.thread
    _note_phase(this, event.token, this.clocks[thread])
    # Before the tick of ``clock``: that time is already after the release.
    if event.token.tensor_core:
        _join(knowledge.tensor_clock, this.tensor_clock(thread))
    _join(knowledge.converged, this.converged[thread])
    if event.together:
        mine = this.clocks[thread, thread]
        knowledge.converged[thread] = max(knowledge.converged[thread], mine)
    _join(knowledge.clock, this.tick(thread))
    _join(knowledge.proxy_clock, this.proxy_clocks[thread])


def _acquire(this: OrderPass, event: Acquired) -> None:
    thread, knowledge = event.thread, this.token(event.token)
    row = this.clocks[thread]
    _join(row, knowledge.clock)
    _join(this.proxy_clocks[thread], knowledge.proxy_clock)
    _join(this.converged[thread], knowledge.converged)
    if event.token.tensor_core:
        _join(this.tensor_clocks[thread], knowledge.tensor_clock)
    this.tick(thread)
    knowledge.waits.setdefault(thread, (int(row[thread]), event))
    for operation in knowledge.operations:
        _end_operation(this, operation, thread)


def _note_phase(this: OrderPass, token: Token, clock: Array) -> None:
    """Note whether an arrival comes after the phase before, as far as a clock knows.

    It does if it comes after somebody has waited for that one, or after all arrivals of threads.
    """
    if token.after is not None:
        this.phases.setdefault(token.after, token)
    before = this.tokens.get(this.phases.get(token, token))
    if this.ambiguous or before is None or token not in this.phases:
        return
    waited = any(clock[thread] >= time for thread, (time, _) in before.waits.items())
    if not waited and (before.operations or (before.clock > clock).any()):
        this.ambiguous = True


def _join(clock: Array, other: Array) -> None:
    """Let a clock know what another one knows."""
    np.maximum(clock, other, out=clock)


def _fence(this: OrderPass, event: Fenced) -> None:
    this.proxy_clocks[event.thread] = this.clocks[event.thread]
    this.converge(event.thread)
    this.tick(event.thread)


def _fork(this: OrderPass, event: Forked) -> None:
    operation, thread = event.operation, event.thread
    if operation.chain is not None:
        this.chains.setdefault(operation.chain, []).append(operation)
    tensor_clock = this.tensor_clock(thread)
    clock = this.forks[operation] = this.tick(thread)
    proxy_clock = this.proxy_clocks[thread].copy()
    converged = int(this.converged[thread, thread])
    this.flights[operation] = []
    for side, (region, writes, allocation, bounds) in zip(
        operation.sides, this.located[event], strict=True
    ):
        apart = side.proxied and writes and operation.apart
        knowledge = (
            proxy_clock if side.proxied else None,
            converged if apart else None,
            proxy_clock if side.proxied and writes and operation.refills else None,
            tensor_clock if side.tensor_core else None,
        )
        start = (thread, clock, bounds, allocation)
        chain = operation.chain
        _begin(
            this,
            SideInFlight(operation, region, writes, side.adds, *start, side, *knowledge, chain),
        )


def _note_before(this: OrderPass, memory: AllocationHistory, flight: SideInFlight) -> None:
    """Note which operations must be done before one, as it reads or adds to what they write."""
    before = this.before.setdefault(flight.origin, [])
    over = (past.event for past in memory.ordered.near(flight.bounds))
    for other in (*memory.flights_near(flight.bounds), *over):
        if not isinstance(other, SideInFlight) or not other.writes or other.chain != flight.chain:
            continue
        origin = other.origin
        follows = conflict(flight, other) and keep_order(this, flight, other)
        if follows and isinstance(origin, Asynchronous) and overlap(flight.region, other.region):
            before.append(origin)


def _complete(this: OrderPass, event: Completed) -> None:
    knowledge = this.token(event.token)
    _note_phase(this, event.token, this.forks[event.operation])
    knowledge.operations.append(event.operation)
    # Not what the thread that started it knows by now: it did not wait.
    _join(knowledge.clock, this.forks[event.operation])


def _finish(this: OrderPass, event: Finished) -> None:
    if event.writes:
        _end_operation(this, event.operation, event.thread)
    else:
        _end_sides(this, event.operation, event.thread, writes=False)


def _end_operation(this: OrderPass, operation: Asynchronous, thread: int) -> None:
    """Note that a thread knows an operation to be done, and those that had to be done before it."""
    left = [operation]
    while left:
        ended = left.pop()
        # A product of many steps waits for each step before it: nothing is looked at twice.
        if (thread, ended) not in this.finished:
            this.finished.add((thread, ended))
            _end_sides(this, ended, thread)
            left += this.before.get(ended, ())


def _end_sides(
    this: OrderPass, operation: Asynchronous, thread: int, *, writes: bool = True
) -> None:
    """Note that a thread knows that an operation has read its sources; with ``writes``, all."""
    row = this.clocks[thread]
    time = int(row[thread])
    for flight in this.flights.get(operation, ()):
        if flight.writes and not writes:
            continue
        flight.ended.setdefault(thread, time)
        past = flight.past
        if past is not None:
            if past.event is flight:  # no later access has taken its place
                past.learn(thread, time)  # another thread has learnt before
            continue
        memory = this.memories[flight.allocation]
        memory.end(flight)
        _join(row, flight.clock)
        if flight.tensor_clock is not None:
            _join(this.tensor_clocks[thread], flight.tensor_clock)
        key = ("operation", flight.thread, flight.writes, flight.adds, *place_of(flight.region))
        key += key_of(held_during(this, flight, flight.clock))
        # An operation may end before an earlier one of the same thread. Then neither stands for
        # the other, and both are kept.
        before = memory.past.get(key)
        if before is not None and not before.is_before(flight.clock):
            key = (*key, id(flight))
        flight.past = memory.keep(key, flight.past_at(thread, time), flight.bounds)


def find_overruns(this: OrderPass) -> None:
    """Note the waits for a phase that the next phase of the barrier may complete before.

    A thread that is late then sees the parity that it had before, and waits for a phase too many.
    """
    for token, knowledge in this.tokens.items():
        # The phase after the next has the parity of this one. Without it, no wait is mistaken.
        after = token.after and this.tokens.get(token.after)
        if not after or token.after is None or token.after.after is None:
            continue
        for thread, (time, event) in knowledge.waits.items():
            if after.clock[thread] < time:
                this.add_violation("phase", event, None)


_HANDLERS: dict[type, Callable[[OrderPass, Any], None]] = {
    Touched: _touch,
    Started: _start,
    Signalled: _signal,
    Waited: _wait,
    Synchronized: _synchronize,
    Entered: _enter,
    ReachedDevice: _reach,
    Released: _release,
    Acquired: _acquire,
    Fenced: _fence,
    Forked: _fork,
    Completed: _complete,
    Finished: _finish,
}
