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

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from pallas_sim.findings import Access, Finding, Owner, Signal, Wait
from pallas_sim.machine import Machine
from pallas_sim.order.accesses import PastAccess, SideInFlight, index_of, place_of
from pallas_sim.order.passes import (
    OrderPass,
    check,
    locate_all,
    note,
    racing_increments,
    sum_of_clocks,
    tick,
    users_of,
)
from pallas_sim.order.semaphores import Increment, amount_of
from pallas_sim.order.tokens import find_overruns, mark_converged, pass_on, tensor_clock_of
from pallas_sim.recording import (
    END_OF_BLOCK,
    Acquired,
    Asynchronous,
    Completed,
    Copy,
    Entered,
    Event,
    Reached,
    Recording,
    Semaphore,
    Signalled,
    Started,
    Synchronized,
    Touched,
    Waited,
)
from pallas_sim.scheduler import collecting_later


def report_disorder(machine: Machine, recording: Recording) -> None:
    """Report what nothing orders in a recording of some threads, which is empty after that."""
    events, recording.events = recording.events, []
    if not events or not machine.monitored:
        return
    with collecting_later():
        findings = disorder(events, list(machine.owners), machine.seed)
    for finding in findings:
        machine.report(finding)


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


# What is out of order, as findings: accesses, the waits that do not order them, and a remedy.


def finding_of(this: OrderPass, violation: tuple[str, Any, Any], seed: int) -> Finding:
    """Make a finding of what a pass found out of order.

    Args:
      this: the pass.
      violation: an entry of ``OrderPass.violations``.
      seed: of the run.
    """
    kind, first, second = violation
    if kind == "entry":
        return _entry(this, first, seed)
    if kind == "phase":
        return _overrun(this, first, seed)
    later, earlier = _access(this, first), _access(this, second)
    waits = _unproved(this, second)
    what = f"race on {later.ref or 'memory'}: nothing orders two accesses"
    if END_OF_BLOCK in (later.line, earlier.line):
        what = (
            f"race on {later.ref or 'memory'}: a block of the cluster may end before another one "
            "accesses its memory; let them wait for each other"
        )
    if kind == "fence":
        what = (
            f"race on {later.ref or 'memory'}: {later.by} may not see what a thread wrote; call "
            "plgpu.commit_smem() between"
        )
        if earlier.kind == "read":
            what = (
                f"race on {later.ref or 'memory'}: {later.by} may overwrite what some lanes of the "
                "thread that starts it still have to read; call plgpu.commit_smem() between"
            )
    if kind == "early":
        what = (
            f"race on {later.ref or 'memory'}: the kernel may begin before the one ahead of it has "
            "ended, and nothing orders two accesses of the two; call plgpu.griddepcontrol_wait() "
            "before"
        )
    if _is_of_one_chain(first, second):
        what = (
            f"race on {later.ref or 'tensor memory'}: the tensor core need not keep the order of "
            "these two; wait for the first one between, with tcgen05_commit_arrive"
        )
    if kind == "tensor":
        what = (
            f"race on {later.ref or 'tensor memory'}: what orders two accesses does not order "
            "tensor memory; make the barrier with orders_tensor_core=True"
        )
    return Finding(
        kind="race",
        message=what,
        kernel=first.kernel if isinstance(first, Touched) else first.origin.kernel,
        program=later.program,
        line=later.line,
        ref=later.ref,
        accesses=(later, earlier),
        waits=waits,
        seed=seed,
    )


def _is_of_one_chain(first: Any, second: Any) -> bool:
    """Whether two operations are of one unit, which keeps the order of others."""
    if not (isinstance(first, SideInFlight) and isinstance(second, SideInFlight)):
        return False
    return first.chain is not None and first.chain == second.chain and first.thread == second.thread


def _overrun(this: OrderPass, event: Acquired, seed: int) -> Finding:
    name = event.token.name
    return Finding(
        kind="phase",
        message=(
            f"nothing keeps {name} from completing another phase before "
            f"{this.owners[event.thread]} has waited for this one: a wait distinguishes only odd "
            "phases from even ones"
        ),
        kernel=event.kernel,
        program=event.program,
        line=event.line,
        ref=name,
        seed=seed,
    )


