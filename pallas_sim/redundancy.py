"""``synchronization``: which waits, signals, barriers and fences a kernel needs.

A run is recorded and proved. Then each group of sites that belong together is left out: a signal
and the waits that take it, an arrival and the waits of its barrier, a wait for a copy, a fence.

Where only semaphores and copies of a TPU are concerned, and nothing looks at their counts, the
recorded run without these events is a run of the kernel without these operations. It is proved
again: if no two accesses are in disorder, each order of it computes the same values, so control and
indices are the same, too. All else is run again without these operations.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pallas_sim.chips import Target
from pallas_sim.errors import OptionError, PallasError, first_line
from pallas_sim.exploration.search import Exploration, explore_runs, same_values
from pallas_sim.exploration.witness import Witness
from pallas_sim.findings import Finding, short
from pallas_sim.machine import Limits, Machine
from pallas_sim.order.disorder import disorder
from pallas_sim.platforms import set_platforms
from pallas_sim.recording import Copy, Event, Semaphore, Signalled, Started, Waited
from pallas_sim.simulation import SimulatedCall
from pallas_sim.sites import JoinedSites, SiteLog, SyncSite, groups_of

#: What happens without a group. ``"needed"``: something goes wrong. ``"end"``: only the end of the
#: kernel needs it, which it may stand at. ``"redundant"``: nothing, for this mesh and these inputs.
#: ``"open"``: nothing in the orders that were looked at, and there are others.
Status = Literal["needed", "end", "redundant", "open"]

#: Why a group is open. ``"orders"``: another order of the kernel may do something else (several
#: threads wait on a semaphore, look at a count, or change memory in one step), and not all of them
#: were run. ``"registers"``: registers have their values only after the wait, which the simulator
#: does not model.
OpenReason = Literal["orders", "registers"]

#: From the most serious: a group that is several on another mesh has the first of their statuses.
_STATUSES: Sequence[Status] = ("needed", "open", "end", "redundant")

#: Sites at which the recorded run can be proved again.
_ON_SEMAPHORES = frozenset({"signal", "wait", "copy wait", "send wait"})

#: Findings of copies and counts that are left at the end.
_AT_END = frozenset({"unwaited", "leftover"})

#: Runs of other seeds that are made first, to see a group that is needed.
_SEEDS = 3

#: A run without a group may take so many times the equations of the run with it.
_LONGER = 10


@dataclass(frozen=True, kw_only=True)
class SyncGroup:
    """Sites that belong together, and what happens without them.

    Attributes:
      sites: in the order in which the run came to them.
      on: names of the semaphores or barriers; empty for those that have none.
      count: how often the run came to them, on all devices and threads.
      status: see ``Status``.
      findings: what is wrong without them.
      error: what ended a run without them; "" if none did.
      seed: of a run without them that ends with an error or gives other values; or None.
        ``simulate(fn, ..., seed=, without=sites)`` repeats it.
      witness: an order in which a run without them shows what is wrong, where no seed does; or
        None. ``simulate(fn, ..., witness=, without=sites)`` repeats it.
      reasons: why it is open.
    """

    sites: tuple[SyncSite, ...]
    on: tuple[str, ...] = ()
    count: int = 0
    status: Status
    findings: tuple[Finding, ...] = ()
    error: str = ""
    seed: int | None = None
    witness: Witness | None = None
    reasons: tuple[OpenReason, ...] = ()

    @property
    def effect(self) -> str:
        """What happens without them, in one sentence."""
        if self.status == "end":
            return "only the kernel ends too early: before a copy, or with a count that is left"
        if self.status == "redundant":
            return "nothing, in any order"
        if self.status == "open":
            return "; ".join(_REASONS[reason] for reason in self.reasons)
        if self.findings:
            return _in_short(min(self.findings, key=lambda one: one.kind in _AT_END))
        return self.error or "the results differ"

    @property
    def where(self) -> str:
        """The sites in one line."""
        return place_of(self.sites)

    def __str__(self) -> str:
        """Status, sites, and what happens without them."""
        sites = self.where
        return f"{LABELS[self.status]:<14} {sites}\n{'':14} without: {self.effect}{self.shown_by}"

    @property
    def shown_by(self) -> str:
        """The run that shows it, as the end of a sentence; "" if none does."""
        if self.seed is not None:
            return f" (seed {self.seed} shows it)"
        return "" if self.witness is None else f" (shown by the witness {self.witness})"


#: How many sites of one call of a function are named.
_NAMED = 4


def place_of(sites: Sequence[SyncSite]) -> str:
    """Return sites in one line: those of one call of a function together."""
    calls: dict[str, dict[str, None]] = {}
    for site in sites:
        caller = short(site.callers[0]) if site.callers else ""
        calls.setdefault(caller, {})[str(replace(site, callers=()))] = None
    parts: list[str] = []
    for caller, named in calls.items():
        more = [f"{len(named) - _NAMED} more"] if len(named) > _NAMED else []
        parts.append(", ".join([*list(named)[:_NAMED], *more]))
        parts[-1] += f", called at {caller}" if caller else ""
    return "; ".join(parts)


def _in_short(finding: Finding) -> str:
    """Return a finding in a line, a race with both lines."""
    if finding.kind == "entry" and finding.accesses:
        (access,) = finding.accesses
        reached = f"{access.ref} of device {access.home}"
        return f"{access.owner} may reach {reached} before that has entered the kernel"
    if finding.kind != "race" or len(finding.accesses) != 2:
        return f"{finding.kind}: {finding.message}"
    later, earlier = finding.accesses
    ends = " and ".join(f"{one.kind} at {short(one.line)}" for one in (earlier, later))
    return f"race on {later.ref or 'memory'}: {ends}"


#: The statuses for readers.
LABELS: Mapping[Status, str] = {
    "needed": "needed",
    "end": "at the end",
    "redundant": "redundant",
    "open": "open",
}

#: Waits whose effect on registers is not modelled.
_OF_REGISTERS = frozenset({"load wait"})

_REASONS: Mapping[OpenReason, str] = {
    "orders": "nothing in the orders that were run; others may do something else",
    "registers": "nothing here, but a chip has the values in registers only after it",
}


@dataclass(frozen=True, kw_only=True)
class SynchronizationReport:
    """Which synchronisation a call needs, on one mesh and for its inputs.

    Attributes:
      target: the chip.
      devices: how many took part.
      groups: in the order in which the run came to them.
      together: the redundant groups that can be left out together. They are collected greedily,
        those that run most often first: no other redundant group can be added, and another set may
        be larger.
      proofs: how often a recorded run was proved.
      runs: how often the call was run.
      seconds: that all of it took.
    """

    target: str
    devices: int
    groups: tuple[SyncGroup, ...]
    together: tuple[SyncGroup, ...] = ()
    proofs: int = 0
    runs: int = 0
    seconds: float = 0.0

    def having(self, status: Status) -> tuple[SyncGroup, ...]:
        """Return the groups of a status."""
        return tuple(group for group in self.groups if group.status == status)

    def __str__(self) -> str:
        """A paragraph a group, and what can be left out together."""
        counts = Counter(group.status for group in self.groups)
        shown = ", ".join(f"{counts[s]} {LABELS[s]}" for s in _STATUSES if counts[s])
        shown = shown or "no synchronisation"
        lines = [f"{_devices(self.devices)} ({self.target}): {shown}", *map(str, self.groups)]
        if self.together:
            sites = "; ".join(group.where for group in self.together)
            lines.append(f"can be left out together (chosen greedily): {sites}")
        return "\n".join(lines)


def _devices(count: int) -> str:
    return f"{count} device{'s' * (count != 1)}"


def synchronization(
    fn: Callable[..., Any],
    *args: Any,
    target: str = "",
    schedules: int = 20,
    limits: Limits | None = None,
    read_fences: str = "",
    **options: Any,
) -> SynchronizationReport:
    """Find out which synchronisation ``fn(*args, **options)`` needs.

    Args:
      fn: as of ``simulate``.
      args: likewise.
      target: likewise.
      schedules: the most runs in other orders for each group: to see what the proof says is wrong
        without it, or where it leaves open what there is to prove; 0 makes none.
      limits: of each run.
      read_fences: as of ``simulate``.
      options: as of ``simulate``.

    Returns:
      The groups of sites, each with its status; no groups for a call that does not synchronise.

    Raises:
      OptionError: there is no such target, or ``schedules`` is negative.
      SimulationError: the call cannot be simulated.
      PallasError: the call is wrong as it is, with its findings.
    """
    if schedules < 0:
        raise OptionError(f"schedules is {schedules}: it is a number of runs, or 0 for none")
    begin = time.perf_counter()
    set_platforms()
    call = SimulatedCall.of(fn, args, options)
    chip = call.chip(target)
    analysis = _Analysis(call, chip, schedules, limits or Limits(), read_fences, bool(target))
    first = analysis.first()
    groups = tuple(analysis.judge(sites) for sites in groups_of(first.log))
    return SynchronizationReport(
        target=chip.name,
        devices=max(len(first.machine.devices), 1),
        groups=groups,
        together=analysis.together(groups),
        proofs=analysis.proofs,
        runs=analysis.runs,
        seconds=time.perf_counter() - begin,
    )


# What happens without a group.


@dataclass(eq=False)
class _SyncRun:
    """A run with its machine, its sites, what it gave, and the error that ended it."""

    machine: Machine
    values: Any = None
    error: Exception | None = None

    @property
    def log(self) -> SiteLog:
        """What its sites did."""
        assert self.machine.sites is not None
        return self.machine.sites

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What was found, by the run or by its error."""
        of_error = getattr(self.error, "findings", ())
        return tuple({one.key: one for one in (*self.machine.findings, *of_error)}.values())


