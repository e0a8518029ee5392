"""``Explorer``: the choices of one run of an exploration, and the steps that it took."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from pallas_sim.choices import AwaitedElements, Choices, atomic_kind
from pallas_sim.copies import advance
from pallas_sim.exploration.past import (
    Actor,
    ExploredStep,
    MemoryAccess,
    Past,
    part_of,
)
from pallas_sim.exploration.polling import wait_for_more
from pallas_sim.exploration.symmetry import are_alike
from pallas_sim.exploration.witness import Turn, Witness, brief, digest_of, story_of
from pallas_sim.findings import Owner, Wait
from pallas_sim.machine import Machine
from pallas_sim.memory import Elements, Ref, Region
from pallas_sim.order.accesses import bounds_of, root
from pallas_sim.recording import (
    Copy,
    Semaphore,
    Signalled,
    Started,
    Synchronized,
    Touched,
    Waited,
)

#: What a thread looks at: it may wait for another count, or for other values.
type _Awaited = Semaphore | AwaitedElements

#: A look of a thread: the name of what it looked at, that itself, and what it saw.
type _Seen = tuple[Hashable, Any, Any]


class Redundant(BaseException):
    """Ends a run whose orders were all run before. No ``Exception``: a kernel may catch those."""


class Unrepeatable(BaseException):
    """Ends a run that does not repeat the run before: something else than choices decides it."""


@dataclass(eq=False)
class Explorer(Choices):
    """The choices of one run: the plain ones.

    A thread goes on as long as it can, then the next one, and copies move when no thread can go on.
    Whoever is passed over is late: it goes on when nobody else can. So to hold back one thread or
    copy is one choice, as in delay-bounded scheduling (Emmi, Qadeer and Rakamaric, POPL 2011).

    Attributes:
      machine: that runs.
      steps: what was done so far.
      past: the steps, and what comes before what.
      chosen: by number, who took the next step wherever several could.
      memory: whether accesses to memory are kept. The proof of order says which of them are in no
        order; only for a run that shows it are they tried both ways.
      turns: when somebody was passed over, and went on after that.
      jaxpr: what runs.
      alike: whether devices that have seen the same do the same next: see ``symmetry``.
      waits_for_more: whether a round of a loop that sees less than one that does nothing does
        nothing, too: see ``polling``.
      impatient: whether a thread that has only looked waits where it would see the same again, even
        if its loop counts how often it looks: fewer orders, among which most mistakes are.
      waited: whether it did so.
    """

    machine: Machine = field(kw_only=True)
    steps: list[ExploredStep] = field(default_factory=list[ExploredStep])
    past: Past = field(default_factory=Past)
    chosen: list[int] = field(default_factory=list[int])
    memory: bool = field(default=False)
    turns: list[Turn] = field(default_factory=list[Turn])
    jaxpr: Any = None
    alike: bool = False
    waits_for_more: bool = False
    impatient: bool = False
    waited: bool = False
    _events: Any = None
    _seen: int = 0
    _names: dict[int, tuple[Any, Hashable]] = field(default_factory=dict[int, tuple[Any, Hashable]])
    _actors: dict[Any, Actor] = field(default_factory=dict[Any, Actor])
    _things: dict[Actor, Any] = field(default_factory=dict[Actor, Any])
    _since: dict[Actor, int] = field(default_factory=dict[Actor, int])
    _counts: Counter[Any] = field(default_factory=Counter[Any])
    _looked: dict[Actor, int] = field(default_factory=dict[Actor, int])
    _looks: dict[Actor, list[_Seen]] = field(default_factory=dict[Actor, "list[_Seen]"])
    _vain: dict[Actor, list[_Seen]] = field(default_factory=dict[Actor, "list[_Seen]"])
    _pollers: list[Any] = field(default_factory=list[Any])
    _woken: int = 0
    _idle_looks: Counter[Actor] = field(default_factory=Counter[Actor])
    _elements: dict[tuple[int, bytes], MemoryAccess] = field(
        default_factory=dict[tuple[int, bytes], MemoryAccess]
    )
    _looks_left: dict[Actor, int] = field(default_factory=dict[Actor, int])
    _goes_on: bool = False
    _acts: Counter[Actor] = field(default_factory=Counter[Actor])
    _last_looks: dict[tuple[Actor, Hashable], Any] = field(
        default_factory=dict[tuple[Actor, Hashable], Any]
    )
    _late: dict[Actor, int] = field(default_factory=dict[Actor, int])
    _delays: int = 0
    _passed: set[Actor] = field(default_factory=set[Actor])
    _pending: dict[Actor, tuple[Hashable, tuple[str, str]]] = field(
        default_factory=dict[Actor, tuple[Hashable, tuple[str, str]]]
    )

    explores: ClassVar[bool] = True

    def begin(self, jaxpr: Any) -> None:
        """Keep what runs."""
        self.jaxpr = jaxpr
        self.alike, self.waits_for_more = are_alike(jaxpr), wait_for_more(jaxpr)

    def next_task(self, ready: deque[Any]) -> Any:
        """Choose what happens next; copies move until a task goes on, or nothing can happen."""
        while True:
            if self._goes_on:
                return self._go_on(ready)
            self._end_step()
            enabled = self._known_enabled(ready) or self._enabled(ready)
            if not enabled:
                return None
            position = len(self.steps)
            self._since = {actor: self._since.get(actor, position) for actor in enabled}
            actor = self._choose(enabled)
            if len(enabled) > 1:
                number = enabled.index(actor)
                self.chosen.append(number)
                for passed in enabled[:number]:
                    self._turn(passed, late=True)
            if self._late.pop(actor, 0) and actor in self._passed:
                self._turn(actor, late=False)
            self.steps.append(ExploredStep(actor))
            self._counts[actor] += 1
            if actor[0] == "thread":
                task = next(task for task in ready if task.thread.number == actor[1])
                ready.remove(task)
                return task
            thing = self._things[actor]
            if isinstance(thing, Copy):
                self._move(thing)
            else:
                self._operate_engine(actor, thing)

    def _go_on(self, ready: deque[Any]) -> Any:
        """Let the thread of the current step look again within that step."""
        actor, self._goes_on = self.steps[-1].actor, False
        self._late.pop(actor, None)
        self._looks_left[actor] -= 1
        task = next(task for task in ready if task.thread.number == actor[1])
        ready.remove(task)
        return task

    def _enabled(self, ready: deque[Any]) -> tuple[Actor, ...]:
        """Return who can take a step: threads, copies and operations; late ones last."""
        enabled = [("thread", task.thread.number, 0) for task in ready]
        enabled += [self._actor_of(copy) for copy in self.machine.copies if copy.movable]
        for engines in self.machine.engines:
            for operation in engines.started():  # so that each begins where it was started
                self._actor_of(operation)
            enabled += map(self._actor_of, engines.movable())
        if self._late:
            enabled.sort(key=lambda actor: self._late.get(actor, 0))
        return tuple(enabled)

    def _known_enabled(self, ready: deque[Any]) -> tuple[Actor, ...]:
        """Return who can take a step, if that is known from a run before; () if not."""
        del ready
        return ()

    def _be_late(self, actor: Actor) -> None:
        """Let all others that can go on do so first, those too that will only begin."""
        self._delays += 1
        self._late[actor] = self._delays

    def defer(self, thread: Any, thing: Any) -> None:
        """Let all others go on before a thread that is about to look, if any can."""
        self._be_late(("thread", thread.number, 0))
        if self.steps and self._looks_left.get(self.steps[-1].actor):
            self._goes_on = self._repeats(self._name(thing), thing)

    def enter_round(self, thread: Any, mark: Any, state: Callable[[], Hashable]) -> Any:
        """Find rounds of a loop that have done nothing but look, and go on as if they were none.

        The loop is where it was before them. A run without such rounds has the same events. So the
        next rounds need not be run: that they see more is another order (Kokologiannakis, Ren and
        Vafeiadis, "Dynamic partial order reductions for spinloops", FMCAD 2021). Where nobody else
        can go on they are run, and wait for a change. If all of them were one look at memory, it
        waits in any case: the look comes next after the change, and ahead of it is no order.
        """
        del thread
        if not self.steps:
            return None
        actor = self.steps[-1].actor
        looks = self._looks.setdefault(actor, [])
        acts = self._acts_of(actor)
        if mark is not None and mark.acts == acts and mark.looks == len(looks):
            return mark
        known = mark.known if mark is not None and mark.acts == acts else {}
        now = state()
        if now in known:
            self._vain[actor] = vain = looks[known[now] :]
            known = {}
            if len(vain) == 1 and isinstance(vain[0][1], AwaitedElements):
                accesses = self.steps[self._looked[actor]].accesses
                accesses[:] = [a._replace(spins=a.spins or a.atomic == "look") for a in accesses]
            else:
                self._spin(self.steps[-1], {name: count for name, _, count in vain})
        known[now] = len(looks)
        return _Rounds(acts, len(looks), known)

    def _spin(self, step: ExploredStep, seen: dict[Hashable, Any]) -> None:
        """Note that rounds of a loop that end in a step have done nothing but look.

        Args:
          step: the last one of them.
          seen: the counts and values that they saw last.
        """

    def _turn(self, actor: Actor, *, late: bool) -> None:
        """Note that somebody is passed over, or goes on after that."""
        if late:
            self._be_late(actor)
            self._passed.add(actor)
        else:
            self._passed.discard(actor)
        self.turns.append(Turn(len(self.steps), actor, late))
        timeline = self.machine.timeline
        if timeline is not None:
            owner, what = self.owner_of(actor), self.name_of(actor)
            timeline.turn(owner, f"late: {what}" if late else f"goes on: {what}")

    def owner_of(self, actor: Actor) -> Owner:
        """Return a thread, or that which started a copy."""
        return list(self.machine.owners)[actor[1]]

    def name_of(self, actor: Actor) -> str:
        """Return what a reader calls an actor: ``"device 1"``, ``"copy 2 of device 1 (...)"``."""
        owner = self.owner_of(actor)
        if actor[0] == "thread":
            return str(owner)
        copy = self._things[actor]
        source, target = copy.names
        what = f"{source or 'memory'} -> {target or 'memory'}, {brief(copy.line)}"
        return f"copy {actor[2]} of {owner} ({what})"

    def _choose(self, enabled: tuple[Actor, ...]) -> Actor:
        """Return who takes the next step, of those who can."""
        return enabled[0]

    @property
    def story(self) -> tuple[str, ...]:
        """The order in lines, from where it leaves the plain one."""
        return story_of(self.turns, self.steps, self.name_of)

    @property
    def witness(self) -> Witness:
        """The order of the run so far."""
        last = max((at for at, choice in enumerate(self.chosen, 1) if choice), default=0)
        choices = tuple(self.chosen[:last])
        memory = self.memory and self.machine.platform == "gpu"
        return Witness(
            digest_of(self.jaxpr),
            self.machine.target,
            choices,
            memory=memory,
            impatient=self.waited,
        )

    def look(self, thread: Any, kind: str, target: Any, line: str = "") -> None:
        """Add a look to the current step.

        After rounds of a loop that have done nothing but look, a thread waits for a change, and
        after ``LOOKS`` looks during which nobody did more.
        """
        if not self.steps:
            return
        step = self.steps[-1]
        where = (getattr(target, "name", target), line)
        if kind == "wait":
            self._pending[step.actor] = (self._name(target), where)
            return
        if kind != "look":
            self._acts[step.actor] += 1
            step.operations[kind, target] = 1
            step.where[kind, target] = where
            return
        name = self._name(target)
        self._await(thread, target, name, line)
        step = self.steps[-1]
        self._note_look(name, target)
        step.operations["look", name] = target.count
        step.where["look", name] = where

    def await_change(self, thread: Any, elements: AwaitedElements, line: str) -> None:
        """As any ``Choices``."""
        if self.steps:
            self._await(thread, elements, self._name(elements), line)

    def repeats(self, elements: AwaitedElements) -> bool:
        """As any ``Choices``."""
        return bool(self.steps) and self._repeats(self._name(elements), elements)

    def _note_look(self, name: Hashable, target: _Awaited) -> None:
        actor = self.steps[-1].actor
        self._idle_looks[actor] += 1
        self._looks.setdefault(actor, []).append((name, target, target.count))
        self._looked[actor] = len(self.steps) - 1
        self._last_looks[actor, name] = self._acts_of(actor), target.count

    def _repeats(self, name: Hashable, target: _Awaited) -> bool:
        """Return whether the thread has done nothing but look since it saw what it would see."""
        actor = self.steps[-1].actor
        last = self._last_looks.get((actor, name))
        return last == (self._acts_of(actor), target.count)

    def _acts_of(self, actor: Actor) -> int:
        """Return how often the actor of the current step has done more than look."""
        return self._acts[actor] + sum(map(_acts, self.machine.recording.events[self._seen :]))

    def _await(self, thread: Any, target: _Awaited, name: Hashable, line: str) -> None:
        """Let a thread wait that is about to look, if it has looked in vain or too often."""
        actor, task = self.steps[-1].actor, thread.machine.scheduler.current
        vain = self._vain.pop(actor, [])
        things = {one: thing for one, thing, _ in vain}
        if task is None:
            return
        if name in things:
            if all(thing.count == count for _, thing, count in vain):
                self._wait_for_change(thread, task, list(things.values()), line)
            else:
                self._follow_change(things)
        elif not self._looks_left.get(actor):
            impatient = self.impatient and self._repeats(name, target)
            self.waited |= impatient
            if impatient or self._idle_looks[actor] >= LOOKS:
                self._wait_for_change(thread, task, [target], line)

    def _wait_for_change(
        self, thread: Any, task: Any, things: Sequence[_Awaited], line: str
    ) -> None:
        """Let others go on until one of several things changes, or nothing else can happen."""
        scheduler = thread.machine.scheduler
        before, idle = [thing.count for thing in things], False
        if self._wake_pollers not in scheduler.idle:
            scheduler.idle.append(self._wake_pollers)
        while not idle and before == [thing.count for thing in things]:
            for thing in things:
                thing.waiting.append(task)
            self._pollers.append((task, things))
            scheduler.block(lambda: _polls(thread, things[-1], line))
            self.follow_waker()
            idle = all(task in thing.waiting for thing in things)
            if idle:
                self._looks_left.setdefault(self.steps[-1].actor, LOOKS_ALONE)
            for thing in things:
                if task in thing.waiting:
                    thing.waiting.remove(task)

    def operate(
        self, kind: str, name: Hashable, value: int, where: tuple[str, str] = ("", "")
    ) -> None:
        """As any ``Choices``."""
        if self.steps:
            step = self.steps[-1]
            step.operations[kind, name], step.where[kind, name] = value, where

    def operation_done(self, operation: Any, steps: int) -> None:
        """As any ``Choices``."""
        self.operate("peek", ("steps of", self._actor_of(operation)), steps)

    def access(
        self,
        region: Region,
        atomic: str,
        where: tuple[str, str],
        *,
        writes: bool | None = None,
        awaited: AwaitedElements | None = None,
    ) -> None:
        """As any ``Choices``."""
        if not self.steps:
            return
        name = self._access_of(region) if awaited is None else self._elements_of(awaited)
        writes = atomic != "look" if writes is None else writes
        access = name._replace(writes=writes, atomic=atomic, where=where)
        if access not in self.steps[-1].accesses[-1:]:
            self.steps[-1].accesses.append(access)
        if atomic == "look" and awaited is not None:
            self._note_look(name, awaited)
        else:
            self.act()

    def act(self) -> None:
        """As any ``Choices``."""
        if self.steps:
            self._acts[self.steps[-1].actor] += 1

    def _follow_change(self, names: Collection[Hashable]) -> None:
        """Note that a thread that looks again sees the first change since: it waits for that."""
        actor = self.steps[-1].actor
        at = self._looked[actor]
        looks = [access for access in self.steps[at].accesses if access.spins]
        for position in range(at + 1, len(self.steps) - 1):
            step = self.steps[position]
            if any(kind in ("add", "end") and what in names for kind, what in step.operations) or (
                any(a.writes and a.conflicts(look) for a in step.accesses for look in looks)
            ):
                self.past.follow(actor, position)
                return

    def follow_waker(self) -> None:
        """As any ``Choices``."""
        actor = self.steps[-1].actor
        self.past.follow(actor, self._since[actor] - 1)

    def name(self, thing: Any, where: Hashable) -> None:
        """As any ``Choices``."""
        whole = root(thing) if isinstance(thing, np.ndarray) else thing
        self._names[id(whole)] = (whole, where)

    def _operate_engine(self, actor: Actor, operation: Any) -> None:
        """Let the next step of an operation of a GPU's engine happen."""
        engines = next(
            engines
            for engines in self.machine.engines
            if any(one is operation for one in engines.movable())
        )
        self.operate("add", ("steps of", actor), 1)
        for side in engines.move(operation):
            where = (side.name, operation.record.line)
            self._touch(self.steps[-1], side.region, where, writes=side.writes, atomic=side.atomic)
        if operation.record.chain is not None and not operation.steps:
            for other in engines.movable():
                if other.record.chain == operation.record.chain:
                    self.past.follow(self._actor_of(other), len(self.steps) - 1)

    def _wake_pollers(self) -> bool:
        """Let those look again who wait for a change, if nothing else can happen."""
        self._woken += 1
        pollers = [task for task, semaphores in self._pollers if task in semaphores[0].waiting]
        self._pollers.clear()
        if not pollers or self._woken > POLLS:
            return False
        for task in pollers:
            self.machine.scheduler.wake(task)
        return True

    def _move(self, copy: Copy) -> None:
        """Let the next event of a copy happen."""
        step = self.steps[-1]
        reads = bool(copy.unread)
        semaphore = copy.sent if reads else copy.done
        for region, writes in copy.sides:
            if writes != reads:
                where = (copy.names[writes], copy.line)
                atomic = _adding(region) if writes and copy.adds else ""
                self._touch(step, region, where, writes=writes, atomic=atomic)
        advance(self.machine, copy)
        if semaphore is not None:
            _operate(step, "add", self._name(semaphore), copy.size, (semaphore.name, copy.line))

    def _actor_of(self, copy: Any) -> Actor:
        known = self._actors.get(copy)
        if known is not None:
            return known
        starter = self.steps[-1].actor if self.steps else ("thread", -1, 0)
        actor = ("copy", starter[1], self._counts["copies", starter[1]])
        self._counts["copies", starter[1]] += 1
        self._actors[copy], self._things[actor] = actor, copy
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
        for actor, (name, where) in self._pending.items():
            operation = ("take", name)
            step = ExploredStep(actor, {operation: 0}, where={operation: where})
            self.past.add(step, (), everyone=False)
        counts: Counter[Hashable] = Counter()
        for one, name in self._names.values():
            if isinstance(one, Semaphore):
                counts[name] += one.count
        self.past.begin_with(counts)

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
            self._acts[step.actor] += _acts(event)
            if isinstance(event, Signalled):
                kind = "add" if event.amount >= 0 else "subtract"
                where = (event.semaphore.name, event.line)
                _operate(step, kind, self._name(event.semaphore), event.amount, where)
            elif isinstance(event, Waited) and not event.amount:
                self._pending.pop(step.actor, None)
            elif isinstance(event, Waited):
                operation = ("take" if event.takes else "peek", self._name(event.semaphore))
                step.operations[operation] = event.amount
                step.where[operation] = (event.semaphore.name, event.line)
                self._pending.pop(step.actor, None)
            elif isinstance(event, Touched):
                where = (event.name, event.line)
                atomic = _adding(event.region) if event.adds else ""
                if self.memory:
                    self._touch(step, event.region, where, writes=event.writes, atomic=atomic)
            elif isinstance(event, Started):
                self._actor_of(event.copy)
            elif isinstance(event, Synchronized) and not barrier:
                met += event.threads
        acts = any(kind != "look" for kind, _ in step.operations)
        if acts or any(access.writes for access in step.accesses):
            self._woken = 0
            self._looks_left.clear()
            self._idle_looks.clear()
            self._vain.pop(step.actor, None)
        self.past.add(step, met, everyone=barrier)

    def _touch(
        self,
        step: ExploredStep,
        region: Region,
        where: tuple[str, str],
        *,
        writes: bool,
        atomic: str,
    ) -> None:
        if self.memory or atomic:
            access = self._access_of(region)
            step.accesses.append(access._replace(writes=writes, atomic=atomic, where=where))

    def _access_of(self, region: Region) -> MemoryAccess:
        """Return a look at memory; it names the elements, alike in all runs."""
        whole = root(region)
        if id(whole) not in self._names:
            self._learn_all()
        # What no device has is a thread's own: it is named by who accessed it first, and when.
        step = self.steps[-1]
        first_access = ("memory", step.actor, self._counts[step.actor], len(step.accesses))
        name = self._names.setdefault(id(whole), (whole, first_access))[1]
        start, (first, end) = bounds_of(whole)[0], bounds_of(region)
        return MemoryAccess(name, first - start, end - start, part=part_of(region, start))

    def _name(self, thing: _Awaited) -> Hashable:
        """Name a semaphore, or elements of memory, by where it is, which all runs do alike."""
        if isinstance(thing, AwaitedElements):
            return self._elements_of(thing)
        known = self._names.get(id(thing))
        if known is None:
            self._learn_all()
            known = self._names.setdefault(id(thing), (thing, thing.name))
        return known[1]

    def _elements_of(self, thing: AwaitedElements) -> MemoryAccess:
        key = id(root(thing.memory)), thing.numbers.tobytes()
        if key not in self._elements:
            self._elements[key] = self._access_of(Elements(thing.memory, (thing.numbers,)))
        return self._elements[key]

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
        else:
            self._names.setdefault(id(root(ref.data)), (root(ref.data), where))


