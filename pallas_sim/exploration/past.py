"""``Past``: the steps of a run, what comes before what in every order of them, and the races.

Sets of steps are integers: bit ``n`` is step ``n``. So a join is one operation, whatever the number
of threads and copies.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np

from pallas_sim.memory import Elements, Region
from pallas_sim.order.accesses import addresses_of

#: Who takes a step: a thread, by number, or a copy, by the thread that started it and its number.
type Actor = tuple[str, int, int]


#: What a step does: the kind of operation, and the name of the semaphore or memory.
type Operation = tuple[str, Hashable]


#: Kinds of operations on the same thing whose order matters. Additions commute, and a wait does not
#: come before the addition that it needs.
_DEPENDENT: Mapping[str, frozenset[str]] = {
    "take": frozenset({"take", "peek", "look", "subtract"}),
    "peek": frozenset({"take", "subtract"}),
    "look": frozenset({"take", "add", "subtract", "change", "arrive"}),
    "add": frozenset({"look"}),
    "subtract": frozenset({"take", "peek", "look"}),
    "change": frozenset({"change", "look"}),
    "arrive": frozenset({"arrive", "look"}),
    "pass": frozenset({"end"}),
    "end": frozenset({"pass"}),
    "full": frozenset(),
}

#: Why more than one order has to be run: several threads wait on a semaphore (``"waiters"``),
#: something looks at its count (``"look"``), reads and changes memory in one step (``"change"``),
#: arrives at a barrier for a phase that another one may end (``"arrive"``),
#: or nothing orders two accesses (``"race"``). And several add floating-point numbers to the same
#: memory (``"sum"``): these orders are not run, as they differ in rounding only.
type ReasonKind = Literal["waiters", "look", "change", "arrive", "sum", "race"]


@dataclass(frozen=True, order=True)
class Reason:
    """Why a call has more than one order.

    Attributes:
      kind: of what has no order.
      name: of the semaphore or reference.
      lines: of both operations, ``file:line``, sorted; one if they are the same.
    """

    kind: ReasonKind
    name: str
    lines: tuple[str, ...] = ()

    def __str__(self) -> str:
        """It in words."""
        return f"{_REASONS[self.kind]} {self.name or 'memory'} ({', '.join(self.lines)})"


_REASONS: Mapping[str, str] = {
    "waiters": "several wait on",
    "look": "a look at",
    "change": "several read and change",
    "arrive": "several phases may get an arrival at",
    "sum": "several add rounded numbers to",
    "race": "nothing orders accesses to",
}


#: Bytes of memory: where each array of them begins, its shape, strides and bytes of an element.
type Part = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]


@lru_cache(maxsize=1 << 14)
def _meet(one: Part, other: Part) -> bool:
    """Return whether two parts of the same memory have a byte in common."""
    end = max(
        starts[-1] + sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + size
        for starts, shape, strides, size in (one, other)
    )
    memory = bytearray(end)
    views = [
        [np.ndarray(shape, f"V{size}", memory, start, strides) for start in starts]
        for starts, shape, strides, size in (one, other)
    ]
    return any(np.shares_memory(a, b) for a in views[0] for b in views[1])


def part_of(region: Region, start: int) -> Part | None:
    """Return which bytes a region has of memory that begins at an address; None for a range."""
    if isinstance(region, Elements):
        size = region.memory.itemsize
        starts = np.unique(addresses_of(region)) - start
        if (np.diff(starts) == size).all():
            return None
        return tuple(starts.tolist()), (1,), (size,), size
    if region.flags.c_contiguous or not region.size or min(region.strides) < 0:
        return None
    first = region.__array_interface__["data"][0] - start
    return (first,), region.shape, region.strides, region.itemsize


#: Kinds of atomic accesses that do not commute with others of the same kind; "" is none. Sums that
#: round do, but for rounding.
_IN_ORDER = frozenset({"", "change"})


class MemoryAccess(NamedTuple):
    """An access of a step to memory.

    Attributes:
      memory: whose it is.
      first: byte of its range.
      end: of the range.
      writes: whether it writes.
      atomic: the kind of operation: see ``choices.atomic_kind``; "" for none.
      where: name and line.
      part: which bytes of the range, if not all.
      spins: whether it is a look of a loop that goes on until it sees another value: without it,
        the loop would have waited for the next one.
    """

    memory: Hashable
    first: int
    end: int
    writes: bool = False
    atomic: str = ""
    where: tuple[str, str] = ("", "")
    part: Part | None = None
    spins: bool = False

    def conflicts(self, other: MemoryAccess) -> bool:
        """Return whether the order of two accesses matters."""
        return (
            self.memory == other.memory
            and (self.writes or other.writes)
            and (self.atomic != other.atomic or self.atomic in _IN_ORDER)
            and self.first < other.end
            and other.first < self.end
            and (self.part is other.part is None or _meet(self.whole_part, other.whole_part))
        )

    @property
    def whole_part(self) -> Part:
        """Which bytes it accesses."""
        return self.part or ((self.first,), (self.end - self.first,), (1,), 1)

    def values_in(self, memory: np.ndarray[Any, Any]) -> bytes:
        """Return what its elements are in the whole memory."""
        starts, shape, strides, size = self.whole_part
        kind: Any = f"V{size}"
        views = [np.ndarray(shape, kind, memory.data, start, strides) for start in starts]
        return b"".join(view.tobytes() for view in views)


@dataclass(eq=False, slots=True)
class ExploredStep:
    """A step of a run.

    Attributes:
      actor: who takes it.
      operations: what it does.
      ended: whether all that it did is known.
      accesses: to memory, where these are kept: see ``Explorer.memory``.
      where: name and line of its operations.
      seen: if it ends a round of a loop that has done nothing but look: the counts that it saw, and
        the values of elements, which an access names.
    """

    actor: Actor
    operations: dict[Operation, int] = field(default_factory=dict[Operation, int])
    ended: bool = False
    accesses: list[MemoryAccess] = field(default_factory=list[MemoryAccess])
    where: dict[Operation, tuple[str, str]] = field(
        default_factory=dict[Operation, tuple[str, str]]
    )
    seen: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any])


def conflict(one: ExploredStep, other: ExploredStep) -> bool:
    """Return whether the order of two steps matters."""
    return any(
        what == also and _depend(kind, value, another, other_value)
        for (kind, what), value in one.operations.items()
        for (another, also), other_value in other.operations.items()
    ) or any(a.conflicts(b) for a in one.accesses for b in other.accesses)


def _depend(kind: str, value: int, another: str, other_value: int) -> bool:
    """Return whether the order of two operations on one thing matters.

    A barrier of a GPU counts arrivals in phases. Those of one phase commute; an arrival in another
    phase might have been the one that ended the phase before. Who passes a phase looks at one bit,
    so the end of the next phase must not come before.
    """
    if kind == another == "arrive":
        return value != other_value
    if {kind, another} == {"pass", "end"}:
        return abs(value - other_value) == 1
    return another in _DEPENDENT[kind]


def may_change(step: ExploredStep, last: ExploredStep) -> bool:
    """Return whether a step would do something else after another one that it commutes with.

    So it is with an arrival in a phase that has ended by now, or that it would end by now, or that
    has no place left.
    """
    barriers = {what for kind, what in step.operations if kind == "arrive"}
    ends = ("end", "full", "pass")
    return any(kind in ends and what in barriers for kind, what in last.operations)


def reasons_of(one: ExploredStep, other: ExploredStep) -> Iterator[Reason]:
    """Yield why the order of two steps matters."""
    for operation, value in one.operations.items():
        for another, also in other.operations.items():
            if operation[1] == another[1] and _depend(operation[0], value, another[0], also):
                kind = _reason_kind({operation[0], another[0]})
                yield _reason(kind, *(s.where[o] for s, o in ((one, operation), (other, another))))
    for a in one.accesses:
        for b in other.accesses:
            if a.conflicts(b):
                kinds = {a.atomic or "race", b.atomic or "race"}
                yield _reason(_reason_kind(kinds, "change"), a.where, b.where)


def _reason_kind(kinds: set[str], other: ReasonKind = "waiters") -> ReasonKind:
    """Return the reason for an order of operations of these kinds."""
    if "pass" in kinds:
        return "arrive"
    reasons: tuple[ReasonKind, ...] = ("race", "look", "change", "arrive")
    for reason in reasons:
        if reason in kinds:
            return reason
    return other


def _reason(kind: ReasonKind, one: tuple[str, str], other: tuple[str, str]) -> Reason:
    lines = tuple(sorted({line for _, line in (one, other) if line}))
    return Reason(kind, one[0] or other[0], lines)


def _change(kind: str, amount: int) -> int:
    """Return by how much an operation changes the count of a semaphore."""
    return {"add": amount, "subtract": amount, "take": -amount}.get(kind, 0)


@dataclass(eq=False)
class Past:
    """The steps of a run, what comes before what in every order of them, and the races.

    Attributes:
      steps: in order.
      before: for each step, steps that come before it whatever waits prove: of the same actor, of
        who began it, and of those that it met.
      past: for each step, the set of those that come before it in every order, with itself.
      races: pairs of positions of steps that may come in the other order.
      initial: what semaphores had before the first step.
    """

    steps: list[ExploredStep] = field(default_factory=list[ExploredStep])
    before: list[set[int]] = field(default_factory=list[set[int]])
    past: list[int] = field(default_factory=list[int])
    races: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    initial: dict[Hashable, int] = field(default_factory=dict[Hashable, int])
    _last: dict[Actor, int] = field(default_factory=dict[Actor, int])
    _begun: dict[Actor, int] = field(default_factory=dict[Actor, int])
    _met: dict[Actor, set[int]] = field(default_factory=dict[Actor, set[int]])
    _floor: int = 0
    _floors: list[int] = field(default_factory=list[int])

    def begin(self, actor: Actor, position: int) -> None:
        """Note in which step an actor begins."""
        self._begun[actor] = position

    def follow(self, actor: Actor, position: int) -> None:
        """Note that the next step of an actor comes after another step."""
        self._met.setdefault(actor, set()).add(position)

    def meet(self) -> None:
        """Let all that was done come before all that follows."""
        self._floor = len(self.steps)

    def add(self, step: ExploredStep, met: Iterable[int], *, everyone: bool) -> None:
        """Add the next step.

        Args:
          step: the step.
          met: the threads that met in it.
          everyone: whether all that was done before comes before all that follows.
        """
        actor, position = step.actor, len(self.steps)
        before: set[int] = set()
        if actor in self._last:
            before.add(self._last[actor])
        elif actor in self._begun:
            before.add(self._begun[actor])
        before |= self._met.pop(actor, set())
        for number in met:
            if (last := self._last.get(("thread", number, 0))) is not None:
                before.add(last)
            if ("thread", number, 0) != actor:
                self.follow(("thread", number, 0), position)
        self.steps.append(step)
        self.before.append(before)
        self._floors.append(self._floor)
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
            now = self._needed(first=needed is None)
            if now == needed:
                return
            needed = now
            self._date(needed)

    def precedes(self, one: int, other: int) -> bool:
        """Return whether a step comes before another one in every order, or is that."""
        return bool(self.past[other] >> one & 1)

    def without(self, earlier: int, later: int) -> list[int]:
        """Return the steps between two that go on without the first, with the second, in order."""
        steps = range(earlier + 1, later)
        return [*(at for at in steps if not self.precedes(earlier, at)), later]

    def roundings(self) -> Iterator[Reason]:
        """Yield where several add rounded numbers to the same elements, with the lines."""
        sums: dict[Hashable, list[tuple[int, int, Actor, tuple[str, str]]]] = {}
        for step in self.steps:
            for access in step.accesses:
                if access.atomic == "sum":
                    added = access.first, access.end, step.actor, access.where
                    sums.setdefault(access.memory, []).append(added)
        for ranges in sums.values():
            same: list[list[tuple[int, int, Actor, tuple[str, str]]]] = []
            reached = -1
            for added in sorted(ranges):
                if added[0] >= reached:  # not the elements of those before
                    same.append([])
                same[-1].append(added)
                reached = max(reached, added[1])
            for adders in same:
                if len({actor for _, _, actor, _ in adders}) > 1:
                    lines = tuple(sorted({line for *_, (_, line) in adders}))
                    yield Reason("sum", adders[0][3][0], lines)

    @property
    def takes_parts(self) -> bool:
        """Whether a wait is for less than a copy brings: here a copy is one step, and not there."""
        brought: dict[Hashable, int] = {}
        for step in self.steps:
            if step.actor[0] == "copy":
                for (_, what), amount in step.operations.items():
                    brought[what] = max(brought.get(what, 0), amount)
        return any(
            kind in ("take", "peek") and amount < brought.get(what, 0)
            for step in self.steps
            for (kind, what), amount in step.operations.items()
        )

    def is_feasible(self, earlier: int, later: int) -> bool:
        """Return whether the later step may access memory ahead of the earlier one.

        All waits before it must have enough. The semaphores are counted along the steps that come
        before both, or go on without the earlier one. That has taken what it needs to begin: two
        steps that take the same from a semaphore, as a lock, never access memory at once.

        It errs to no: other steps between may wait for what only the earlier one gives, or for what
        comes later in this run.
        """
        counts = Counter(self.initial)
        for position in range(earlier):
            self._count(counts, position)
        for (kind, what), amount in self.steps[earlier].operations.items():
            counts[what] -= amount if kind == "take" else 0
        return all(self._count(counts, position) for position in self.without(earlier, later))

    def is_denied(self, earlier: int, later: int) -> bool:
        """Return whether the later step cannot access memory ahead of the earlier one, or at once.

        It errs to no. All goes on that need not come after one of the two and has enough; of what
        it takes, only the part that must come before the later step is counted.
        """
        counts = Counter(self.initial)
        for position in range(earlier):
            self._count(counts, position)
        for (kind, what), amount in self.steps[earlier].operations.items():
            counts[what] -= amount if kind == "take" else 0
        left = [
            at
            for at in range(earlier + 1, len(self.steps))
            if at == later or not (self.precedes(earlier, at) or self.precedes(later, at))
        ]
        while later in left:
            waiting = set(left)
            able = [
                at
                for at in left
                if waiting.isdisjoint(self.before[at]) and self._count(Counter(counts), at)
            ]
            others = [at for at in able if not self.precedes(at, later)]
            for at in others or able[:1]:
                left.remove(at)
                for (kind, what), amount in self.steps[at].operations.items():
                    if kind == "add" or not others:
                        counts[what] += _change(kind, amount)
            if not able:
                return True
        return False

    def _count(self, counts: Counter[Hashable], position: int) -> bool:
        """Count what a step adds to semaphores and takes; return whether its waits have enough."""
        enough = True
        for (kind, what), amount in self.steps[position].operations.items():
            enough = enough and not (kind in ("take", "peek") and counts[what] < amount)
            counts[what] += _change(kind, amount)
        return enough

    def begin_with(self, counts: Mapping[Hashable, int]) -> None:
        """Take note of the counts of semaphores after the last step."""
        initial = Counter(counts)
        for step in self.steps:
            for (kind, what), amount in step.operations.items():
                if what in counts:
                    initial[what] -= _change(kind, amount)
        self.initial = {name: count for name, count in initial.items() if count}

    def counts(self, name: Hashable, earlier: int, later: int) -> frozenset[int]:
        """Return what a look may see if it comes before a step that it came after.

        Args:
          name: of the semaphore.
          earlier: the step that is left out.
          later: the look.

        Returns:
          The counts without that addition, and without any others that the look can come before.
          Empty if that is not known.
        """
        actor = self.steps[later].actor
        own = next((at for at in reversed(range(later)) if self.steps[at].actor == actor), None)
        known = 0 if own is None else self.past[own]
        way = [at for at in self.without(earlier, later) if self.precedes(at, later)]
        fixed, others = self.initial.get(name, 0), list[int]()
        for position in (*range(earlier), *way):
            for (kind, what), amount in self.steps[position].operations.items():
                change = _change(kind, amount) if what == name else 0
                if change < 0 and self.steps[position].actor != actor:
                    return frozenset()
                if known >> position & 1 or change < 0:
                    fixed += change
                elif change:
                    others.append(change)
        counts = {fixed}
        for change in others:
            counts |= {count + change for count in counts}
            if len(counts) > _COUNTS:
                return frozenset()
        return frozenset(counts)

    def knowledge(self, position: int) -> Hashable:
        """Return what the actor of a step knew before it: all that its last step comes after."""
        actor = self.steps[position].actor
        own = [at for at in range(position) if self.steps[at].actor == actor]
        if not own:
            return ()
        known = (at for at in range(own[-1] + 1) if self.precedes(at, own[-1]))
        steps = [(self.steps[at].actor, tuple(self.steps[at].operations.items())) for at in known]
        return frozenset(Counter(steps).items())

    def done_by(self, actor: Actor, position: int) -> Hashable:
        """Return what an actor had done before a step, and the counts that it had seen."""
        return tuple(
            tuple((kind, value) for (kind, _), value in step.operations.items())
            for step in self.steps[:position]
            if step.actor == actor and step.operations
        )

    def _needed(self, *, first: bool) -> list[set[int]]:
        """Return the additions that the waits of each step need.

        Of what was taken before, only the actor's own part is known to be gone: what others took
        they may also take later.
        """
        adds: dict[Hashable, list[tuple[int, int]]] = {}
        for position, step in enumerate(self.steps):
            for (kind, what), amount in step.operations.items():
                if kind in ("add", "arrive"):
                    adds.setdefault(what, []).append((position, amount))
        needed: list[set[int]] = []
        taken: dict[tuple[Actor, Hashable], int] = {}
        for position, step in enumerate(self.steps):
            of_step: set[int] = set()
            for (kind, what), amount in step.operations.items():
                if kind == "pass" and ("look", what) not in step.operations:  # it had to wait
                    of_step |= {at for at, phase in adds.get(what, ()) if phase <= amount}
                if kind not in ("take", "peek"):
                    continue
                possible = [
                    (at, added)
                    for at, added in adds.get(what, ())
                    if at < position or not (first or self.precedes(position, at))
                ]
                total = sum(added for at, added in possible if at != position)
                total += self.initial.get(what, 0)
                slack = total - taken.get((step.actor, what), 0) - amount
                of_step |= {at for at, added in possible if added > slack and at < position}
                if kind == "take":
                    key = (step.actor, what)
                    taken[key] = taken.get(key, 0) + amount
            needed.append(of_step)
        return needed

    def _date(self, needed: list[set[int]]) -> None:
        """Find the past of each step, and the races among them."""
        self.past, self.races = past, races = [], []
        operations: dict[Operation, int] = {}
        phases = _Phases()
        accesses: dict[Hashable, dict[MemoryAccess, int]] = {}
        for position, step in enumerate(self.steps):
            before = (1 << self._floors[position]) - 1
            for earlier in self.before[position] | needed[position]:
                before |= past[earlier]
            possible = 0
            for (kind, what), value in step.operations.items():
                if kind in _OF_PHASES:
                    possible |= phases.before(past, kind, what, value)
                for other in _DEPENDENT[kind]:
                    if kind not in _OF_PHASES or other == "look":
                        possible |= operations.get((other, what), 0)
            for access in step.accesses:
                for other, steps in accesses.get(access.memory, {}).items():
                    if not other.spins and access.conflicts(other):
                        possible |= steps
            possible &= ~before
            while possible:
                earlier = possible.bit_length() - 1
                races.append((earlier, position))
                before |= past[earlier]
                possible &= ~before
            bit = 1 << position
            past.append(before | bit)
            for operation, value in step.operations.items():
                operations[operation] = operations.get(operation, 0) | bit
                if operation[0] in _OF_PHASES:
                    phases.add(*operation, value, position)
            for access in step.accesses:
                of_memory = accesses.setdefault(access.memory, {})
                of_memory[access] = of_memory.get(access, 0) | bit


#: Of a look that may see more counts, it is not known whether it does nothing.
_COUNTS = 64

#: Operations at the barriers of a GPU.
_OF_PHASES = frozenset({"arrive", "end", "pass"})


@dataclass(eq=False)
class _Phases:
    """The operations at barriers so far, as sets of steps, by kind, barrier and phase."""

    steps: dict[tuple[str, Hashable, int], int] = field(
        default_factory=dict[tuple[str, Hashable, int], int]
    )
    arrivals: dict[Hashable, int] = field(default_factory=dict[Hashable, int])

    def add(self, kind: str, barrier: Hashable, phase: int, position: int) -> None:
        """Add an operation of a step."""
        key, bit = (kind, barrier, phase), 1 << position
        self.steps[key] = self.steps.get(key, 0) | bit
        if kind == "arrive":
            self.arrivals[barrier] = self.arrivals.get(barrier, 0) | bit

    def before(self, past: Sequence[int], kind: str, barrier: Hashable, phase: int) -> int:
        """Return the earlier steps that might come after an operation instead."""
        if kind == "arrive":
            return self.arrivals.get(barrier, 0) & ~self.steps.get((kind, barrier, phase), 0)
        if kind == "pass":
            return self.steps.get(("end", barrier, phase + 1), 0)
        # The phase ends after all of its arrivals, so after all that these come after.
        passes = self.steps.get(("pass", barrier, phase - 1), 0)
        arrivals = self.steps.get(("arrive", barrier, phase), 0)
        while passes and arrivals:
            last = arrivals.bit_length() - 1
            passes &= ~past[last]
            arrivals ^= 1 << last
        return passes