def _entry(this: OrderPass, event: Reached, seed: int) -> Finding:
    owner = this.owners[event.thread]
    device = event.key[0]
    access = Access(
        kind="write",
        ref=event.name,
        owner=owner,
        home=device,
        line=event.line,
        program=event.program,
        copy=event.how == "copies to",
    )
    return Finding(
        kind="entry",
        message=(
            f"{owner} {event.how} {event.name} of device {device}, and nothing orders that with "
            f"the point at which device {device} has entered the kernel; {event.remedy}"
        ),
        kernel=event.kernel,
        program=event.program,
        line=event.line,
        ref=event.name,
        accesses=(access,),
        seed=seed,
    )


def _access(this: OrderPass, event: Touched | SideInFlight | Access) -> Access:
    if isinstance(event, Access):
        return event
    if isinstance(event, Touched):
        return Access(
            kind="write" if event.writes else "read",
            ref=event.name,
            owner=this.owners[event.thread],
            home=event.home,
            index=index_of(event.region),
            line=event.line,
            program=event.program,
        )
    copy, side = event.origin, event.side
    if isinstance(copy, Asynchronous):
        assert side is not None
        return Access(
            kind="write" if event.writes else "read",
            ref=side.name,
            owner=this.owners[event.thread],
            home=side.home,
            index=index_of(event.region),
            line=copy.line,
            program=copy.program,
            by=copy.what,
            clock=int(event.clock[event.thread]),
        )
    step, steps = _steps_of(this)[copy]
    return Access(
        kind="write" if event.writes else "read",
        ref=copy.names[1] if event.writes else copy.names[0],
        owner=this.owners[event.thread],
        home=copy.home if event.writes else None,
        index=index_of(event.region),
        line=copy.line,
        program=copy.program,
        copy=True,
        clock=int(event.clock[event.thread]),
        step=step,
        steps=steps,
    )


def _steps_of(this: OrderPass) -> dict[Copy, tuple[int, int]]:
    """For each copy, which it is of those that its thread started at its line, and of how many."""
    if not this.steps:
        of_line: dict[Any, list[Copy]] = {}
        for event in this.events:
            if isinstance(event, Started):
                of_line.setdefault((event.copy.owner, event.copy.line), []).append(event.copy)
        for copies in of_line.values():
            this.steps.update(
                (copy, (number, len(copies))) for number, copy in enumerate(copies, 1)
            )
    return this.steps


def _unproved(this: OrderPass, event: Any) -> tuple[Wait, ...]:
    """The last waits on the semaphores of a copy, with what else could have satisfied them."""
    if not isinstance(event, SideInFlight):
        return ()
    copy = event.origin
    if isinstance(copy, Asynchronous):
        return ()
    semaphore = copy.done if event.writes else (copy.sent or copy.done)
    if semaphore is None:
        return ()
    if semaphore not in this.unproved:
        this.unproved[semaphore] = tuple(_waits_on(this, semaphore))
    return this.unproved[semaphore]


def _waits_on(this: OrderPass, semaphore: Semaphore) -> Iterator[Wait]:
    """The last wait of each thread on a semaphore, with what else could have satisfied its waits.

    The time is linear in the events.
    """
    history = this.semaphore(semaphore)
    copies = sum(
        isinstance(each, Started) and semaphore in (each.copy.done, each.copy.sent)
        for each in this.events
    )
    for thread, waits in history.waits.items():
        wait = this.events[waits.numbers[-1]]
        assert isinstance(wait, Waited)
        others = history.others(thread, this.racing)
        signals = tuple(dict.fromkeys(_signal_of(this, increment) for increment in others))
        if signals:
            yield Wait(
                owner=this.owners[thread],
                on=semaphore.name,
                needed=wait.amount,
                had=wait.amount,
                unit="bytes" if semaphore.kind == "dma" else "",
                line=wait.line,
                program=wait.program,
                signals=signals,
                copies=copies,
            )


def _signal_of(this: OrderPass, increment: Increment) -> Signal:
    event = increment.event
    line, program = (
        (event.copy.line, event.copy.program)
        if isinstance(event, Started)
        else (event.line, event.program)
    )
    started = isinstance(event, Started)
    step, steps = _steps_of(this)[event.copy] if started else (0, 0)
    return Signal(
        owner=this.owners[increment.thread],
        amount=increment.amount,
        line=line,
        program=program,
        copy=increment.copy is not None,
        step=step,
        steps=steps,
    )
