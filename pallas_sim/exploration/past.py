"""``Past``: the steps of a run, what comes before what in every order of them, and the races."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

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
        frozenset({"change", "look"}),
        frozenset({"arrive", "look"}),
    }
)


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
    """An access of a step to memory: whose it is, the range of its bytes, and whether it writes.

    Two of the same group commute: the operation is named if no result is used.
    """

    memory: Hashable
    first: int
    end: int
    writes: bool
    group: str = ""


def conflict(one: ExploredStep, other: ExploredStep) -> bool:
    """Return whether the order of two steps matters."""
    return any(
        what == also and _depend(kind, value, another, other_value)
        for (kind, what), value in one.operations.items()
        for (another, also), other_value in other.operations.items()
    ) or any(
        a.memory == b.memory
        and (a.writes or b.writes)
        and (a.group != b.group or not a.group)
        and a.first < b.end
        and b.first < a.end
        for a in one.accesses
        for b in other.accesses
    )


def _depend(kind: str, value: int, another: str, other_value: int) -> bool:
    """Return whether the order of two operations on one thing matters.

    A barrier of a GPU counts arrivals in phases. Those of one phase commute; an arrival in another
    phase might have been the one that ended the phase before. Who passes a phase looks at one bit,
    so the end of the next phase must not come before.
    """
    if kind == another == "arrive":
        return value != other_value
    if {kind, another} == {"pass", "end"}:
        passed, ended = (value, other_value) if kind == "pass" else (other_value, value)
        return ended == passed + 1
    return frozenset({kind, another}) in _DEPENDENT


def may_change(step: ExploredStep, last: ExploredStep) -> bool:
    """Return whether a step would do something else after another one that it commutes with.

    So it is with an arrival in a phase that has ended by now, or that it would end by now.
    """
    barriers = {what for kind, what in step.operations if kind == "arrive"}
    return any(kind in ("end", "pass") and what in barriers for kind, what in last.operations)


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

    def follow(self, thread: int, position: int) -> None:
        """Note that the next step of a thread comes after another step."""
        self._met.setdefault(thread, set()).add(position)

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
                self.follow(number, position)
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
        arrivals: dict[Hashable, list[tuple[int, int]]] = {}
        for position, step in enumerate(self.steps):
            for (kind, what), amount in step.operations.items():
                if kind == "add":
                    adds.setdefault(what, []).append((position, amount))
                elif kind == "arrive":
                    arrivals.setdefault(what, []).append((position, amount))
        for position, step in enumerate(self.steps):
            of_step: set[int] = set()
            for (kind, what), amount in step.operations.items():
                if kind == "pass":
                    of_step |= {at for at, phase in arrivals.get(what, ()) if phase <= amount}
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
                if conflict(other, step) and not self._holds_up(earlier, step, of_thing):
                    self.races.append((earlier, position))
                    _join(clock, self.clocks[earlier])
            self.clocks.append(clock)
            for thing in things:
                of_thing.setdefault(thing, []).append(position)


    def _holds_up(
        self, earlier: int, step: ExploredStep, of_thing: Mapping[Hashable, Sequence[int]]
    ) -> bool:
        """Return whether the end of a phase comes after a step that passed the one before.

        It does if any arrival of the phase comes after that.
        """
        for (kind, what), phase in step.operations.items():
            if kind != "end" or ("pass", what) not in self.steps[earlier].operations:
                continue
            return any(
                self.steps[at].operations.get(("arrive", what)) == phase
                and self.precedes(earlier, at)
                for at in of_thing.get(what, ())
            )
        return False


def _join(clock: dict[Actor, int], other: dict[Actor, int]) -> None:
    for actor, time in other.items():
        if clock.get(actor, 0) < time:
            clock[actor] = time
