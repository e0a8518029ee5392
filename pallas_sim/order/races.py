"""``OrderPass``, a pass over the events of a run, and ``check_races``, which compares accesses.

A lock made of a semaphore keeps accesses apart that no clock orders. Few runs have such accesses,
so locks are looked for only when a pass has found accesses without an order. One more pass then
asks ``locks`` about each pair of them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.findings import Owner
from pallas_sim.order.accesses import (
    AllocationHistory,
    LocatedRegion,
    PastAccess,
    SideInFlight,
    are_pipelined,
    conflict,
    overlap,
)
from pallas_sim.order.locks import Locks
from pallas_sim.order.semaphores import SemaphoreHistory, Spans
from pallas_sim.recording import (
    Acquired,
    Asynchronous,
    Copy,
    Event,
    Semaphore,
    Token,
    Touched,
)

#: Violations of one run: a race of a loop shows at every step.
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
      kept: which elements reach something, by allocation: see ``AllocationHistory``.
      locks: that keep accesses apart, if an earlier pass found accesses without an order.
      ends: the sides of copies and operations as the pass before left them, with ``locks``.
      order: how many events the pass has gone through.
      clocks: of the threads, a row each.
      proxy_clocks: as ``clocks``, of the writes that each thread's asynchronous operations see.
      tensor_clocks: as ``clocks``, of what each thread knows that others did to tensor memory.
      converged: as ``clocks``, of what each thread knows that all lanes of a thread have done.
      semaphores: what each was given, and the waits on it.
      memories: of the allocations, by the identity of the array that owns them.
      flights: the sides of each copy or operation that was started.
      entered: who made an allocation of a device, and when.
      tokens: what a thread knows that acquires a token.
      forks: what the thread knew that started an operation.
      chains: the operations that were started, by ``Asynchronous.chain``.
      before: the operations that are done before one of the same chain can be.
      finished: threads, and the operations that they know to be done.
      phases: for a phase of a barrier, the one before.
      ambiguous: whether an arrival at a barrier might have come in an earlier phase.
      violations: what is out of order, at most ``MOST``: a kind, the event, and the earlier one.
        ``"race"``; ``"fence"``: an engine may not see it, or lanes may still read; ``"refill"``:
        no fence comes between a read and an engine's write; ``"tensor"``: the order does not hold
        for tensor memory; ``"early"``: with an access of the kernel ahead; ``"entry"``: of a
        device; ``"phase"``: one of a barrier may be missed.
    """

    events: Sequence[Event]
    owners: Sequence[Owner]
    racing: Mapping[int, Spans]
    users: Mapping[Any, frozenset[int]]
    located: Mapping[Any, Sequence[LocatedRegion]]
    kept: Mapping[int, Array] = field(default_factory=dict)
    locks: Locks | None = None
    ends: Mapping[Copy | Asynchronous, Sequence[SideInFlight]] = field(default_factory=dict)
    order: int = 0
    clocks: Array = field(init=False)
    proxy_clocks: Array = field(init=False)
    tensor_clocks: Array = field(init=False)
    converged: Array = field(init=False)
    semaphores: dict[Semaphore, SemaphoreHistory] = field(
        default_factory=lambda: defaultdict(SemaphoreHistory)
    )
    memories: dict[int, AllocationHistory] = field(
        default_factory=lambda: defaultdict(AllocationHistory)
    )
    flights: dict[Copy | Asynchronous, list[SideInFlight]] = field(default_factory=dict)
    entered: dict[Any, tuple[int, int]] = field(default_factory=dict)
    tokens: dict[Token, TokenKnowledge] = field(default_factory=dict)
    forks: dict[Asynchronous, Array] = field(default_factory=dict)
    chains: dict[Any, list[Asynchronous]] = field(default_factory=dict)
    before: dict[Copy | Asynchronous, list[Asynchronous]] = field(default_factory=dict)
    finished: set[tuple[int, Asynchronous]] = field(default_factory=set)
    violations: list[tuple[str, Any, Any]] = field(default_factory=list)
    phases: dict[Token, Token] = field(default_factory=dict)
    ambiguous: bool = False

    def __post_init__(self) -> None:
        """Begin with clocks that know the first time of their own thread only."""
        count = len(self.owners)
        self.clocks, self.proxy_clocks, self.tensor_clocks, self.converged = np.zeros(
            (4, count, count), np.int32
        )
        np.fill_diagonal(self.clocks, 1)
        for allocation, kept in self.kept.items():
            self.memories[allocation].kept = kept

    def token(self, token: Token) -> TokenKnowledge:
        """Return what a token passes on so far."""
        knowledge = self.tokens.get(token)
        if knowledge is None:
            clock, proxy, tensor, converged = np.zeros((4, len(self.owners)), np.int32)
            knowledge = self.tokens[token] = TokenKnowledge(clock, proxy, tensor, converged)
        return knowledge

    def tick(self, thread: int) -> Array:
        """Return the clock that others learn now, and advance the thread beyond what they know."""
        row = self.clocks[thread]
        clock = row.copy()
        row[thread] += 1
        return clock

    def tensor_clock(self, thread: int) -> Array:
        """Return the clock of what a thread knows of accesses to tensor memory, also its own."""
        clock = self.tensor_clocks[thread].copy()
        clock[thread] = self.clocks[thread, thread]
        return clock

    def converge(self, thread: int) -> None:
        """Note that all lanes of a thread have done what it did so far."""
        self.converged[thread, thread] = self.clocks[thread, thread]

    def add_violation(self, kind: str, event: Any, earlier: Any) -> None:
        """Keep what is out of order, unless there are ``MOST`` already."""
        if len(self.violations) < MOST:
            self.violations.append((kind, event, earlier))


