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

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, NamedTuple

from pallas_sim.choices import Choices
from pallas_sim.copies import advance
from pallas_sim.errors import OptionError, PallasError
from pallas_sim.findings import Finding, Wait
from pallas_sim.inspector import same_bits
from pallas_sim.machine import Limits, Machine
from pallas_sim.memory import Ref, Region
from pallas_sim.order.accesses import bounds_of, root
from pallas_sim.platforms import set_platforms
from pallas_sim.recording import Copy, Semaphore, Signalled, Synchronized, Touched, Waited
from pallas_sim.simulation import SimulatedCall

#: Who takes a step: a thread, by number, or a copy, by the thread that started it and its number.
type Actor = tuple[str, int, int]

#: What a step does: the kind of operation, and the name of the semaphore or memory.
type Operation = tuple[str, Hashable]

#: Pairs of operations on the same thing whose order matters. Additions commute, and a wait does not
#: come before the addition that it needs.
_DEPENDENT = frozenset(
    {
        frozenset({"take"}),
        frozenset({"take", "peek"}),
        frozenset({"take", "look"}),
        frozenset({"add", "look"}),
        frozenset({"change"}),
    }
)


class Redundant(BaseException):
    """Ends a run whose orders were all run before. No ``Exception``: a kernel may catch those."""


@dataclass(eq=False)
class ExploredStep:
    """A step of a run.

    Attributes:
      actor: who takes it.
      operations: what it does.
      ended: whether all that it did is known.
      accesses: to memory, where these are kept: see ``Explorer.memory``.
    """

    actor: Actor
    operations: dict[Operation, int] = field(default_factory=dict[Operation, int])
    ended: bool = False
    accesses: list[MemoryAccess] = field(default_factory=list["MemoryAccess"])

    @property
    def things(self) -> set[Hashable]:
        """What it operates on."""
        memories = {("memory", access.memory) for access in self.accesses}
        return {what for _, what in self.operations} | memories


class MemoryAccess(NamedTuple):
    """An access of a step to memory: whose it is, the range of its bytes, and whether it writes."""

    memory: Hashable
    first: int
    end: int
    writes: bool


def _conflict(one: ExploredStep, other: ExploredStep) -> bool:
    """Return whether the order of two steps matters."""
    return any(
        what == also and frozenset({kind, another}) in _DEPENDENT
        for kind, what in one.operations
        for another, also in other.operations
    ) or any(
        a.memory == b.memory and (a.writes or b.writes) and a.first < b.end and b.first < a.end
        for a in one.accesses
        for b in other.accesses
    )


@dataclass(eq=False)
class Node:
    """A state of a run in which somebody is chosen.

    Attributes:
      enabled: those who can take a step.
      chosen: who takes it in the current run.
      tried: those whose runs were made, each with what its step does.
      wanted: those that are to be tried.
      asleep: those whose runs from here on were made elsewhere, each with what its step does.
    """

    enabled: tuple[Actor, ...]
    chosen: Actor
    tried: dict[Actor, ExploredStep | None] = field(
        default_factory=dict[Actor, ExploredStep | None]
    )
    wanted: set[Actor] = field(default_factory=set[Actor])
    asleep: dict[Actor, ExploredStep] = field(default_factory=dict[Actor, ExploredStep])


