"""What is out of order in a recorded run, as findings: ``report_disorder`` is the way in.

``happens_before`` proves which accesses are ordered, and gives what is not. A finding says which
two accesses these are, which waits do not order them and why, and what to do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from pallas_sim.dtypes import Array
from pallas_sim.findings import Access, Finding, Kind, Owner, Signal, Wait
from pallas_sim.machine import Machine
from pallas_sim.order.accesses import SideInFlight, index_of, whole_of
from pallas_sim.order.happens_before import find_overruns, happens_before
from pallas_sim.order.races import OrderPass
from pallas_sim.order.semaphores import Increment
from pallas_sim.recording import (
    END_OF_BLOCK,
    Acquired,
    Asynchronous,
    Copy,
    Event,
    ReachedDevice,
    Recording,
    Semaphore,
    Started,
    Synchronized,
    ThreadEvent,
    Touched,
    Waited,
)
from pallas_sim.tracing import collecting_later


def report_disorder(machine: Machine, recording: Recording) -> None:
    """Report what nothing orders in a recording of some threads, which is empty after that."""
    events, recording.events = recording.events, []
    if not events or not machine.monitored:
        return
    with collecting_later():  # the proof makes as many objects as the run has events
        kept = {id(array): kept for array, kept in machine.dropped()}
        owners = _renumber(events, list(machine.owners))
        if machine.sites is not None and machine.sites.records:
            machine.sites.proved.append((events, owners, kept))
        last = happens_before(events, owners, kept)
        findings = _findings(last, machine.seed)
    several = (isinstance(shared, Semaphore) and len(by) > 1 for shared, by in last.users.items())
    if last.ambiguous or any(several):
        machine.choices.matter = True
    for finding in findings:
        machine.report(finding)


def disorder(
    events: Sequence[Event],
    owners: Sequence[Owner],
    seed: int,
    kept: Mapping[int, Array] | None = None,
) -> list[Finding]:
    """Find races, accesses to devices that are not known to be there, and phases that are missed.

    Args:
      events: of a run.
      owners: of its threads, by number. Clocks are quadratic in the number of threads, so they are
        those that the events have.
      seed: of the run.
      kept: which elements of an output that its kernel only writes reach something, by allocation.
    """
    return _findings(happens_before(events, owners, kept), seed)


def _findings(last: OrderPass, seed: int) -> list[Finding]:
    """Return the violations of a run as findings, one of each key."""
    find_overruns(last)
    report = _Report(last, seed)
    findings: dict[Any, Finding] = {}
    for kind, event, before in last.violations:
        finding = _finding(report, kind, event, before)
        if finding.key not in findings:
            waits = _unproved(report, event, before)
            findings[finding.key] = replace(finding, waits=waits)
    return list(findings.values())


def _renumber(events: Sequence[Event], owners: Sequence[Owner]) -> list[Owner]:
    """Number the threads of these events anew, and return them: a run may have many others.

    Clocks are quadratic in the number of threads, and one kernel has few of those of a run.
    """
    numbers: dict[int, int] = {}

    def new(number: int) -> int:
        return numbers.setdefault(number, len(numbers))

    for event in events:
        if isinstance(event, Synchronized):
            event.threads = tuple(map(new, event.threads))
        elif isinstance(event, ThreadEvent):
            event.thread = new(event.thread)
    return [owners[number] for number in numbers]


@dataclass(eq=False)
class _Report:
    """What the findings of a run are made of.

    Attributes:
      last: the last pass over the events.
      seed: of the run.
      unproved: by semaphore, the last waits on it, and what else can have satisfied them.
    """

    last: OrderPass
    seed: int
    unproved: dict[Semaphore, tuple[Wait, ...]] = field(default_factory=dict)

    @cached_property
    def steps(self) -> dict[Copy, tuple[int, int]]:
        """For each copy, which it is of those that its thread started at its line, and how many."""
        of_line: dict[Any, list[Copy]] = {}
        for event in self.last.events:
            if isinstance(event, Started):
                of_line.setdefault((event.copy.owner, event.copy.line), []).append(event.copy)
        return {
            copy: (number, len(copies))
            for copies in of_line.values()
            for number, copy in enumerate(copies, 1)
        }


def _finding(report: _Report, kind: str, event: Any, before: Any) -> Finding:
    """Make a finding of one of ``OrderPass.violations``, without its waits."""
    if kind == "entry":
        return _entry(report, event)
    if kind == "phase":
        return _overrun(report, event)
    later, earlier = _accesses(report, event, before)
    message = _race(kind, later, earlier, chained=_are_chained(event, before))
    origin = event if isinstance(event, Touched) else event.origin
    return _finding_at(report, "race", message, origin, later.ref, accesses=(later, earlier))


def _finding_at(
    report: _Report, kind: Kind, message: str, event: Any, ref: str, **facts: Any
) -> Finding:
    """Make a finding about the place of an event: the kernel, its program and the line."""
    where: dict[str, Any] = {"kernel": event.kernel, "program": event.program, "line": event.line}
    return Finding(kind=kind, message=message, ref=ref, seed=report.seed, **where, **facts)


def _race(kind: str, later: Access, earlier: Access, *, chained: bool) -> str:
    """Return the sentence of a race: where, what is not ordered, and the remedy."""
    on = f"race on {later.ref or 'memory'}"
    of_tensor_core = f"race on {later.ref or 'tensor memory'}"
    if kind == "tensor":
        return (
            f"{of_tensor_core}: what orders two accesses does not order tensor memory; make the "
            "barrier with orders_tensor_core=True"
        )
    if chained:
        return (
            f"{of_tensor_core}: the tensor core need not keep the order of these two; wait for the "
            "first one between, with tcgen05_commit_arrive"
        )
    if kind == "early":
        return (
            f"{on}: the kernel may begin before the one ahead of it has ended, and nothing orders "
            "two accesses of the two; call plgpu.griddepcontrol_wait() before"
        )
    if kind == "refill":
        return (
            f"{on}: {later.by} may overwrite what a thread has not read yet, because no fence "
            "comes between them, and barriers do not order the asynchronous proxy with reads of "
            "threads; call plgpu.commit_smem() after the read, before the thread arrives or starts "
            "the copy. read_fences='none' (--pallas-read-fences=none) takes it to be right"
        )
    if kind == "fence" and earlier.kind == "read":
        return (
            f"{on}: {later.by} may overwrite what some lanes of the thread that starts it still "
            "have to read; call plgpu.commit_smem() between"
        )
    if kind == "fence":
        return f"{on}: {later.by} may not see what a thread wrote; call plgpu.commit_smem() between"
    if END_OF_BLOCK in (later.line, earlier.line):
        return (
            f"{on}: a block of the cluster may end before another one accesses its memory; let "
            "them wait for each other"
        )
    return f"{on}: nothing orders two accesses"


def _are_chained(one: Any, other: Any) -> bool:
    """Return whether two operations are of one unit, which keeps the order of others."""
    if not (isinstance(one, SideInFlight) and isinstance(other, SideInFlight)):
        return False
    return one.chain is not None and one.chain == other.chain and one.thread == other.thread


def _overrun(report: _Report, event: Acquired) -> Finding:
    name = event.token.name
    message = (
        f"nothing keeps {name} from completing another phase before "
        f"{report.last.owners[event.thread]} has waited for this one: a wait distinguishes "
        "only odd phases from even ones"
    )
    return _finding_at(report, "phase", message, event, name)


def _entry(report: _Report, event: ReachedDevice) -> Finding:
    owner, device = report.last.owners[event.thread], event.key[0]
    message = (
        f"{owner} {event.how} {event.name} of device {device}, and nothing orders that with "
        f"the point at which device {device} has entered the kernel; {event.remedy}"
    )
    accesses = (event.access(owner),)
    return _finding_at(report, "entry", message, event, event.name, accesses=accesses)


def _accesses(
    report: _Report, event: Touched | SideInFlight, before: Touched | SideInFlight | Access
) -> tuple[Access, Access]:
    """Return two accesses that overlap; their boxes are those of one reference."""
    later = _access(report, event)
    if isinstance(before, Access):
        return replace(later, index=index_of(event.region)), before
    earlier = _access(report, before)
    whole = whole_of((event.region, later.ref), (before.region, earlier.ref))
    first, second = (index_of(access.region, whole) for access in (event, before))
    return replace(later, index=first), replace(earlier, index=second)


def _access(report: _Report, event: Touched | SideInFlight) -> Access:
    origin = event if isinstance(event, Touched) else event.origin
    common: dict[str, Any] = {
        "kind": "write" if event.writes else "read",
        "owner": report.last.owners[event.thread],
        "line": origin.line,
        "program": origin.program,
    }
    if isinstance(event, Touched):
        return Access(ref=event.name, home=event.home, **common)
    common["clock"] = int(event.clock[event.thread])
    if isinstance(origin, Asynchronous):
        assert event.side is not None
        return Access(ref=event.side.name, home=event.side.home, by=origin.what, **common)
    assert isinstance(origin, Copy)
    name, home = origin.names[event.writes], origin.home if event.writes else None
    step, steps = report.steps[origin]
    return Access(ref=name, home=home, copy=True, step=step, steps=steps, **common)


def _unproved(report: _Report, later: Any, event: Any) -> tuple[Wait, ...]:
    """Return the last waits on the semaphores of a copy, and what else could satisfy them.

    They name the number of copies only if the run has a wait for this one before the later access:
    without one, a semaphore of its own would not help.
    """
    if not isinstance(event, SideInFlight) or isinstance(event.origin, Asynchronous):
        return ()
    copy = event.origin
    semaphore = copy.done if event.writes else (copy.sent or copy.done)
    if semaphore is None:
        return ()
    if semaphore not in report.unproved:
        report.unproved[semaphore] = tuple(_waits_on(report, semaphore))
    waits = report.unproved[semaphore]
    if _is_waited_for(report, copy, semaphore, later):
        return waits
    return tuple(replace(wait, copies=0) for wait in waits)


def _is_waited_for(report: _Report, copy: Copy, semaphore: Semaphore, later: Any) -> bool:
    """Return whether waits before an access take what a semaphore gets up to the end of a copy.

    That is so if each wait is meant for the next increment, in the order of the run.
    """
    increments = sorted(
        (
            (order, increment)
            for of_thread in report.last.semaphores[semaphore].increments.values()
            for order, increment in zip(of_thread.orders, of_thread.increments, strict=True)
        ),
        key=lambda pair: pair[0],
    )
    needed = 0
    for _, increment in increments:
        needed += increment.amount
        if increment.copy is copy:
            break
    taken = 0
    for event in report.last.events:
        if event is later or (isinstance(event, Started) and event.copy is _origin(later)):
            break
        if isinstance(event, Waited) and event.semaphore is semaphore and event.takes:
            taken += event.amount
    return taken >= needed


def _origin(event: Any) -> Any:
    return getattr(event, "origin", None)


def _waits_on(report: _Report, semaphore: Semaphore) -> Iterator[Wait]:
    """Yield each thread's last wait on a semaphore, with what else could have satisfied its waits.

    The time is linear in the events.
    """
    last = report.last
    history = last.semaphores[semaphore]
    copies = sum(
        isinstance(event, Started) and semaphore in (event.copy.done, event.copy.sent)
        for event in last.events
    )
    for thread, waits in history.waits.items():
        wait = last.events[waits.numbers[-1]]
        assert isinstance(wait, Waited)
        others = history.others(thread, last.racing)
        signals = tuple(dict.fromkeys(_signal_of(report, increment) for increment in others))
        if signals:
            yield Wait(
                owner=last.owners[thread],
                on=semaphore.name,
                needed=wait.amount,
                had=wait.amount,
                unit="bytes" if semaphore.kind == "dma" else "",
                line=wait.line,
                program=wait.program,
                signals=signals,
                copies=copies,
            )


def _signal_of(report: _Report, increment: Increment) -> Signal:
    event, copy = increment.event, increment.copy
    origin = event.copy if isinstance(event, Started) else event
    step, steps = (0, 0) if copy is None else report.steps[copy]
    return Signal(
        owner=report.last.owners[increment.thread],
        amount=increment.amount,
        line=origin.line,
        program=origin.program,
        copy=copy is not None,
        step=step,
        steps=steps,
    )
