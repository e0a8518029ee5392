"""Who goes on in a run: ``ReplayedOrder``, ``DirectedOrder``, ``ReducedOrder``."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pallas_sim.errors import OptionError
from pallas_sim.exploration.explorer import OTHER_RUN, Explorer, Redundant, Unrepeatable
from pallas_sim.exploration.past import (
    Actor,
    ExploredStep,
    MemoryAccess,
    conflict,
    may_change,
)
from pallas_sim.exploration.witness import Witness, digest_of


@dataclass(eq=False)
class ReplayedOrder(Explorer):
    """The choices of a witness, and then the plain ones.

    Attributes:
      replayed: the witness.
    """

    replayed: Witness = field(kw_only=True)

    def __post_init__(self) -> None:
        """Let threads stop where they did."""
        self.memory, self.impatient = self.replayed.memory, self.replayed.impatient

    def begin(self, jaxpr: Any) -> None:
        """Keep what runs.

        Raises:
          OptionError: it is not what the witness is of.
        """
        super().begin(jaxpr)
        self.replayed.require(digest_of(jaxpr), self.machine.target)

    def _choose(self, enabled: tuple[Actor, ...]) -> Actor:
        """Return whom the witness names.

        Raises:
          OptionError: there are not so many who can go on.
        """
        if len(enabled) == 1:
            return enabled[0]
        at = len(self.chosen)
        choice = self.replayed.choices[at] if at < len(self.replayed.choices) else 0
        if choice >= len(enabled):
            raise OptionError(
                f"the witness does not fit this run: choice {at} of it is {choice}, and "
                f"{len(enabled)} can go on there; {OTHER_RUN}"
            )
        return enabled[choice]

    def complete(self) -> None:
        """Reject a run that has ended before the witness has.

        Raises:
          OptionError: choices are left over.
        """
        left = len(self.replayed.choices) - len(self.chosen)
        if left > 0:
            raise OptionError(
                f"the witness does not fit this run: {left} of its "
                f"{len(self.replayed.choices)} choices are left over; {OTHER_RUN}"
            )


@dataclass(eq=False)
class DirectedOrder(Explorer):
    """Lets some actors take steps in an order, as far as they can, and then chooses plainly.

    Attributes:
      actors: who take the first steps.
      held: who waits after these, as long as anybody else can go on; None for nobody.
      until: the step that ends this: whose, and how many it had taken before.
      overtaken: whether that step was taken while ``held`` waited.
    """

    actors: Sequence[Actor] = ()
    held: Actor | None = None
    until: tuple[Actor, int] | None = None
    overtaken: bool = False
    _at: int = 0

    def _choose(self, enabled: tuple[Actor, ...]) -> Actor:
        while self._at < len(self.actors):
            actor = self.actors[self._at]
            self._at += 1
            if actor in enabled:
                return actor
        if self.held is None:
            return enabled[0]
        actor = next((one for one in enabled if one != self.held), self.held)
        if actor == self.held:
            self.held = None
        elif (actor, self._counts[actor]) == self.until:
            self.held, self.overtaken = None, True
        return actor


#: A look at a count: what decides besides what it does, and the count.
type Look = tuple[Hashable, int]


@dataclass(eq=False)
class Node:
    """A state of a run in which somebody is chosen.

    Attributes:
      enabled: those who can take a step.
      chosen: who takes it in the current run.
      tried: those whose runs were made, each with what its step does.
      wanted: those that are to be tried.
      asleep: those whose runs from here on were made elsewhere, each with what its step does.
      ways: who is to go on after one of those that are wanted.
      looks: of those that are wanted only so that somebody looks earlier, these looks.
    """

    enabled: tuple[Actor, ...]
    chosen: Actor
    tried: dict[Actor, ExploredStep | None] = field(
        default_factory=dict[Actor, ExploredStep | None]
    )
    wanted: set[Actor] = field(default_factory=set[Actor])
    asleep: dict[Actor, ExploredStep] = field(default_factory=dict[Actor, ExploredStep])
    ways: dict[Actor, list[Actor]] = field(default_factory=dict[Actor, list[Actor]])
    looks: dict[Actor, set[Look]] = field(default_factory=dict[Actor, set[Look]])


@dataclass(eq=False)
class ReducedOrder(Explorer):
    """The choices of ``nodes`` first, then new ones, none of which repeat orders that were run.

    Attributes:
      nodes: the states of the run, in order, as far as they are known.
      spun: whether the last step ended a round of a loop that has done nothing but look.
    """

    nodes: list[Node] = field(default_factory=list[Node])
    spun: bool = False
    _stuck: bool = False
    _way: list[Actor] = field(default_factory=list[Actor])

    def _choose(self, enabled: tuple[Actor, ...]) -> Actor:
        """Return who takes the next step, and keep the state.

        Raises:
          Redundant: all runs from here on were made.
          Unrepeatable: the run is not the one that the nodes are of.
        """
        number = len(self.steps)
        if number < len(self.nodes):
            node = self.nodes[number]
            if node.enabled is not enabled and node.enabled != enabled:
                raise Unrepeatable
            self._way = list(node.ways.get(node.chosen, ()))
            return node.chosen
        asleep = self._asleep()
        awake = [actor for actor in enabled if actor not in asleep]
        if not awake and all(self._sees_nothing_new(asleep[actor]) for actor in enabled):
            self._stuck = True  # all that are left look again and again, and see the same
            awake = list(enabled)
        if not awake:
            raise Redundant
        chosen = awake[0]
        if self._way:
            actor = self._way.pop(0)
            chosen = actor if actor in awake else chosen
        self.nodes.append(Node(enabled, chosen, wanted={chosen}, asleep=asleep))
        return chosen

    def _known_enabled(self, ready: deque[Any]) -> tuple[Actor, ...]:
        """Return who can take a step, if that is known from a run before; () if not.

        Raises:
          Unrepeatable: as of ``_choose``.
        """
        number = len(self.steps)
        if number >= len(self.nodes) or self.machine.engines:
            return ()
        node = self.nodes[number]
        kind, thread, _ = node.chosen
        copy = self._things.get(node.chosen)
        count = len(ready) + sum(copy.movable for copy in self.machine.copies)
        if not count:  # those who look again and again go on now, as nobody else can
            return ()
        can = any(task.thread.number == thread for task in ready)
        if count != len(node.enabled) or not (can if kind == "thread" else copy and copy.movable):
            raise Unrepeatable
        return node.enabled

    def _sees_nothing_new(self, step: ExploredStep) -> bool:
        """Return whether a step ends a round of looks at what is still the same."""
        things = {name: thing for thing, name in self._names.values()} if step.seen else {}
        now: dict[Hashable, Any] = {}
        for name, seen in step.seen.items():
            if isinstance(name, MemoryAccess):
                memory = things.get(name.memory)
                now[name] = seen if memory is None else name.values_in(memory)
            else:
                now[name] = things[name].count if name in things else seen
        return bool(step.seen) and now == step.seen

    def _spin(self, step: ExploredStep, seen: dict[Hashable, Any]) -> None:
        """End the run: all that follows is in runs without this round, unless nobody goes on."""
        step.seen = seen
        node = self.nodes[len(self.steps) - 1]
        others = [actor for actor in node.enabled if actor != step.actor]
        asleep = {**node.asleep, **node.tried}
        if self._stuck or all(
            (other := asleep.get(actor)) is not None and self._sees_nothing_new(other)
            for actor in others
        ):
            return
        self.spun = True
        raise Redundant

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

    def _end_step(self) -> None:
        super()._end_step()
        if self.steps:
            step = self.steps[-1]
            self.nodes[len(self.steps) - 1].tried[step.actor] = step
