"""One pass of the monitor of order over the events of a run: clocks, and the check of an access."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.findings import Owner, Wait
from pallas_sim.order.accesses import (
    AllocationHistory,
    LocatedRegion,
    PastAccess,
    SideInFlight,
    conflict,
    locate,
    overlap,
    place_of,
    root,
)
from pallas_sim.order.semaphores import SemaphoreHistory, Spans
from pallas_sim.recording import (
    Acquired,
    Asynchronous,
    Copy,
    Event,
    Forked,
    Semaphore,
    Side,
    Started,
    Token,
    Touched,
    Waited,
)

#: No thread.
NO_THREAD: frozenset[int] = frozenset()

#: Findings of one run: a race of a loop shows at every step.
MOST = 32


@dataclass(slots=True, eq=False)
class TokenKnowledge:
    """What a token passes on.

    Attributes:
      clock: of all that released it.
      proxy_clock: of the writes that their asynchronous operations see.
      tensor_clock: of what they did to tensor memory, if the token orders it.
      converged: of those whose lanes all arrived, the time at which they did.
      operations: those that were completed with it.
      waits: of the threads that acquired it, with the time at which they did.
    """

    clock: Array
    proxy_clock: Array
    tensor_clock: Array
    converged: Array
    operations: list[Asynchronous] = field(default_factory=list)
    waits: dict[int, tuple[int, Acquired]] = field(default_factory=dict)


@dataclass(eq=False)
class OrderPass:
    """One pass over the events.

    Attributes:
      events: of the run.
      owners: of the threads, by number.
      racing: for a wait's number, the increments that came later in the run and may come before
        the wait in another order, as the pass before found them.
      users: the threads that access an allocation, or wait on a semaphore.
      located: where the accesses and copies are; the same in all passes.
      flights: the sides of each copy that was started.
      clocks: of the threads, a row each.
      semaphores: what each was given, and the waits on it.
      memories: of the allocations, by the identity of the array that owns them.
      entered: who made an allocation of a device, and when.
      proxy_clocks: as ``clocks``, of the writes that each thread's asynchronous operations see.
      tensor_clocks: as ``clocks``, of what each thread knows that others did to tensor memory.
      converged: as ``clocks``, of what each thread knows that all lanes of a thread have done.
      tokens: what a thread knows that acquires a token.
      pasts: what the sides of operations became that are done, by identity.
      forks: what the thread knew that started an operation, by the identity of that.
      chains: the operations that were started, by ``Asynchronous.chain``.
      before: the operations that are done before one of the same chain can be, by its identity.
      finished: threads, and the identities of the operations that they know to be done.
      order: how many events the pass has gone through.
      steps: of each copy, which it is of those of its line, and of how many; for findings only.
      unproved: by semaphore, the last waits on it and what else can have satisfied them; for
        findings only.
      violations: kinds and events of what is out of order, at most ``MOST``.
    """

    events: Sequence[Event]
    owners: Sequence[Owner]
    racing: Mapping[int, Spans]
    users: Mapping[Any, frozenset[int]]
    located: Mapping[Any, Sequence[LocatedRegion]]
    flights: dict[Copy, list[SideInFlight]] = field(default_factory=dict)
    clocks: Array = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    semaphores: dict[Semaphore, SemaphoreHistory] = field(default_factory=dict)
    memories: dict[int, AllocationHistory] = field(default_factory=dict)
    entered: dict[Any, tuple[int, int]] = field(default_factory=dict)
    proxy_clocks: Array = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    tensor_clocks: Array = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    converged: Array = field(default_factory=lambda: np.zeros((0, 0), np.int32))
    pasts: dict[int, PastAccess] = field(default_factory=dict)
    forks: dict[int, Array] = field(default_factory=dict)
    tokens: dict[Token, TokenKnowledge] = field(default_factory=dict)
    chains: dict[Any, list[Asynchronous]] = field(default_factory=dict)
    before: dict[int, list[Asynchronous]] = field(default_factory=dict)
    finished: set[tuple[int, int]] = field(default_factory=set)
    order: int = 0
    steps: dict[Copy, tuple[int, int]] = field(default_factory=dict)
    unproved: dict[Semaphore, tuple[Wait, ...]] = field(default_factory=dict)
    violations: list[tuple[str, Any, Any]] = field(default_factory=list)

    def semaphore(self, semaphore: Semaphore) -> SemaphoreHistory:
        """What a semaphore was given so far, and the waits on it."""
        history = self.semaphores.get(semaphore)
        if history is None:
            history = self.semaphores[semaphore] = SemaphoreHistory()
        return history

    def memory(self, place: int) -> AllocationHistory:
        """What was done to an allocation so far."""
        history = self.memories.get(place)
        if history is None:
            history = self.memories[place] = AllocationHistory()
        return history


def tick(this: OrderPass, thread: int) -> Array:
    """The clock that others learn now; what the thread does from here on they do not know."""
    row = this.clocks[thread]
    known = row.copy()
    row[thread] += 1
    return known


def racing_increments(this: OrderPass) -> dict[int, Spans]:
    """For a wait's number, the later increments that may come before it in another order."""
    return {
        number: spans for history in this.semaphores.values() for number, spans in history.racing()
    }


def sum_of_clocks(this: OrderPass) -> int:
    """The sum of all entries of the clocks that waits can learn."""
    return sum(
        int(np.sum([each.clock for each in history.all_increments()], dtype=np.int64))
        for history in this.semaphores.values()
        if history.waits
    )