@dataclass(eq=False)
class _Analysis:
    """Leaves out sites of a call; see ``synchronization`` for its fields."""

    call: SimulatedCall
    chip: Target
    schedules: int
    limits: Limits
    read_fences: str
    named: bool
    proofs: int = 0
    runs: int = 0
    recorded: _SyncRun = field(init=False)

    def first(self) -> _SyncRun:
        """Run the call as it is.

        Raises:
          Exception: what ends it.
          PallasError: it is wrong.
        """
        self.recorded = self.run(frozenset())
        if self.recorded.error is not None:
            raise self.recorded.error
        if self.recorded.findings:
            raise PallasError.of(*self.recorded.findings)
        steps = self.recorded.machine.steps * _LONGER + 10_000
        self.limits = replace(self.limits, steps=min(self.limits.steps, steps))
        return self.recorded

    def machine(self, without: Collection[SyncSite], seed: int = 0) -> Machine:
        """Return a machine that leaves out some sites."""
        return Machine(
            target=self.chip.name,
            cores=self.chip.cores,
            limits=self.limits,
            seed=seed,
            error_seed=0,
            read_fences=self.read_fences,
            named=self.named,
            sites=SiteLog(frozenset(without), records=not without),
        )

    def run(
        self, without: Collection[SyncSite], seed: int = 0, *, monitored: bool = True
    ) -> _SyncRun:
        """Run the call without some sites, and prove its order if that is asked for."""
        made = _SyncRun(self.machine(without, seed))
        made.machine.monitored = monitored
        self.runs += 1
        try:
            made.values = self.call.run(made.machine, jit=True)
        except Exception as error:
            made.error = error
        gc.collect(1)  # machines and greenlets are cycles
        return made

    def judge(self, sites: tuple[SyncSite, ...]) -> SyncGroup:
        """Return what happens without a group."""
        log = self.recorded.log
        names = dict.fromkeys(name for site in sites for name in log.names[site] if name)
        count = sum(log.count[site] for site in sites)
        group = SyncGroup(sites=sites, on=tuple(names), count=count, status="redundant")
        waits = all(site.what.endswith("wait") for site in sites)
        findings = self.proved_without(sites)
        if findings is None:
            return self._judge_by_run(group, waits=waits)
        if any(finding.kind not in _AT_END for finding in findings):
            return self._shown(replace(group, status="needed", findings=findings))
        if findings:
            return replace(group, status="end" if waits else "needed", findings=findings)
        return self._explored(group, self.recorded)

    def _judge_by_run(self, group: SyncGroup, *, waits: bool) -> SyncGroup:
        made = self.run(group.sites)
        left = made.error is None and all(one.kind in _AT_END for one in made.findings)
        if left and made.findings and waits and not self._differs(made):
            return replace(group, status="end", findings=made.findings)
        if made.error is not None or made.findings:
            error = "" if made.error is None else first_line(made.error)
            group = replace(group, status="needed", findings=made.findings, error=error)
            return replace(group, seed=0) if self._differs(made) else self._shown(group, first=1)
        if self._differs(made):
            return replace(group, status="needed", seed=0)
        return self._explored(group, made)

    def _differs(self, made: _SyncRun) -> bool:
        return made.error is not None or not same_values(made.values, self.recorded.values)

    def _shown(self, group: SyncGroup, first: int = 0) -> SyncGroup:
        """Return a needed group with a run that shows it, if there is one."""
        # Memory that is not there yet is written when it is, and engines see what threads wrote.
        kinds = {finding.kind for finding in group.findings}
        if kinds == {"entry"} or all(site.what == "fence" for site in group.sites):
            return group
        for seed in range(first, _SEEDS if self.schedules else first):
            if self._differs(self.run(group.sites, seed, monitored=False)):
                return replace(group, seed=seed)
        result = self._explore(group) if self.schedules else None
        return group if result is None else replace(group, witness=result.witness)

    def _explored(self, group: SyncGroup, made: _SyncRun) -> SyncGroup:
        """Return a group without which nothing goes wrong in a run; are there other orders?"""
        if any(site.what in _OF_REGISTERS for site in group.sites):
            return replace(group, status="open", reasons=("registers",))
        if not made.machine.choices.matter:
            return group
        open_ = replace(group, status="open", reasons=("orders",))
        result = self._explore(group) if self.schedules else None
        if result is None or result.verdict == "open":
            return open_
        if result.verdict == "proved":
            return group
        error = "" if result.error is None else first_line(result.error)
        facts: dict[str, Any] = {"findings": result.findings, "witness": result.witness}
        return replace(group, status="needed", error=error, **facts)

    def _explore(self, group: SyncGroup) -> Exploration | None:
        """Run the call without a group in other orders; None if that ends it in another way."""

        def new() -> tuple[Machine, Callable[[], Any]]:
            machine = self.machine(group.sites)
            return machine, lambda: self.call.run(machine, jit=True)

        try:
            result = explore_runs(new, self.schedules)
        except Exception:  # of code that gets what nothing has written
            return None
        self.runs += result.runs
        return result

    def together(self, groups: Sequence[SyncGroup]) -> tuple[SyncGroup, ...]:
        """Return redundant groups that can be left out together."""
        chosen: list[SyncGroup] = []
        redundant = [group for group in groups if group.status == "redundant"]
        for group in sorted(redundant, key=lambda group: -group.count):
            sites = [site for other in (*chosen, group) for site in other.sites]
            if not chosen or self._is_right_without(sites):
                chosen.append(group)
        return tuple(group for group in groups if group in chosen)

    def _is_right_without(self, sites: Sequence[SyncSite]) -> bool:
        findings = self.proved_without(sites)
        if findings is not None:
            return not findings
        made = self.run(sites)
        matters = made.machine.choices.matter
        return not made.findings and not matters and not self._differs(made)

    def proved_without(self, sites: Collection[SyncSite]) -> tuple[Finding, ...] | None:
        """Prove the recorded run without the events of sites.

        Returns:
          What is wrong then; None if the call must be run without them to see that.
        """
        if self.chip.platform != "tpu" or not all(site.what in _ON_SEMAPHORES for site in sites):
            return None
        log = self.recorded.log
        left_out = {event for event, site in log.of_event.items() if site in sites}
        balances = _balances(log, left_out)
        if balances is None or any(semaphore.looked for semaphore in balances):
            return None
        unwaited = [
            copy
            for copy in _copies(log)
            if any(balances.get(semaphore) for semaphore in copy.semaphores)
        ]
        findings: list[Finding] = []
        with _reported(unwaited):
            for events, owners, kept in log.proved:
                rest = [event for event in events if event not in left_out]
                if len(rest) < len(events):
                    self.proofs += 1
                    findings += disorder(rest, owners, 0, kept)
        if not findings:
            findings = [_leftover(semaphore, n) for semaphore, n in balances.items() if n]
        return tuple({finding.key: finding for finding in findings}.values())


