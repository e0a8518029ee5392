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
Nothing is saved and restored: each run begins anew and repeats the choices of a run before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from pallas_sim.errors import OptionError, PallasError
from pallas_sim.exploration.explorer import Explorer, Node, Redundant
from pallas_sim.exploration.past import Actor, Past
from pallas_sim.findings import Finding
from pallas_sim.inspector import same_bits
from pallas_sim.machine import Limits, Machine
from pallas_sim.platforms import set_platforms
from pallas_sim.simulation import SimulatedCall

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
      findings: of the run that is wrong.
      error: what ended that run, or None.
      differs: whether it is wrong because it gave other values than the first one.
      witness: its schedule. None where the proof of order alone says that it is wrong: no run was
        found in which it shows.
    """

    verdict: Verdict
    runs: int
    classes: int
    findings: tuple[Finding, ...] = ()
    error: Exception | None = None
    differs: bool = False
    witness: tuple[int, ...] | None = None


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
      schedules: the most runs.
      limits: of each run.
      options: as of ``simulate``.

    Raises:
      OptionError: there is no such target, or ``schedules`` is less than 1.
      SimulationError: the call cannot be simulated.
    """
    if schedules < 1:
        raise OptionError(f"schedules is {schedules}: at least one run is needed")
    call = SimulatedCall.of(fn, args, options)
    set_platforms()
    chip = call.chip(target)

    def run(explorer: Callable[[Machine], Explorer]) -> tuple[Explorer, Any]:
        machine = Machine(target=chip.name, cores=chip.cores, limits=limits or Limits())
        machine.choices = explorer(machine)
        return machine.choices, lambda: call.run(machine, jit=True)

    return search(run, schedules)


#: Makes a run: returns its choices, and a function that runs it and returns what it gave.
type Run = Callable[[Callable[[Machine], Explorer]], tuple[Explorer, Callable[[], Any]]]


def search(run: Run, schedules: int) -> Exploration:
    """Make runs until all orders were had, one is wrong, or there were ``schedules``.

    Where the proof of order finds a race, runs in which the accesses come in either order are
    looked for, until one gives other values: the witness.
    """
    result = _search(run, schedules, memory=False)
    if result.verdict != "wrong" or result.error is not None or result.differs:
        return result
    more = _search(run, schedules - result.runs, memory=True, proved=False)
    runs = result.runs + more.runs
    if more.verdict == "wrong":
        return replace(more, runs=runs, findings=result.findings)
    return replace(result, runs=runs, witness=None)


def _search(run: Run, schedules: int, *, memory: bool, proved: bool = True) -> Exploration:
    """Search as ``search`` does.

    Args:
      run: makes a run.
      schedules: the most runs.
      memory: see ``Explorer.memory``.
      proved: whether a finding of the proof of order is enough to call a run wrong.
    """
    runs, classes = Search(), 0
    first: _Outcome | None = None
    while runs.left and runs.count < schedules:
        explorer, begin = run(
            lambda machine: Explorer(machine=machine, nodes=runs.nodes, memory=memory)
        )
        outcome = _outcome_of(explorer, begin)
        runs.learn(explorer)
        if outcome is None:
            continue
        classes += 1
        first = outcome if first is None else first
        differs = not outcome.error and not same_values(first.values, outcome.values)
        if outcome.error is not None or differs or (proved and outcome.findings):
            return Exploration(
                verdict="wrong",
                runs=runs.count,
                classes=classes,
                findings=outcome.findings,
                error=outcome.error,
                differs=differs,
                witness=outcome.schedule,
            )
    verdict = "open" if runs.left else "proved"
    return Exploration(verdict=verdict, runs=runs.count, classes=classes)


@dataclass(eq=False)
class Search:
    """The runs of a search: those that were made, and the next one.

    Attributes:
      nodes: the states of the next run, up to the one in which it takes another way.
      count: how many were made.
      left: whether there is a next one.
    """

    nodes: list[Node] = field(default_factory=list[Node])
    count: int = 0
    left: bool = True

    def learn(self, explorer: Explorer) -> None:
        """Take note of a run that was made, and find the next one."""
        explorer.end()
        self.count += 1
        nodes = self.nodes
        del nodes[len(explorer.steps) :]
        explorer.past.order()
        made = [race for race in explorer.past.races if race[0] < len(nodes)]
        for earlier, later in made:
            _want_reversal(nodes[earlier], explorer.past, earlier, later)
        while nodes and not _untried(nodes[-1]):
            nodes.pop()
        self.left = bool(nodes)
        if nodes:
            nodes[-1].chosen = _untried(nodes[-1])[0]


@dataclass(frozen=True)
class _Outcome:
    """What a run gave: values, findings, the error that ended it, and its schedule."""

    values: Any
    findings: tuple[Finding, ...]
    error: Exception | None
    schedule: tuple[int, ...]


def _outcome_of(explorer: Explorer, begin: Callable[[], Any]) -> _Outcome | None:
    """Make a run; None if it was given up as redundant."""
    values = error = None
    try:
        values = begin()
    except Redundant:
        return None
    except PallasError as raised:
        error = raised
    return _Outcome(values, tuple(explorer.machine.findings), error, explorer.taken)


def _untried(node: Node) -> list[Actor]:
    """Return who is wanted and was not tried; in the order in which they were enabled."""
    return [
        actor
        for actor in node.enabled
        if actor in node.wanted and actor not in node.tried and actor not in node.asleep
    ]


def _want_reversal(node: Node, past: Past, earlier: int, later: int) -> None:
    """Want somebody tried in a state, so that a race of its step goes the other way round."""
    first: dict[Actor, int] = {}  # of those who go on without the earlier step, when they do
    initial: set[Actor] = set()  # those of them who need none of the others
    origin = past.steps[earlier].actor
    time = past.clocks[earlier][origin]
    for position in range(earlier + 1, later + 1):
        clock, actor = past.clocks[position], past.steps[position].actor
        if clock.get(origin, 0) >= time and position != later:
            continue
        if actor not in first and all(clock.get(a, 0) < own for a, own in first.items()):
            initial.add(actor)
        first.setdefault(actor, clock[actor])
    if node.wanted & initial:
        return
    possible = [actor for actor in node.enabled if actor in initial]
    node.wanted.update(possible[:1] or node.enabled)


def same_values(one: Any, other: Any) -> bool:
    """Return whether two runs gave the same bits."""
    import jax

    return all(map(same_bits, jax.tree.leaves(one), jax.tree.leaves(other)))