@dataclass(eq=False)
class Explorer(Choices):
    """The choices of one run of an exploration: those of ``nodes`` first, then new ones.

    Attributes:
      machine: that runs.
      nodes: the states of the run, in order, as far as they are known.
      steps: what was done so far, a step for each node.
      past: the steps with their clocks.
      memory: whether the order of accesses to memory matters, too. The proof of order says which
        accesses are in no order; only for a run that shows it are they tried both ways.
    """

    machine: Machine = field(kw_only=True)
    nodes: list[Node] = field(default_factory=list[Node])
    steps: list[ExploredStep] = field(default_factory=list[ExploredStep])
    memory: bool = False
    _events: Any = None
    _seen: int = 0
    _names: dict[int, tuple[Any, Hashable]] = field(default_factory=dict[int, tuple[Any, Hashable]])
    _copies: dict[int, tuple[Copy, Actor]] = field(default_factory=dict[int, tuple[Copy, Actor]])
    past: Past = field(default_factory=lambda: Past())
    _looks: dict[Actor, tuple[int, Hashable, int]] = field(
        default_factory=dict[Actor, tuple[int, Hashable, int]]
    )
    _pollers: list[Any] = field(default_factory=list[Any])
    _woken: int = 0
    _pending: dict[Actor, Hashable] = field(default_factory=dict[Actor, Hashable])

    explores: ClassVar[bool] = True

    def next_task(self, ready: deque[Any]) -> Any:
        """Choose what happens next; copies move until a task goes on, or nothing can happen."""
        while True:
            self._end_step()
            tasks = {("thread", task.thread.number, 0): task for task in ready}
            copies = {self._actor_of(copy): copy for copy in self.machine.copies if copy.movable}
            enabled = (*tasks, *copies)
            if not enabled:
                return None
            actor = self._chosen(enabled)
            self.steps.append(ExploredStep(actor))
            if actor in tasks:
                ready.remove(tasks[actor])
                return tasks[actor]
            self._move(copies[actor])

    @property
    def taken(self) -> tuple[int, ...]:
        """The schedule of the run: who was chosen wherever there were several."""
        pairs = zip(self.nodes, self.steps, strict=False)
        return tuple(
            node.enabled.index(step.actor) for node, step in pairs if len(node.enabled) > 1
        )

    def look(self, thread: Any, kind: str, target: Any) -> None:
        """Add a look to the current step; a thread that sees the same again waits for a change."""
        if not self.steps:
            return
        step = self.steps[-1]
        if kind == "wait":
            self._pending[step.actor] = self._name(target)
            return
        if kind != "look":
            step.operations[kind, target] = 1
            return
        name = self._name(target)
        scheduler = thread.machine.scheduler
        count = sum(1 for one in self.steps if one.actor == step.actor)
        before = self._looks.get(step.actor)
        if before == (count - 1, name, target.count) and scheduler.current is not None:
            target.waiting.append(scheduler.current)
            self._pollers.append((scheduler.current, target))
            if self._wake_pollers not in scheduler.idle:
                scheduler.idle.append(self._wake_pollers)
            scheduler.block(lambda: _polls(thread, target))
            step = self.steps[-1]
            count = sum(1 for one in self.steps if one.actor == step.actor)
        self._looks[step.actor] = (count, name, target.count)
        step.operations["look", name] = 1

    def _wake_pollers(self) -> bool:
        """Let those look again who wait for a change, if nothing else can happen."""
        self._woken += 1
        pollers = [(task, target) for task, target in self._pollers if task in target.waiting]
        self._pollers.clear()
        if not pollers or self._woken > _POLLS:
            return False
        for task, target in pollers:
            target.waiting.remove(task)
            self.machine.scheduler.wake(task)
        return True

    def _chosen(self, enabled: tuple[Actor, ...]) -> Actor:
        """Return who takes the next step, and keep the state.

        Raises:
          Redundant: all runs from here on were made.
        """
        number = len(self.steps)
        if number < len(self.nodes):
            return self.nodes[number].chosen
        asleep = self._asleep()
        awake = [actor for actor in enabled if actor not in asleep]
        if not awake:
            raise Redundant
        chosen = awake[0]
        self.nodes.append(Node(enabled, chosen, wanted={chosen}, asleep=asleep))
        return chosen

    def _asleep(self) -> dict[Actor, ExploredStep]:
        """Return who sleeps in the next state: who did before, and commutes with the last step."""
        if not self.steps:
            return {}
        node, last = self.nodes[len(self.steps) - 1], self.steps[-1]
        before = {**node.asleep, **node.tried}
        return {
            actor: step
            for actor, step in before.items()
            if step is not None and actor != last.actor and not _conflict(step, last)
        }

    def _move(self, copy: Copy) -> None:
        """Let the next event of a copy happen."""
        step = self.steps[-1]
        reads = bool(copy.unread)
        semaphore = copy.sent if reads else copy.done
        for region, writes in copy.sides:
            if writes != reads:
                self._touch(step, region, writes=writes)
        advance(self.machine, copy)
        if semaphore is not None:
            operation = ("add", self._name(semaphore))
            step.operations[operation] = step.operations.get(operation, 0) + copy.size

    def _actor_of(self, copy: Copy) -> Actor:
        known = self._copies.get(id(copy))
        if known is not None:
            return known[1]
        starter = self.steps[-1].actor if self.steps else ("thread", -1, 0)
        number = sum(actor[1] == starter[1] for _, actor in self._copies.values())
        actor = ("copy", starter[1], number)
        self._copies[id(copy)] = (copy, actor)
        if self.steps:
            self.past.begin(actor, len(self.steps) - 1)
        return actor

    def finish(self) -> None:
        """End the step that is the last one of all threads."""
        self._end_step()
        self._events, self._seen = self.machine.recording.events, len(self.machine.recording.events)
        self.past.meet()

    def end(self) -> None:
        """End the run: waits that never ended are steps, too, as in another order they may have."""
        self._end_step()
        for actor, name in self._pending.items():
            self.past.add(ExploredStep(actor, {("take", name): 0}), (), everyone=False)

    def _end_step(self) -> None:
        """Take the events since the step began."""
        events = self.machine.recording.events
        fresh, barrier = events[self._seen :], False
        if self._events is not None and events is not self._events:
            fresh, barrier = [*self._events[self._seen :], *events], True
        self._events, self._seen = events, len(events)
        if not self.steps:
            return
        step = self.steps[-1]
        if step.ended:
            return
        step.ended = True
        met: list[int] = []
        for event in fresh:
            if isinstance(event, Signalled):
                operation = ("add", self._name(event.semaphore))
                step.operations[operation] = step.operations.get(operation, 0) + event.amount
            elif isinstance(event, Waited):
                name = self._name(event.semaphore)
                step.operations["take" if event.takes else "peek", name] = event.amount
                self._pending.pop(step.actor, None)
            elif isinstance(event, Touched):
                self._touch(step, event.region, writes=event.writes)
            elif isinstance(event, Synchronized) and not barrier:
                met += event.threads
        node = self.nodes[len(self.steps) - 1]
        node.tried[step.actor] = step
        if step.operations:
            self._woken = 0
        self.past.add(step, met, everyone=barrier)

    def _touch(self, step: ExploredStep, region: Region, *, writes: bool) -> None:
        if not self.memory:
            return
        whole = root(region)
        if id(whole) not in self._names:
            self._learn_all()
        name = self._names.setdefault(id(whole), (whole, ("memory", len(self._names))))[1]
        start, (first, end) = bounds_of(whole)[0], bounds_of(region)
        step.accesses.append(MemoryAccess(name, first - start, end - start, writes))

    def _name(self, semaphore: Semaphore) -> Hashable:
        """Name a semaphore by where it is, which all runs do alike."""
        known = self._names.get(id(semaphore))
        if known is None:
            self._learn_all()
            known = self._names.setdefault(id(semaphore), (semaphore, semaphore.name))
        return known[1]

    def _learn_all(self) -> None:
        for device in self.machine.devices.values():
            for key, ref in device.memory.items():
                self._learn(ref, (device.number, key))
            for key, barrier in device.barriers.items():
                self._names[id(barrier)] = (barrier, (device.number, key))

    def _learn(self, ref: Ref, where: Hashable) -> None:
        if ref.data.dtype == object:
            for number, one in enumerate(ref.data.flat):
                self._names.setdefault(id(one), (one, (where, number)))
        elif self.memory:
            self._names.setdefault(id(root(ref.data)), (root(ref.data), where))