class _reported:  # noqa: N801
    """Takes the end of copies that nothing waits for as reported: it is the end of the kernel."""

    def __init__(self, copies: Sequence[Copy]) -> None:
        self.copies = [copy for copy in copies if not copy.reported]

    def __enter__(self) -> None:
        for copy in self.copies:
            copy.reported = True

    def __exit__(self, *_: object) -> None:
        for copy in self.copies:
            copy.reported = False


def _copies(log: SiteLog) -> Iterator[Copy]:
    return (event.copy for event in log.events() if isinstance(event, Started))


def _balances(log: SiteLog, left_out: Collection[Event]) -> dict[Semaphore, int] | None:
    """Return how much more each semaphore has at its end without some events.

    Returns:
      By semaphore; None if a wait that stays has too little.
    """
    counts: Counter[Semaphore] = Counter()
    balances: dict[Semaphore, int] = {}
    for event in log.events():
        if event in left_out:
            if isinstance(event, Signalled):
                balances[event.semaphore] = balances.get(event.semaphore, 0) - event.amount
            elif isinstance(event, Waited):
                taken = event.amount if event.takes else 0
                balances[event.semaphore] = balances.get(event.semaphore, 0) + taken
        elif isinstance(event, Signalled):
            counts[event.semaphore] += event.amount
        elif isinstance(event, Started):
            for semaphore in event.copy.semaphores:
                counts[semaphore] += event.copy.size
        elif isinstance(event, Waited):
            if counts[event.semaphore] < event.amount:
                return None
            counts[event.semaphore] -= event.amount if event.takes else 0
    return balances


