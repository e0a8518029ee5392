"""``Explorer``: the choices of one run of an exploration, and the steps that it took."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any, ClassVar

from pallas_sim.choices import Choices
from pallas_sim.copies import advance
from pallas_sim.exploration.past import (
    Actor,
    ExploredStep,
    MemoryAccess,
    Past,
    conflict,
    may_change,
)
from pallas_sim.findings import Wait
from pallas_sim.machine import Engines, Machine
from pallas_sim.memory import Ref, Region
from pallas_sim.order.accesses import bounds_of, root
from pallas_sim.recording import Copy, Semaphore, Signalled, Synchronized, Touched, Waited


class Redundant(BaseException):
    """Ends a run whose orders were all run before. No ``Exception``: a kernel may catch those."""


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
    _copies: dict[int, tuple[Any, Actor]] = field(default_factory=dict[int, tuple[Any, Actor]])
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
            operations = {
                self._actor_of(operation): (engines, operation)
                for engines in self.machine.engines
                for operation in engines.movable()
            }
            enabled = (*tasks, *copies, *operations)
            if not enabled:
                return None
            actor = self._chosen(enabled)
            self.steps.append(ExploredStep(actor))
            if actor in tasks:
                ready.remove(tasks[actor])
                return tasks[actor]
            if actor in copies:
                self._move(copies[actor])
            else:
                self._operate_engine(actor, *operations[actor])

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
            self._follow_waker(step.actor)
            count = sum(1 for one in self.steps if one.actor == step.actor)
        self._looks[step.actor] = (count, name, target.count)
        step.operations["look", name] = 1

    def operate(self, kind: str, name: Hashable, value: int) -> None:
        """As any ``Choices``."""
        if self.steps:
            self.steps[-1].operations[kind, name] = value

    def operation_done(self, operation: Any, steps: int) -> None:
        """As any ``Choices``."""
        self.operate("peek", ("steps of", self._actor_of(operation)), steps)

    def access(
        self, memory: Hashable, first: int, end: int, *, writes: bool, group: str = ""
    ) -> None:
        """As any ``Choices``."""
        if self.steps:
            self.steps[-1].accesses.append(MemoryAccess(memory, first, end, writes, group))

    def _operate_engine(self, actor: Actor, engines: Engines, operation: Any) -> None:
        """Let the next step of an operation of a GPU's engine happen."""
        self.operate("add", ("steps of", actor), 1)
        for region, writes in engines.move(operation):
            self._touch(self.steps[-1], region, writes=writes)

    def _follow_waker(self, actor: Actor) -> None:
        """Note that the current step comes after the one that let its blocked thread go on."""
        position = len(self.steps) - 1
        while actor in self.nodes[position].enabled:
            position -= 1
        self.past.follow(actor[1], position)

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
            if step is not None
            and actor != last.actor
            and not conflict(step, last)
            and not may_change(step, last)
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

    def _actor_of(self, copy: Any) -> Actor:
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
        place = getattr(semaphore, "place", None)  # of a barrier of a GPU
        if place is not None:
            return place
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
