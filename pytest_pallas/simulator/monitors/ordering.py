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

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_pallas.findings import Access, Finding, Owner, Signal, Wait
from pytest_pallas.simulator.concurrency.recording import (
    END_OF_BLOCK,
    Acquired,
    Asynchronous,
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
from pytest_pallas.simulator.monitors.accesses import Flight, Past, index_of, place_of
from pytest_pallas.simulator.monitors.passes import Pass, check, locate_all, note, tick, users_of
from pytest_pallas.simulator.monitors.promises import Promise, Rivals, amount_of, size_of
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
    this = Pass(events, owners, {}, users, located)
    _go(this)
    for _ in range(_PASSES):
        given = this.given
        if all(size_of(more) <= size_of(given.get(n, ())) for n, more in this.rivals.items()):
            break
        this = Pass(events, owners, this.rivals, users, located)
        _go(this)
    find_overruns(this)
    return [_finding(this, each, seed) for each in this.found]


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


def _go(this: Pass) -> None:
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


def _start(this: Pass, event: Started) -> None:
    copy, thread = event.copy, event.thread
    clock = tick(this, thread)
    for semaphore in copy.semaphores:
        _promise(this, semaphore, Promise(thread, copy.size, clock, event, copy))
    flights = this.flights[copy] = []
    for region, writes, place, bounds in this.located[event]:
        adds = writes and copy.adds
        flight = Flight(copy, region, writes, adds, thread, clock, bounds, place=place)
        memory = this.memory(place)
        check(this, memory, flight, bounds, clock, thread)
        memory.begin(flight)
        flights.append(flight)


def _signal(this: Pass, event: Signalled) -> None:
    clock = tick(this, event.thread)
    promise = Promise(event.thread, event.amount, clock, event)
    _promise(this, event.semaphore, promise)


def _promise(this: Pass, semaphore: Semaphore, promise: Promise) -> None:
    this.count(semaphore).promise(promise, this.order)


def _wait(this: Pass, number: int, event: Waited) -> None:
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


def _done(this: Pass, copy: Copy, semaphore: Semaphore, thread: int, time: int) -> None:
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
            past = Past(thread, time, flight.region, flight.writes, flight.adds, flight)
            memory.ordered.add(flight.bounds, past)
            flight.past = past


def _synchronize(this: Pass, event: Synchronized) -> None:
    rows = list(event.threads)
    this.core[rows] = np.max([known_of_core(this, thread) for thread in rows], axis=0)
    this.clocks[rows] = this.clocks[rows].max(axis=0)
    this.fenced[rows] = this.fenced[rows].max(axis=0)
    for thread in rows:
        settle(this, thread)
    this.settled[rows] = this.settled[rows].max(axis=0)
    for thread in rows:
        this.clocks[thread, thread] += 1


def _touch(this: Pass, event: Touched) -> None:
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
        past = Past(thread, time, region, event.writes, event.adds, event)
        memory.keep(key, past, bounds)


def _reach(this: Pass, event: Entered | Reached | Any) -> None:
    if isinstance(event, Entered):
        this.entered[event.key] = (event.thread, int(this.clocks[event.thread, event.thread]))
        tick(this, event.thread)
        return
    home = this.entered.get(event.key)
    if home is None or this.clocks[event.thread, home[0]] < home[1]:
        note(this, "entry", event, home)


_HANDLERS: dict[type, Callable[[Pass, Any], None]] = {
    Touched: _touch,
    Started: _start,
    Signalled: _signal,
    Synchronized: _synchronize,
    Entered: _reach,
    Reached: _reach,
}


def _finding(this: Pass, found: tuple[str, Any, Any], seed: int) -> Finding:
    kind, first, second = found
    if kind == "entry":
        return _entry(this, first, seed)
    if kind == "phase":
        return _overrun(this, first, seed)
    later, earlier = _access(this, first), _access(this, second)
    waits = tuple(_unproved(this, second))
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
    if kind == "core":
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
    if not (isinstance(first, Flight) and isinstance(second, Flight)):
        return False
    return first.chain is not None and first.chain == second.chain and first.thread == second.thread


def _overrun(this: Pass, event: Acquired, seed: int) -> Finding:
    name = event.token.name
    return Finding(
        kind="phase",
        message=(
            f"nothing keeps {name} from completing another phase before "
            f"{this.owners[event.thread]} has waited for this one: a wait tells only odd phases "
            "from even ones"
        ),
        kernel=event.kernel,
        program=event.program,
        line=event.line,
        ref=name,
        seed=seed,
    )


def _entry(this: Pass, event: Reached, seed: int) -> Finding:
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


def _access(this: Pass, event: Touched | Flight | Access) -> Access:
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
    )


def _unproved(this: Pass, event: Any) -> Iterator[Wait]:
    """The last waits on the semaphores of a copy, with what else could have satisfied them."""
    if not isinstance(event, Flight):
        return
    copy = event.origin
    if isinstance(copy, Asynchronous):
        return
    semaphore = copy.done if event.writes else (copy.sent or copy.done)
    if semaphore is None:
        return
    count = this.count(semaphore)
    for thread, (_, numbers) in count.waits.items():
        wait = this.events[numbers[-1]]
        assert isinstance(wait, Waited)
        rivals = [
            promise
            for number in numbers
            for promise in (*count.left(number), *_promises(this.rivals.get(number, ())))
        ]
        signals = tuple(dict.fromkeys(_signal_of(this, rival) for rival in rivals))
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
            )


def _promises(rivals: Rivals) -> Iterator[Promise]:
    for line, start, end in rivals:
        yield from line.promises[start:end]


def _signal_of(this: Pass, promise: Promise) -> Signal:
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