@dataclass(frozen=True)
class _Rounds:
    """The rounds of a loop since its thread has done more than look.

    Attributes:
      acts: what the thread had done.
      looks: how often it had looked.
      known: the states of the loop before its rounds, each with how often it had looked there.
    """

    acts: int
    looks: int
    known: dict[Hashable, int]


# All orders: dynamic partial order reduction.


def _adding(region: Region) -> str:
    return atomic_kind("add", root(region).dtype, used=False)


def _acts(event: Any) -> bool:
    """Return whether an event is more than a look: a thread that goes on forgets all others."""
    if isinstance(event, Waited):
        return event.amount != 0
    return not isinstance(event, Touched) or event.writes


def _operate(
    step: ExploredStep, kind: str, name: Hashable, amount: int, where: tuple[str, str]
) -> None:
    operation = (kind, name)
    step.operations[operation] = step.operations.get(operation, 0) + amount
    step.where[operation] = where


OTHER_RUN = (
    "its inputs are others than those that were explored, or a callback or the time decides what "
    "it does"
)

#: How often threads that poll look again although nothing has happened: loops that end by counting.
POLLS = 64

#: After so many looks of a thread during which nothing has happened, it waits for a change, even if
#: its loop counts them: a loop without end must end.
LOOKS = 1_000

#: How often such a thread looks again when nobody else can go on, until it waits for good.
LOOKS_ALONE = 10_000


def _polls(thread: Any, thing: _Awaited, line: str) -> Any:
    had = thing.count if isinstance(thing.count, int) else 0
    return Wait(owner=thread.owner, on=thing.name, had=had, line=line, program=thread.program)
