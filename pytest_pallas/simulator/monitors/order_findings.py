"""What is out of order, as findings: accesses, the waits that do not order them, and a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_pallas.findings import Access, Finding, Signal, Wait
from pytest_pallas.simulator.concurrency.recording import (
    END_OF_BLOCK,
    Acquired,
    Asynchronous,
    Reached,
    Started,
    Touched,
    Waited,
)
from pytest_pallas.simulator.monitors.accesses import SideInFlight, index_of
from pytest_pallas.simulator.monitors.increments import Increment
from pytest_pallas.simulator.monitors.passes import OrderPass

if TYPE_CHECKING:
    from pytest_pallas.simulator.concurrency.transfers import Copy, Semaphore


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
