"""Order that tokens pass on, and asynchronous operations: the monitor of order for a GPU.

A barrier says exactly which arrivals and which operations completed a phase. So there is nothing to
be proved of amounts here: a thread that acquires a token knows what those did who released it, and
that the operations are done that were completed with it.

An operation is like a thread that forks from the one that starts it, and joins each thread that
knows that it is done. Through the asynchronous proxy it sees what threads wrote only as far as a
fence came between (PTX ISA, "Memory Consistency Model", "Proxies", and ``fence.proxy.async``): each
thread has a second clock, which says how far the writes of others, and its own, are fenced. A third
one says what it knows of accesses to tensor memory: only barriers with ``orders_tensor_core`` pass
that on (``tcgen05.fence``, PTX ISA 9.0, 9.7.16.6.4).

A thread here is a warpgroup, and one of its lanes starts a copy, while other warps may still read
what it overwrites. JAX's lowering lets them wait for each other before, unless the kernel has
``unsafe_no_auto_barriers``, which is safe only where this does not happen (the docstring of
``plgpu.CompilerParams``). Then a kernel must say so itself, by ``commit_smem`` or by a barrier at
which all lanes arrive and that it waits for. No fence is needed for what is only read: consumers
release a buffer without one in CUTLASS's ``PipelineTmaAsync`` and in JAX's
``emit_pipeline_warp_specialized``. A fourth clock keeps what all lanes have done.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pallas_sim.order.accesses import (
    AllocationHistory,
    PastAccess,
    SideInFlight,
    bounds_of,
    conflict,
    overlap,
    place_of,
    root,
)
from pallas_sim.order.passes import OrderPass, TokenKnowledge, are_in_order, check, note, tick
from pallas_sim.recording import (
    Acquired,
    Asynchronous,
    Completed,
    Fenced,
    Finished,
    Forked,
    Released,
    Token,
)


def pass_on(
    this: OrderPass, event: Released | Acquired | Fenced | Forked | Completed | Finished
) -> None:
    """Go on by one of the events that this module knows."""
    if isinstance(event, Released):
        _release(this, event)
    elif isinstance(event, Acquired):
        _acquire(this, event)
    elif isinstance(event, Forked):
        _fork(this, event)
    elif isinstance(event, Completed):
        passed = _passed(this, event.token)
        passed.operations.append(event.operation)
        np.maximum(passed.clock, this.forks[id(event.operation)], out=passed.clock)
    elif isinstance(event, Finished):
        _finish(this, event.operation, event.thread, sources_only=not event.writes)
    else:
        this.proxy_clocks[event.thread] = this.clocks[event.thread]
        mark_converged(this, event.thread)
        tick(this, event.thread)


def _passed(this: OrderPass, token: Token) -> TokenKnowledge:
    knowledge = this.tokens.get(token)
    if knowledge is None:
        clock, proxy, tensor, converged = np.zeros((4, len(this.owners)), np.int32)
        knowledge = this.tokens[token] = TokenKnowledge(clock, proxy, tensor, converged)
    return knowledge


def mark_converged(this: OrderPass, thread: int) -> None:
    """Mark the lanes of a thread as converged: all have done what it did so far."""
    this.converged[thread, thread] = this.clocks[thread, thread]


def _release(this: OrderPass, event: Released) -> None:
    passed = _passed(this, event.token)
    if event.token.tensor_core:
        np.maximum(
            passed.tensor_clock, tensor_clock_of(this, event.thread), out=passed.tensor_clock
        )
    np.maximum(passed.converged, this.converged[event.thread], out=passed.converged)
    if event.together:
        mine = this.clocks[event.thread, event.thread]
        passed.converged[event.thread] = max(passed.converged[event.thread], mine)
    np.maximum(passed.clock, tick(this, event.thread), out=passed.clock)
    np.maximum(passed.proxy_clock, this.proxy_clocks[event.thread], out=passed.proxy_clock)


def tensor_clock_of(this: OrderPass, thread: int) -> np.ndarray[Any, Any]:
    """The clock of what a thread knows of accesses to tensor memory, its own included."""
    known = this.tensor_clocks[thread].copy()
    known[thread] = this.clocks[thread, thread]
    return known


def _acquire(this: OrderPass, event: Acquired) -> None:
    thread, passed = event.thread, _passed(this, event.token)
    row, proxy_clock = this.clocks[thread], this.proxy_clocks[thread]
    np.maximum(row, passed.clock, out=row)
    np.maximum(proxy_clock, passed.proxy_clock, out=proxy_clock)
    converged = this.converged[thread]
    np.maximum(converged, passed.converged, out=converged)
    if event.token.tensor_core:
        np.maximum(this.tensor_clocks[thread], passed.tensor_clock, out=this.tensor_clocks[thread])
    tick(this, thread)
    passed.waits.setdefault(thread, (int(row[thread]), event))
    for operation in passed.operations:
        _finish(this, operation, thread)


def find_overruns(this: OrderPass) -> None:
    """Note the waits for a phase that the next phase of the barrier may complete before.

    A thread that is late then sees the parity that it had before, and waits for a phase too many.
    """
    for token, passed in this.tokens.items():
        after = token.after and this.tokens.get(token.after)
        if not after or token.after is None or token.after.after is None:
            continue
        for thread, (time, event) in passed.waits.items():
            if after.clock[thread] < time:
                note(this, "phase", event, None)


def _fork(this: OrderPass, event: Forked) -> None:
    operation, thread = event.operation, event.thread
    if operation.chain is not None:
        this.chains.setdefault(operation.chain, []).append(operation)
    tensor_clock = tensor_clock_of(this, thread)
    clock = this.forks[id(operation)] = tick(this, thread)
    proxy_clock = this.proxy_clocks[thread].copy()
    converged = int(this.converged[thread, thread])
    for side in operation.sides:
        flight = SideInFlight(
            operation,
            side.region,
            side.writes,
            side.adds,
            thread,
            clock,
            bounds_of(side.region),
            side,
            proxy_clock if side.proxied else None,
            converged if side.proxied and side.writes and operation.apart else None,
            tensor_clock if side.tensor_core else None,
            operation.chain,
        )
        memory = this.memories.setdefault(id(root(side.region)), AllocationHistory())
        check(this, memory, flight, flight.bounds, clock, thread)
        if operation.chain is not None:
            _note_before(this, memory, flight)
        memory.begin(flight)
        memory.sides[id(side)] = flight


def _note_before(this: OrderPass, memory: AllocationHistory, flight: SideInFlight) -> None:
    """Note which operations must be done before one, as it reads or adds to what they write."""
    assert isinstance(flight.origin, Asynchronous)
    before = this.before.setdefault(id(flight.origin), [])
    over = (past.event for past in memory.ordered.near(flight.bounds))
    for other in (*memory.flights_near(flight.bounds), *over):
        if not isinstance(other, SideInFlight) or not other.writes or other.chain != flight.chain:
            continue
        origin = other.origin
        follows = conflict(flight, other) and are_in_order(this, flight, other)
        if follows and isinstance(origin, Asynchronous) and overlap(flight.region, other.region):
            before.append(origin)


def _finish(
    this: OrderPass, operation: Asynchronous, thread: int, *, sources_only: bool = False
) -> None:
    """A thread knows that an operation is done, or that it has read its sources.

    With one that is done, those are that had to be done before it.
    """
    if sources_only:
        _finish_sides(this, operation, thread, sources_only=True)
        return
    left = [operation]
    while left:
        each = left.pop()
        # A product of many steps waits for each step before it: nothing is looked at twice.
        if (thread, id(each)) not in this.finished:
            this.finished.add((thread, id(each)))
            _finish_sides(this, each, thread)
            left += this.before.get(id(each), ())


def _finish_sides(
    this: OrderPass, operation: Asynchronous, thread: int, *, sources_only: bool = False
) -> None:
    row = this.clocks[thread]
    time = int(row[thread])
    for side in operation.sides:
        if sources_only and side.writes:
            continue
        memory = this.memories.get(id(root(side.region)))
        if memory is None:
            continue
        flight = memory.sides.pop(id(side), None)
        if flight is None:
            past = this.pasts.get(id(side))
            if (
                past is not None
                and isinstance(past.event, SideInFlight)
                and past.event.side is side
            ):
                past.learn(thread, time)  # another thread has learnt before
            continue
        memory.end(flight)
        np.maximum(row, flight.clock, out=row)
        if flight.tensor_clock is not None:
            np.maximum(
                this.tensor_clocks[thread], flight.tensor_clock, out=this.tensor_clocks[thread]
            )
        this.pasts[id(side)] = _keep(memory, flight, thread, time)


def _keep(memory: AllocationHistory, flight: SideInFlight, thread: int, time: int) -> PastAccess:
    """Note an operation as an access that is over, in place of one that it comes after."""
    key = ("operation", flight.thread, flight.writes, flight.adds, *place_of(flight.region))
    before = memory.past.get(key)
    if before is not None and not before.is_known(flight.clock):
        key = (*key, id(flight))
    past = PastAccess(thread, time, flight.region, flight.writes, flight.adds, flight)
    return memory.keep(key, past, flight.bounds)