#: How often threads that poll look again although nothing has happened: loops that end by counting.
_POLLS = 64


def _polls(thread: Any, semaphore: Semaphore) -> Any:
    return Wait(owner=thread.owner, on=semaphore.name, had=semaphore.count, program=thread.program)


@dataclass(eq=False)
class Past:
    """The steps of a run, what comes before what in every order of them, and the races.

    Attributes:
      steps: in order.
      before: for each step, positions of steps that come before it whatever waits prove: of the
        same actor, of who began it, and of those that it met.
      clocks: for each step, how many steps of each actor come before it in every order.
      races: pairs of positions of steps that may come in the other order.
    """

    steps: list[ExploredStep] = field(default_factory=list[ExploredStep])
    before: list[set[int]] = field(default_factory=list[set[int]])
    clocks: list[dict[Actor, int]] = field(default_factory=list[dict[Actor, int]])
    races: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _last: dict[Actor, int] = field(default_factory=dict[Actor, int])
    _begun: dict[Actor, int] = field(default_factory=dict[Actor, int])
    _met: dict[int, set[int]] = field(default_factory=dict[int, set[int]])
    _everyone: set[int] = field(default_factory=set[int])

    def begin(self, actor: Actor, position: int) -> None:
        """Note in which step an actor begins."""
        self._begun[actor] = position

    def meet(self) -> None:
        """Let all that was done come before all that follows."""
        self._everyone.update(self._last.values())

    def add(self, step: ExploredStep, met: Iterable[int], *, everyone: bool) -> None:
        """Add the next step.

        Args:
          step: the step.
          met: the threads that met in it.
          everyone: whether all that was done before comes before all that follows.
        """
        actor, position = step.actor, len(self.steps)
        before = set(self._everyone)
        before.update(self._last[a] for a in (actor,) if a in self._last)
        if actor not in self._last and actor in self._begun:
            before.add(self._begun[actor])
        if actor[0] == "thread":
            before |= self._met.pop(actor[1], set())
        for number in met:
            if (last := self._last.get(("thread", number, 0))) is not None:
                before.add(last)
            if ("thread", number, 0) != actor:
                self._met.setdefault(number, set()).add(position)
        self.steps.append(step)
        self.before.append(before)
        self._last[actor] = position
        if everyone:
            self.meet()

    def order(self) -> None:
        """Find what comes before what in every order.

        A wait comes after an addition if all others that do not come after the wait are too little
        for it. Which those are depends on other waits: the first pass takes those that came later
        in this run for ordered, and each further one uses the order of the pass before (the
        greatest fixpoint of ``order.happens_before``).
        """
        needed: list[set[int]] | None = None
        while True:
            now = self._needed(needed)
            if now == needed:
                return
            needed = now
            self._date(needed)

    def precedes(self, one: int, other: int) -> bool:
        """Return whether a step comes before another one in every order, or is that."""
        actor = self.steps[one].actor
        return self.clocks[other].get(actor, 0) >= self.clocks[one][actor]

    def _needed(self, before: list[set[int]] | None) -> list[set[int]]:
        """Return the additions that the waits of each step need.

        Of what was taken before, only the actor's own part is known to be gone: what others took
        they may also take later.
        """
        needed: list[set[int]] = []
        taken: dict[tuple[Actor, Hashable], int] = {}
        adds: dict[Hashable, list[tuple[int, int]]] = {}
        for position, step in enumerate(self.steps):
            for (kind, what), amount in step.operations.items():
                if kind == "add":
                    adds.setdefault(what, []).append((position, amount))
        for position, step in enumerate(self.steps):
            of_step: set[int] = set()
            for (kind, what), amount in step.operations.items():
                if kind not in ("take", "peek"):
                    continue
                possible = [
                    (at, added)
                    for at, added in adds.get(what, ())
                    if at < position or (before is not None and not self.precedes(position, at))
                ]
                total = sum(added for at, added in possible if at != position)
                slack = total - taken.get((step.actor, what), 0) - amount
                of_step |= {at for at, added in possible if added > slack and at < position}
                if kind == "take":
                    key = (step.actor, what)
                    taken[key] = taken.get(key, 0) + amount
            needed.append(of_step)
        return needed

    def _date(self, needed: Sequence[set[int]]) -> None:
        """Date the steps, and find the races among them."""
        self.clocks, self.races = [], []
        counts: dict[Actor, int] = {}
        of_thing: dict[Hashable, list[int]] = {}
        for position, step in enumerate(self.steps):
            clock: dict[Actor, int] = {}
            for earlier in self.before[position] | needed[position]:
                _join(clock, self.clocks[earlier])
            counts[step.actor] = clock[step.actor] = counts.get(step.actor, 0) + 1
            things = step.things
            possible = {earlier for thing in things for earlier in of_thing.get(thing, ())}
            for earlier in sorted(possible, reverse=True):
                other = self.steps[earlier]
                if self.clocks[earlier][other.actor] <= clock.get(other.actor, 0):
                    continue
                if _conflict(other, step):
                    self.races.append((earlier, position))
                    _join(clock, self.clocks[earlier])
            self.clocks.append(clock)
            for thing in things:
                of_thing.setdefault(thing, []).append(position)


def _join(clock: dict[Actor, int], other: dict[Actor, int]) -> None:
    for actor, time in other.items():
        if clock.get(actor, 0) < time:
            clock[actor] = time


# All runs of a call.

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
      OptionError: there is no such target, it is a GPU, or ``schedules`` is less than 1.
      SimulationError: the call cannot be simulated.
    """
    if schedules < 1:
        raise OptionError(f"schedules is {schedules}: at least one run is needed")
    call = SimulatedCall.of(fn, args, options)
    set_platforms()
    chip = call.chip(target)
    if chip.platform != "tpu":
        raise OptionError(
            f"explore runs kernels for TPUs, not for {chip.name}: the order of a GPU's engines is "
            "not among its choices. simulate(seed=) draws other orders"
        )

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
