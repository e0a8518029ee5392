"""``explore``: run a call in every order of what its threads and copies do to semaphores.

A run is proved in all orders of its own events (``order``). What the proof cannot decide is which
events there are: where several threads wait on a semaphore, look at a count (``semaphore_read``),
or read and change memory in one step, another order may lead to other events. Here each such order
is run, once for all that differ only in steps that commute.

The unit is a step: what a thread does from one stop to the next, with one operation on a semaphore
at its beginning, or one event of a copy. Adding to a semaphore commutes with all but a look, so a
kernel in which each semaphore has one waiter and nobody looks has a single class of orders. Races
between steps of a run are found by vector clocks, and tried the other way round, one after the
other: dynamic partial order reduction (Flanagan and Godefroid, POPL 2005) with source sets and
sleep sets (Abdulla, Aronis, Jonsson and Sagonas, "Optimal dynamic partial order reduction", POPL
2014).
Nothing is saved and restored: each run begins anew and repeats the choices of a run before. A race
is reversed by the shortest way to its later step, as wakeup trees of that paper do. Rounds of loops
that only look are no steps: see ``Explorer.enter_round``.

Where the proof of order finds a race, accesses to memory are steps' operations, too. First each
race is reversed directly, by one run; only if none of these shows it, all orders are searched.
Devices of a ring or a full mesh have the same race each. To look for one run that shows it, one
pair of accesses at the same lines stands for all: that needs no assumption, as such a run is its
own proof. What no run shows is searched on all devices.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

import numpy as np

from pallas_sim.errors import OptionError, PallasError, SimulationError
from pallas_sim.exploration.explorer import Explorer, Redundant, Unrepeatable
from pallas_sim.exploration.orders import (
    DirectedOrder,
    ReducedOrder,
    ReplayedOrder,
)
from pallas_sim.exploration.past import (
    Actor,
    MemoryAccess,
    Past,
    Reason,
    reasons_of,
)
from pallas_sim.exploration.reduction import Search
from pallas_sim.exploration.witness import Witness
from pallas_sim.findings import Finding
from pallas_sim.inspector import same_bits
from pallas_sim.machine import Limits, Machine
from pallas_sim.platforms import set_platforms
from pallas_sim.simulation import SimulatedCall
from pallas_sim.tracing import collecting_later

#: Whether every order of a call computes the same and is free of findings (``proved``), one is not
#: (``wrong``), or some were not run (``open``).
Verdict = Literal["proved", "wrong", "open"]


@dataclass(frozen=True, kw_only=True)
class Exploration:
    """What the runs of a call in different orders gave.

    Attributes:
      verdict: see ``Verdict``.
      runs: how many were made, those included that were given up as redundant.
      classes: how many of them differ in the order of steps that do not commute.
      left: how many classes are known and were not run; 0 unless the verdict is open.
      reasons: why there is more than one order; empty if one run is all.
      findings: of the run that is wrong.
      error: what ended that run, or None.
      differs: whether it is wrong because it gave other values than the first one.
      confirmed: whether a run shows what is wrong. If not, the proof of order alone says so.
      witness: the order of that run, with few switches; None unless confirmed.
      story: that order in lines, from where it leaves the plain one.
      stopped: a sentence on why not every order was run; "" if all were, or one is wrong.
    """

    verdict: Verdict
    runs: int
    classes: int
    left: int = 0
    reasons: tuple[Reason, ...] = ()
    findings: tuple[Finding, ...] = ()
    error: Exception | None = None
    differs: bool = False
    confirmed: bool = False
    witness: Witness | None = None
    story: tuple[str, ...] = ()
    stopped: str = ""


def explore(
    fn: Callable[..., Any],
    *args: Any,
    target: str = "",
    schedules: int = 100,
    limits: Limits | None = None,
    **options: Any,
) -> Exploration:
    """Run ``fn(*args, **options)`` in every order in which its threads and copies may go on.

    Args:
      fn: as of ``simulate``.
      args: likewise.
      target: likewise.
      schedules: the most runs that look for what is wrong.
      limits: of each run.
      options: as of ``simulate``.

    Raises:
      OptionError: there is no such target, or ``schedules`` is less than 1.
      SimulationError: the call cannot be simulated.
    """
    require_schedules(schedules)
    call = SimulatedCall.of(fn, args, options)
    set_platforms()
    chip = call.chip(target)

    def new() -> tuple[Machine, Callable[[], Any]]:
        machine = Machine(target=chip.name, cores=chip.cores, limits=limits or Limits())
        return machine, lambda: call.run(machine, jit=True)

    return explore_runs(new, schedules)


def require_schedules(schedules: int) -> None:
    """Reject a number of runs that is none.

    Raises:
      OptionError: it is less than 1.
    """
    if schedules < 1:
        raise OptionError(f"schedules is {schedules}: at least one run is needed")


def order_matters(machine: Machine) -> bool:
    """Return whether a run that has ended may go otherwise in another order.

    If not, its proof of order holds for all: each semaphore has one thread that waits for it,
    nothing looks at counts, and no access is in a race.
    """
    return machine.choices.matter or any(
        finding.kind in _PROVED or finding.kind == "deadlock" for finding in machine.findings
    )


#: Makes a machine, and a function that runs the call on it and returns what it gave.
type NewRun = Callable[[], tuple[Machine, Callable[[], Any]]]


def explore_runs(new: NewRun, schedules: int) -> Exploration:
    """Make runs until all orders were had, one is wrong, or there were ``schedules``."""
    runs = _Runs(new, schedules)
    with collecting_later():
        try:
            return _search(runs)
        except Unrepeatable:
            return runs.exploration("open", stopped=_UNREPEATABLE.format(runs=runs.count))


_UNREPEATABLE = (
    "run {runs} did not repeat the choices of a run before, so its order is not all that decides "
    "what the kernel does: a callback or the time does"
)


def _search(runs: _Runs) -> Exploration:
    orders = Search()
    for outcome in _walk(runs, orders, memory=False):
        runs.classes += 1
        fault = runs.fault_of(outcome)
        if fault:
            return _witnessed(runs, outcome, fault)
        if outcome.findings:
            return _shown(runs, outcome)
    return runs.unless_left(orders)


def _shown(runs: _Runs, outcome: _Outcome) -> Exploration:
    """Look for a run that shows what the proof of order says of another one."""
    runs.findings = outcome.findings
    reversal = _reversed(runs, outcome)
    if reversal is not None and reversal.fault:
        return _witnessed(runs, reversal.outcome, reversal.fault)
    orders, feasible, seen = Search(), False, set[MemoryAccess]()
    denied: set[tuple[str, ...]] = set()  # lines of accesses that only waits keep in order
    runs.classes = 0
    for outcome in _walk(runs, orders, memory=True):
        runs.classes += 1
        fault = runs.fault_of(outcome)
        if fault:
            return _witnessed(runs, outcome, fault)
        past = outcome.explorer.past
        races = list(_memory_races(past))
        feasible = feasible or not all(past.is_denied(*race) for race in races)
        for one, other in races:
            denied.update(reason.lines for reason in reasons_of(past.steps[one], past.steps[other]))
        feasible = feasible or past.takes_parts
        seen.update(access for step in past.steps for access in step.accesses)
    only_races = all(finding.kind == "race" for finding in runs.findings)
    if runs.platform == "tpu":
        known = all(_is_among(seen, finding) for finding in runs.findings)
    else:
        known = all(_is_kept_in_order(denied, finding) for finding in runs.findings)
    if not orders.left and not feasible and only_races and known:
        runs.findings = ()
        return runs.exploration("proved")
    if reversal is not None:
        explorer = reversal.outcome.explorer
        facts = {"confirmed": True, "witness": explorer.witness, "story": explorer.story}
        return runs.exploration("wrong", **facts)
    return runs.exploration("wrong")


def _is_among(seen: Iterable[MemoryAccess], finding: Finding) -> bool:
    """Return whether both accesses of a race are among those of steps, so that it may be denied."""
    if len(finding.accesses) != 2:
        return False
    one, other = ([a for a in seen if a.where[1] == access.line] for access in finding.accesses)
    return any(first.conflicts(second) for first in one for second in other)


def _is_kept_in_order(denied: Collection[tuple[str, ...]], finding: Finding) -> bool:
    """Return whether waits alone decide on a race on a GPU: of plain accesses of two threads.

    What fences order, or a barrier's tensor memory, no order of steps can show.
    """
    lines = tuple(sorted({access.line for access in finding.accesses}))
    plain = all(not access.copy and not access.by for access in finding.accesses)
    return plain and lines in denied


@dataclass(frozen=True)
class _Fault:
    """What a run shows to be wrong.

    Attributes:
      error: the type of the error that ended it, and where; () without one.
      differs: whether it gave other values than the first run.
      shown: its findings that no other run has to confirm.
    """

    error: tuple[Any, ...] = ()
    differs: bool = False
    shown: frozenset[Any] = frozenset()

    def __bool__(self) -> bool:
        """Whether anything is wrong."""
        return bool(self.error or self.differs or self.shown)

    def is_in(self, other: _Fault) -> bool:
        """Return whether another run shows it, too."""
        if self.error:
            return self.error == other.error
        return other.differs if self.differs else self.shown <= other.shown


@dataclass(frozen=True)
class _Outcome:
    """What a run gave: values, findings, the error that ended it, and its choices."""

    values: Any
    findings: tuple[Finding, ...]
    error: Exception | None
    explorer: Explorer


#: Findings of the proof of order: about other runs of the same events.
_PROVED = frozenset({"race", "entry", "phase"})


@dataclass(eq=False)
class _Runs:
    """The runs of a call.

    Attributes:
      new: makes one.
      most: may be made to look for what is wrong.
      count: how many were made for that.
      classes: see ``Exploration``.
      first: what the first one gave.
      findings: of the proof of order, of the run that is wrong.
      reasons: see ``Exploration``.
      platform: of the chip.
    """

    new: NewRun
    most: int
    count: int = 0
    classes: int = 0
    first: _Outcome | None = None
    findings: tuple[Finding, ...] = ()
    reasons: set[Reason] = field(default_factory=set[Reason])
    platform: str = ""

    def make(
        self, choices: Callable[[Machine], Explorer], *, monitored: bool = True
    ) -> _Outcome | None:
        """Make a run; None if it was given up as redundant."""
        machine, begin = self.new()
        self.platform = machine.platform
        machine.choices = explorer = choices(machine)
        machine.monitored = machine.monitored and monitored
        values = error = None
        try:
            values = begin()
        except PallasError as raised:
            if self.first is None and isinstance(raised, SimulationError):
                raise
            error = raised
        except Redundant:
            return None
        finally:
            explorer.end()
            gc.collect(0)  # machines and greenlets are cycles
        outcome = _Outcome(values, tuple(machine.findings), error, explorer)
        self.first = outcome if self.first is None else self.first
        return outcome

    def learn(self, explorer: Explorer) -> None:
        """Take note of why the order of steps matters."""
        past = explorer.past
        self.reasons.update(past.roundings())
        for one, other in past.races:
            self.reasons.update(reasons_of(past.steps[one], past.steps[other]))

    def fault_of(self, outcome: _Outcome) -> _Fault:
        """Return what a run shows to be wrong."""
        first, error = self.first, outcome.error
        assert first is not None
        if error is not None:
            # The proof of order does not come with each run.
            findings = [
                f for f in getattr(error, "findings", ()) if f.kind not in ("race", "entry")
            ]
            kinds = dict.fromkeys((finding.kind, finding.line) for finding in findings)
            return _Fault((type(error), getattr(error, "line", ""), *kinds))
        rounds = any(any(one.explorer.past.roundings()) for one in (first, outcome))
        same = first.error is not None or same_values(first.values, outcome.values, rounds=rounds)
        known = outcome.explorer.machine.shown
        shown = [f.key for f in outcome.findings if f.kind not in _PROVED or f.key in known]
        return _Fault((), not same, frozenset(shown))

    def exploration(self, verdict: Verdict, **facts: Any) -> Exploration:
        """Return the result."""
        common: dict[str, Any] = {"runs": self.count, "classes": self.classes}
        common |= {"reasons": tuple(sorted(self.reasons)), "findings": self.findings}
        return Exploration(verdict=verdict, **{**common, **facts})

    def unless_left(self, orders: Search) -> Exploration:
        """Return the result of runs none of which is wrong."""
        if not orders.left and self.classes:
            return self.exploration("proved")
        left = orders.known
        stopped = (
            f"{self.count} runs had {self.classes} classes of orders, and {left} more are known, "
            "which may have others behind them"
        )
        return self.exploration("open", left=left, stopped=stopped)


def _walk(runs: _Runs, orders: Search, *, memory: bool) -> Iterator[_Outcome]:
    """Yield what a run of each class of orders gave, while there are runs left to be made."""
    while orders.left and runs.count < runs.most:
        explorers: list[ReducedOrder] = []

        def choices(machine: Machine) -> Explorer:
            facts: Any = {"memory": memory, "impatient": orders.impatient}
            explorers.append(ReducedOrder(machine=machine, nodes=orders.nodes, **facts))  # noqa: B023
            return explorers[0]  # noqa: B023

        outcome = runs.make(choices, monitored=not memory)
        runs.count += 1
        if outcome is None and explorers[0].machine.findings:
            witness = explorers[0].witness  # what it has shown so far need not be shown again
            outcome = runs.make(lambda machine: ReplayedOrder(machine=machine, replayed=witness))  # noqa: B023
            runs.count += 1
        before = orders.anew
        orders.learn(explorers[0])
        runs.learn(explorers[0])
        if outcome is not None:
            yield outcome
        if orders.anew > before:
            runs.classes = 0


def same_values(one: Any, other: Any, *, rounds: bool = False) -> bool:
    """Return whether two runs gave the same bits, or values that differ in rounding only.

    Args:
      one: pytree of arrays.
      other: likewise.
      rounds: whether copies add floating-point numbers, in an order that is none of the choices.
    """
    import jax

    alike = _alike if rounds else same_bits
    return all(map(alike, jax.tree.leaves(one), jax.tree.leaves(other)))


def _alike(one: Any, other: Any) -> bool:
    """Return whether two arrays differ by what the order of some sums may change, or not at all."""
    if same_bits(one, other) or one.dtype.kind not in "fcV":
        return same_bits(one, other)
    import ml_dtypes

    kind = np.complex128 if one.dtype.kind == "c" else np.float64
    wide, also = one.astype(kind), other.astype(kind)
    scale = np.max(np.abs(wide), initial=0, where=np.isfinite(wide))
    most = _ROUNDED * float(ml_dtypes.finfo(one.dtype).eps) * scale
    return np.allclose(wide, also, rtol=0, atol=most, equal_nan=True)


#: By how many units in the last place of the largest value sums in another order may differ.
_ROUNDED = 64


# A run that shows a race, and one with few switches.


@dataclass(frozen=True)
class _Reversal:
    """A run in which two accesses come in the other order, and what it shows to be wrong."""

    outcome: _Outcome
    fault: _Fault


#: How many races of a run are reversed directly, before all orders are searched.
_REVERSED = 12


def _reversed(runs: _Runs, outcome: _Outcome) -> _Reversal | None:
    """Return a run in which a race goes the other way round; one that shows it, if there is one.

    Who comes first is held back until the other one has come. Of races at the same lines, as
    symmetric devices have, only the first and last are reversed.
    """
    actors = [step.actor for step in outcome.explorer.steps]
    stops = runs.platform == "gpu"  # before accesses to memory, so that there are more steps

    def directed(**facts: Any) -> tuple[_Outcome, DirectedOrder]:
        orders: list[DirectedOrder] = []

        def choices(machine: Machine) -> Explorer:
            orders.append(DirectedOrder(machine=machine, **facts))
            return orders[0]

        result = runs.make(choices, monitored=False)
        runs.count += 1
        assert result is not None
        return result, orders[0]

    impatient = outcome.explorer.waited
    plain = directed(actors=actors, memory=True, impatient=impatient)[1]
    past = plain.past
    past.order()
    runs.learn(plain)
    actors = [step.actor for step in plain.steps]
    best: _Reversal | None = None
    for earlier, later in _representatives(past)[: min(_REVERSED, runs.most - runs.count)]:
        held, other = actors[earlier], actors[later]
        until = other, actors[:later].count(other)
        way: Any = {"actors": actors[:earlier], "held": held, "until": until, "memory": stops}
        way["impatient"] = impatient
        result, order = directed(**way)
        fault = runs.fault_of(result)
        if fault:
            return _Reversal(result, fault)
        if best is None and order.overtaken and past.is_feasible(earlier, later):
            best = _Reversal(result, fault)
    return best


def _memory_races(past: Past) -> Iterator[tuple[int, int]]:
    for one, other in past.races:
        reasons = reasons_of(past.steps[one], past.steps[other])
        if any(reason.kind == "race" for reason in reasons):
            yield one, other


def _representatives(past: Past) -> list[tuple[int, int]]:
    """Return races to reverse: of those at the same lines the first, and then the last."""
    first: dict[Any, tuple[int, int]] = {}
    last: dict[Any, tuple[int, int]] = {}
    for one, other in _memory_races(past):
        reasons = tuple(sorted(set(reasons_of(past.steps[one], past.steps[other]))))
        first.setdefault(reasons, (one, other))
        last[reasons] = one, other
    return list(dict.fromkeys([*first.values(), *last.values()]))


#: How many runs look for an order with fewer switches.
_SHRINKS = 40


def _witnessed(runs: _Runs, outcome: _Outcome, fault: _Fault) -> Exploration:
    """Return the result of a run that is wrong, with an order that has few switches.

    Raises:
      Unrepeatable: its order does not repeat it.
    """
    witness = outcome.explorer.witness
    again = runs.make(lambda machine: ReplayedOrder(machine=machine, replayed=witness))
    if again is None or runs.fault_of(again) != fault or not _same(outcome, again):
        raise Unrepeatable
    best = _shrunk(runs, again, fault)
    findings = {finding.key: finding for finding in (*runs.findings, *best.findings)}
    return runs.exploration(
        "wrong",
        findings=tuple(findings.values()),
        error=best.error,
        differs=fault.differs,
        confirmed=True,
        witness=best.explorer.witness,
        story=best.explorer.story,
    )


def _same(one: _Outcome, other: _Outcome) -> bool:
    if one.error is not None or other.error is not None:
        return one.error is not None and other.error is not None
    return same_values(one.values, other.values)


#: Consecutive steps of one actor.
type _Block = list[Actor]


def _shrunk(runs: _Runs, outcome: _Outcome, fault: _Fault) -> _Outcome:
    """Return a run with the same fault, and fewer switches.

    First whoever is passed over is held back until nobody else can go on, from each of the
    switches on; then blocks of steps are left out, by delta debugging (Zeller and Hildebrandt, IEEE
    TSE 28(2), 2002).
    """
    witness = outcome.explorer.witness
    facts: Any = {"memory": witness.memory, "impatient": witness.impatient}
    best, left = outcome, _SHRINKS

    def attempt(blocks: Sequence[_Block], held: Actor | None = None) -> bool:
        nonlocal best, left
        left -= 1
        actors = [actor for block in blocks for actor in block]
        result = runs.make(
            lambda machine: DirectedOrder(machine=machine, actors=actors, held=held, **facts),
            monitored=False,
        )
        if result is None or not fault.is_in(runs.fault_of(result)):
            return False
        if result.explorer.witness.switches < best.explorer.witness.switches:
            best = result
        return True

    if best.explorer.witness.switches < 2:
        return best
    steps = [step.actor for step in outcome.explorer.steps]
    for turn in outcome.explorer.turns[: left // 2]:
        if turn.late and attempt([steps[: turn.step]], turn.actor):
            break
    steps = [step.actor for step in best.explorer.steps]
    if best.explorer.witness.switches < 2:
        return best
    blocks = [list(group) for _, group in groupby(steps)]
    low, high = 0, len(blocks)  # the fewest blocks after which the rest may be plain
    while low < high and left > 0:
        middle = (low + high) // 2
        if attempt(blocks[:middle]):
            high = middle
        else:
            low = middle + 1
    blocks, size = blocks[:high], max(high // 2, 1)
    while left > 0:
        at, before = 0, len(blocks)
        while at < len(blocks) and left > 0:
            fewer = blocks[:at] + blocks[at + size :]
            if attempt(fewer):
                blocks = fewer
            else:
                at += size
        if size == 1 and len(blocks) == before:
            break
        size = max(size // 2, 1)
    return best