def _leftover(semaphore: Semaphore, count: int) -> Finding:
    unit = " bytes" if semaphore.kind == "dma" else ""
    message = f"{semaphore.name} ends with {count}{unit} that no wait took"
    return Finding(kind="leftover", message=message, ref=semaphore.name)


# The same call on meshes of several sizes.


@dataclass(frozen=True, kw_only=True)
class SyncThreshold:
    """A group on meshes of several sizes.

    Attributes:
      sites: of the group, on all of the meshes.
      statuses: by number of devices, from the fewest; not those without the group.
      needed_from: the fewest devices from which on it is needed on all of the meshes; None if it is
        not needed on the largest one.
    """

    sites: tuple[SyncSite, ...]
    statuses: tuple[tuple[int, Status], ...]
    needed_from: int | None

    def __str__(self) -> str:
        """``needed from 6 devices on: signal at kernel.py:41``."""
        if self.needed_from is not None:
            return f"needed from {_devices(self.needed_from)} on: {self.where}"
        devices, status = self.statuses[-1]
        return f"{LABELS[status]} on {_devices(devices)}: {self.where}"

    @property
    def where(self) -> str:
        """The sites in one line."""
        return place_of(self.sites)


def thresholds(reports: Sequence[SynchronizationReport]) -> tuple[SyncThreshold, ...]:
    """Return from how many devices on each group is needed.

    Args:
      reports: of the same function on meshes of different sizes. Several of one size count as the
        most serious of them.
    """
    groups = [group for report in reports for group in report.groups]
    joined = JoinedSites(list(dict.fromkeys(site for group in groups for site in group.sites)))
    for group in groups:
        joined.join(*group.sites)
    by_size = sorted(reports, key=lambda report: report.devices)
    made: list[SyncThreshold] = []
    for sites in joined.groups():
        statuses: dict[int, Status] = {}
        for report in by_size:
            held: list[Status] = [
                g.status for g in report.groups if not set(sites).isdisjoint(g.sites)
            ]
            if held:
                before = statuses.get(report.devices, "redundant")
                worst: Status = min((*held, before), key=_STATUSES.index)
                statuses[report.devices] = worst
        needed: int | None = None
        for devices, status in reversed(statuses.items()):
            if status != "needed":
                break
            needed = devices
        made.append(
            SyncThreshold(sites=sites, statuses=tuple(statuses.items()), needed_from=needed)
        )
    return tuple(made)