# Memory: an access is compared with the earlier ones.


def check_races(
    this: OrderPass,
    memory: AllocationHistory,
    event: Touched | SideInFlight,
    bounds: tuple[int, int],
    clock: Array,
) -> None:
    """Note the earlier accesses that did not happen before one.

    Args:
      this: the pass.
      memory: the allocation that is accessed.
      event: the access.
      bounds: of its region.
      clock: of its thread.
    """
    if len(this.violations) >= MOST:
        return
    region = event.region
    frees = isinstance(event, Touched) and event.frees
    # A flight is nowhere proved to be done, so no clock orders it with anything later.
    for flight in memory.flights_near(bounds):
        if not conflict(event, flight) or keep_order(this, event, flight):
            continue
        # The end of memory after a copy that nobody waits for is the same mistake again.
        if frees and _is_reported(flight):
            continue
        if not frees and flight.writes and memory.drops(region, flight.region):
            continue
        if overlap(region, flight.region):
            this.add_violation("race", event, flight)
    for past in memory.ordered.near(bounds):
        if not conflict(event, past):
            continue
        # What a thread itself did it knows, whatever its barriers order.
        own = past.is_of(event.thread)
        kind = "" if own or past.is_before(clock) else "race"
        # Known to have happened is not enough for an engine: it looks through another proxy.
        if not kind and isinstance(event, SideInFlight):
            kind = _hidden_from_engine(event, past, own=own)
        if not kind or keep_order(this, event, past.event) or not overlap(region, past.region):
            continue
        if not frees and past.writes and memory.drops(region, past.region):
            continue
        if kind == "race" and this.locks is not None:
            kind = _race_despite(this, this.locks, event, clock, past)
            if not kind:
                continue
        if isinstance(past.event, Touched) and past.event.earlier is not None:
            access = past.event.earlier(region)
            if access is not None:
                this.add_violation("early", event, access)
            continue
        this.add_violation(kind, event, past.event)


def held_during(this: OrderPass, event: Touched | SideInFlight, clock: Array) -> Array | None:
    """Return what is held of locks during an access; None without locks: see ``Locks.held``."""
    if this.locks is None:
        return None
    thread, time = event.thread, int(clock[event.thread])
    if isinstance(event, Touched):
        return this.locks.held(thread, clock, lambda other: bool(other[thread] >= time))
    sides = this.ends[event.origin]
    side = next(
        side for side in sides if (side.region is event.region) & (side.writes == event.writes)
    )
    return this.locks.held(thread, clock, side.is_over)


def key_of(held: Array | None) -> tuple[bytes, ...]:
    """Return a key that is equal for accesses with the same locks: one stands for the others."""
    return () if held is None else (held.tobytes(),)


def _race_despite(
    this: OrderPass,
    locks: Locks,
    event: Touched | SideInFlight,
    clock: Array,
    past: PastAccess,
) -> str:
    """Return why an access is in no order with one that no clock knows; "" if a lock orders them.

    What comes from threads through the other proxy needs a fence after the lock was taken, too.
    """
    held = held_during(this, event, clock)
    earlier = past.held
    if isinstance(past.event, SideInFlight):
        earlier = held_during(this, past.event, past.event.clock)
    if held is None or earlier is None or not locks.keep_apart(held, earlier):
        return "race"
    if isinstance(event, Touched) or isinstance(past.event, SideInFlight):
        return ""
    proxy_clock, thread = event.proxy_clock, event.thread
    if proxy_clock is None:
        return ""
    fenced = locks.is_fenced(thread, int(proxy_clock[thread]), int(clock[thread]))
    return "" if fenced else "fence"


def _hidden_from_engine(flight: SideInFlight, past: PastAccess, *, own: bool) -> str:
    """Return why an engine may not see an access from before it was started; "" if it does."""
    if isinstance(past.event, Touched):
        if past.event.writes:
            visible = flight.proxy_clock is None or past.is_before(flight.proxy_clock)
        else:
            visible = flight.converged is None or past.time_of(flight.thread) <= flight.converged
        if not visible:
            return "fence"
        # For a write, ``proxy_clock`` has said so already.
        if flight.refill_clock is not None and not past.is_before(flight.refill_clock):
            return "refill"
    if flight.tensor_clock is None or own or past.is_before(flight.tensor_clock):
        return ""
    return "tensor"


def keep_order(this: OrderPass, one: Touched | SideInFlight, other: Touched | SideInFlight) -> bool:
    """Return whether they are sides of the same copy or operation, or of two of one chain."""
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


def _is_reported(flight: SideInFlight) -> bool:
    """Return whether a finding says that nothing waits for a copy, or a later kernel may do so."""
    copy = flight.origin
    if isinstance(copy, Asynchronous):
        return False
    return copy.reported or (copy.done is not None and copy.done.lasting)