def check(
    this: OrderPass,
    memory: AllocationHistory,
    event: Touched | SideInFlight,
    bounds: tuple[int, int],
    clock: Array,
    thread: int,
) -> None:
    """Note the accesses that are not ordered with one, unless there are ``MOST`` already."""
    if len(this.violations) >= MOST:
        return
    region = event.region
    frees = isinstance(event, Touched) and event.frees
    for flight in memory.flights_near(bounds):
        if not conflict(event, flight):
            continue
        if are_in_order(this, event, flight):
            continue
        if frees and is_known(flight):
            continue
        if overlap(region, flight.region):
            note(this, "race", event, flight)
    proxy_clock, tensor_clock, converged = None, None, None
    if isinstance(event, SideInFlight):
        proxy_clock, tensor_clock = event.proxy_clock, event.tensor_clock
        converged = event.converged
    for past in memory.ordered.near(bounds):
        if not conflict(event, past):
            continue
        # What a thread itself did it knows, whatever its barriers order.
        own = past.is_of(thread)
        ordered = own or past.is_known(clock)
        visible = True
        if isinstance(past.event, Touched):
            if past.event.writes:
                visible = proxy_clock is None or past.is_known(proxy_clock)
            else:
                visible = converged is None or past.time_of(thread) <= converged
        shared = tensor_clock is None or own or past.is_known(tensor_clock)
        if ordered and visible and shared:
            continue
        if are_in_order(this, event, past.event):
            continue
        if not overlap(region, past.region):
            continue
        earlier = past.event.earlier if isinstance(past.event, Touched) else None
        if earlier is not None:
            access = earlier(region)
            if access is not None:
                note(this, "early", event, access)
            continue
        why = "race" if not ordered else "tensor" if visible else "fence"
        note(this, why, event, past.event)


def are_in_order(
    this: OrderPass, one: Touched | SideInFlight, other: Touched | SideInFlight
) -> bool:
    """Whether they are sides of the same copy or operation, or of two of one chain."""
    if isinstance(one, Touched) or isinstance(other, Touched):
        return False
    if one.origin is other.origin:
        return True
    if one.chain is None or one.chain != other.chain:
        return False
    # Of two threads, only if the later one knows that the other has started its own.
    clock = one.clock if one.tensor_clock is None else one.tensor_clock
    if clock[other.thread] < other.clock[other.thread]:
        return False
    return are_pipelined(other, one, this.chains.get(one.chain, ()))


def is_known(flight: SideInFlight) -> bool:
    """Whether a finding says that nothing waits for a copy, or a later kernel may wait for it."""
    copy = flight.origin
    if isinstance(copy, Asynchronous):
        return False
    return copy.reported or (copy.done is not None and copy.done.lasting)


def note(this: OrderPass, kind: str, first: Any, second: Any) -> None:
    """Keep what is out of order: ``"race"``, ``"fence"``, ``"early"``, ..., with its events."""
    if len(this.violations) < MOST:
        this.violations.append((kind, first, second))


def locate_all(events: Sequence[Event]) -> Mapping[Any, Sequence[LocatedRegion]]:
    """Where the accesses and the sides of copies are, by event."""
    located: dict[Any, list[LocatedRegion]] = {}
    for event in events:
        if isinstance(event, Touched):
            located[event] = [locate(event.region, writes=event.writes)]
        elif isinstance(event, Started):
            located[event] = [locate(region, writes=writes) for region, writes in event.copy.sides]
    return located


def users_of(
    events: Sequence[Event], located: Mapping[Any, Sequence[LocatedRegion]]
) -> Mapping[Any, frozenset[int]]:
    """The threads that access an allocation, themselves or by copies, or wait on a semaphore."""
    users: dict[Any, frozenset[int]] = {}

    def use(place: Any, *threads: int) -> None:
        before = users.get(place, NO_THREAD)
        if not before.issuperset(threads):
            users[place] = with_threads(before, *threads)

    for event in events:
        if isinstance(event, Waited):
            use(event.semaphore, event.thread)
        elif isinstance(event, (Touched, Started)):
            for each in located[event]:
                use(each.place, event.thread)
        elif isinstance(event, Forked):
            for side in event.operation.sides:
                # The engine is a user of its own.
                use(id(root(side.region)), event.thread, -1)
    return users


@lru_cache
def with_threads(threads: frozenset[int], *others: int) -> frozenset[int]:
    """Some threads and others. Most semaphores have the same few: one object for all of them."""
    return threads.union(others)


# Which operations of a tensor core keep their order (PTX ISA 9.0, 9.7.16.6.2, "pipelined").


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
    """Whether two sides of operations of one unit are accessed in this order.

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
    """Whether operations in between put two others into their order."""
    between: list[Asynchronous] = []
    for each in reversed(started):
        if each is first:
            break
        if each is not second and each.thread == second.thread:
            between.append(each)
            if _follows(each, second) and _follows(first, each):
                return True
    if len(between) > _MOST:
        return True
    reached = [first]
    for each in (*reversed(between), second):
        if any(_follows(before, each) for before in reached):
            reached.append(each)
    return reached[-1] is second


def _follows(first: Asynchronous, second: Asynchronous) -> bool:
    """Whether an operation is done as a whole after another one, because PTX pairs them."""
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
