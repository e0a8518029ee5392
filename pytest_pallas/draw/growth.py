"""Examples that grow until every way of a kernel has run: ``Growth``.

The planned examples have one to three tiles along a dim. A ring of four buffers, or a condition
such as ``step >= 6``, needs more. So for each way that no example went (``pallas_sim.coverage``),
the cheapest example that came to its point is changed: one dim after the other gets larger, then
all of them together, then options and tuning change. A dim whose size changes nothing at the point
is left alone from then on. Each such example is an ordinary one of the check: it may fail, shrinks,
and is remembered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from math import prod
from typing import Any

from pallas_sim.coverage import Kind, Point, Reached, merged
from pytest_pallas.draw.arguments import Arguments, as_arguments
from pytest_pallas.draw.covering import Covering, Goal
from pytest_pallas.draw.examples import ExampleSource, goal_of
from pytest_pallas.draw.sizes import SizePool
from pytest_pallas.record import VALUES, Aspect

#: An example counts as at least so many steps of the machine: its trace takes time, too.
LEAST_STEPS = 2_000

#: Sizes grow by at least this factor. A dim does not matter if so much larger ones change nothing.
_FACTOR, _LEAP = 1.5, 16

#: Up to so many slots are used twice each, and one once more: a phase that is one off needs it.
_FEW_SLOTS = 4

#: Points that sizes do not decide: whether a wait blocks is a matter of the order of events.
_LEFT: tuple[Kind, ...] = ("wait",)

#: Points that values may decide.
_OF_VALUES: tuple[Kind, ...] = ("branch", "loop", "mask")

#: A way at a point.
type Way = tuple[Point, str]


@dataclass(frozen=True)
class Seen:
    """An example that ran.

    Attributes:
      sizes: of its dims.
      choices: its words, without those of dims.
      reached: what its run reached.
      steps: of the machine.
    """

    sizes: Mapping[str, int]
    choices: Mapping[Aspect, str]
    reached: Mapping[Point, Reached]
    steps: int


@dataclass(kw_only=True)
class Growth:
    """The examples of a check, and those by which they grow.

    Attributes:
      budget: how many steps of the machine all examples may take by which the others grow.
      depth: how many buffers the kernel seems to use in turns; 0 for two or none.
      accepts: whether a way need not be gone, as the spec says; gets all points, too.
      explain: gets the reason for each way that no example went in the end.
      seen: the examples that ran.
      tried: the goals so far.
      spent: steps of the examples by which the others grew.
      cut: ways for which a larger example would have been tried, with more steps.
      too_large: dims of which larger sizes do not fit the arrays.
      refused: dims of which the kernel refuses larger sizes, or the chip has no memory for them.
      pools: the sizes of dims, as far as they are known.
      planned: the number of examples by which it began.
    """

    budget: int
    depth: int = 0
    accepts: Callable[[Reached, str, Mapping[Point, Reached]], bool] = lambda *_: False
    explain: Callable[[Mapping[Way, str]], object] = lambda _: None
    seen: list[Seen] = field(default_factory=list[Seen])
    tried: set[Any] = field(default_factory=set[Any])
    spent: int = 0
    cut: set[Way] = field(default_factory=set[Way])
    too_large: set[str] = field(default_factory=set[str])
    refused: set[str] = field(default_factory=set[str])
    pools: Mapping[str, SizePool] = field(default_factory=dict[str, SizePool])
    planned: int = 0

    def note(self, call: Any, result: Any) -> None:
        """Add an example that passed, with the result of its check."""
        outcome = getattr(result, "outcome", None)
        if outcome is not None and outcome.steps:
            seen = _seen(as_arguments(call), outcome)
            self.seen.append(replace(seen, sizes=self._drawn(seen.sizes)) if self.pools else seen)

    def missing(self) -> Sequence[Way]:
        """Return the ways that no example went, and that should be gone.

        Also those that the programs rule out: of other sizes, one may go them. What is inside of a
        branch or loop that no example entered comes after that.
        """
        reached = merged(example.reached.values() for example in self.seen)
        points = {one.point: one for one in reached}
        return [
            (one.point, way)
            for one in reached
            for way in (*one.missing, *one.unreachable)
            if one.point.kind not in _LEFT and not one.within and not self.accepts(one, way, points)
        ]

    def grow(
        self,
        source: ExampleSource,
        seed: int,
        attempt: Callable[[Any, Goal | None], object],
        further: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        """Run examples until every way was gone, or none is left to try within the budget.

        Args:
          source: of the examples.
          seed: of the draws.
          attempt: runs an example that was drawn with a goal, or without, and raises if it fails.
          further: returns examples of the plan, for what no size decides.

        Raises:
          Exception: as ``attempt``.
        """
        __tracebackhide__ = True
        if not self.seen or not (self.depth or self.missing()):
            return
        _, covering = source.aimed(seed, Goal({}, {}))
        self.pools = covering.pools
        self.seen = [replace(one, sizes=self._drawn(one.sizes)) for one in self.seen]
        self.planned = len(self.seen)

        def reaches(goal: Goal) -> bool:
            """Run what a goal draws; whether the budget allows it."""
            __tracebackhide__ = True
            drawn, made = source.aimed(seed, goal)
            if drawn is None:
                self.too_large.update(self._largest(goal) if made.too_large else ())
            elif self.spent + _cost(self.seen, goal) > self.budget:
                return False
            else:
                run(drawn, goal)
            return True

        def run(drawn: Any, goal: Goal | None = None) -> None:
            __tracebackhide__ = True
            before = len(self.seen)
            attempt(drawn, goal)
            if goal is not None and len(self.seen) == before:
                self.refused.update(self._largest(goal))
            steps = sum(example.steps for example in self.seen[before:])
            self.spent += max(steps, LEAST_STEPS)

        for goal in self._rounds():
            reaches(goal)
        while following := self._next(covering):
            way, goal = following
            if not reaches(goal):
                self.cut.add(way)
        for drawn in further() if self._decided_by_values() else ():
            if self.spent >= self.budget or not self._decided_by_values():
                break
            run(drawn)
        self.explain({way: _reason(self, way) for way in self.missing()})

    def _decided_by_values(self) -> bool:
        """Return whether a way is missing that no program rules out: values may decide."""
        return any(
            way in one.missing
            for point, way in self.missing()
            if point.kind in _OF_VALUES
            for example in self.seen
            if (one := example.reached.get(point)) is not None
        )

    def _rounds(self) -> Iterator[Goal]:
        """Yield goals of so many tiles that each buffer is used again: one for a dim.

        Where the machine sees no ring, as of buffers with a reference each.
        """
        cheapest = min(self.seen, key=lambda example: example.steps)
        rings = any(point.kind == "ring" for one in self.seen for point in one.reached)
        for name, pool in self.pools.items() if self.depth and not rings else ():
            if not pool.tiles or name not in cheapest.sizes:
                continue
            tile, most = max(pool.tiles), max(one.sizes.get(name, 0) for one in self.seen)
            uses = _uses(self.depth)
            sizes = [size for size in pool.every if self.depth < size // tile <= uses]
            if sizes and sizes[-1] > most:
                yield Goal({**cheapest.sizes, name: sizes[-1]}, cheapest.choices)

    def _drawn(self, sizes: Mapping[str, int]) -> Mapping[str, int]:
        """Return the sizes that are drawn, without those that constraints give."""
        return {name: size for name, size in sizes.items() if name in self.pools}

    def _largest(self, goal: Goal) -> Iterator[str]:
        """Yield the dims of which a goal has a larger size than any example."""
        for name, size in goal.sizes.items():
            if size > max((one.sizes.get(name, 0) for one in self.seen), default=0):
                yield name

    def _next(self, covering: Covering) -> tuple[Way, Goal] | None:
        """Return the next goal, with the way it is for; None if nothing is left to try."""
        for way in self.missing():
            if _never_holds(_reached(self, way), way[1]):
                continue
            for goal in _goals(self, way, covering):
                key = (*goal.sizes.items(), *goal.choices.items())
                if key not in self.tried:
                    self.tried.add(key)
                    return way, goal
        return None


def _seen(arguments: Arguments, outcome: Any) -> Seen:
    """Return what matters of an example that ran."""
    goal = goal_of(arguments)
    reached = {one.point: one for one in outcome.coverage}
    return Seen(goal.sizes, goal.choices, reached, outcome.steps)


def _goals(growth: Growth, way: Way, covering: Covering) -> Iterator[Goal]:
    """Yield what examples should be that may go a way, the cheapest first."""
    seen, (point, _) = growth.seen, way
    host = _host(seen, way)
    ladders = {
        name: ladder
        for name, pool in covering.pools.items()
        if name in host.sizes
        and _changes(seen, way, name) is not False
        and (ladder := _ladder(growth, host, point, name, pool))
    }
    ladders = dict(sorted(ladders.items(), key=lambda item: item[1][0] / host.sizes[item[0]]))
    known = {name for name in ladders if _changes(seen, way, name)}
    names = sorted(ladders, key=lambda name: name not in known)
    most = max(map(len, ladders.values()), default=0)
    single = [(name, size) for name in names for size in ladders[name][:1]]
    single += [(name, size) for name in names if name in known for size in ladders[name][1:2]]
    # A dim that is not known to matter gets much larger, so that it is known.
    single += [
        (name, next((size for size in ladders[name] if size >= _LEAP * host.sizes[name]), 0))
        for name in names
        if name not in known
    ]
    single += [
        (name, ladders[name][level])
        for level in range(most)
        for name in names
        if level < len(ladders[name])
    ]
    for name, size in single:
        if size:
            yield Goal({**host.sizes, name: size}, host.choices)
    for level in range(most if len(ladders) > 1 else 0):
        larger = {name: ladder[min(level, len(ladder) - 1)] for name, ladder in ladders.items()}
        yield Goal({**host.sizes, **larger}, host.choices)
    for aspect, labels in covering.domain.items():
        if aspect.role in ("option", "tuning"):
            for word in labels:
                if word != host.choices.get(aspect):
                    yield Goal(host.sizes, {**host.choices, aspect: word})


def _host(seen: Sequence[Seen], way: Way) -> Seen:
    """Return the cheapest example that came to the point, and could have gone the way."""
    point, name = way
    hosts = [example for example in seen if point in example.reached]
    able = [example for example in hosts if name in example.reached[point].missing]
    return min(able or hosts, key=lambda example: (example.steps, prod(example.sizes.values())))


def _ladder(growth: Growth, host: Seen, point: Point, name: str, pool: SizePool) -> Sequence[int]:
    """Return sizes of a dim to try: larger ones than were planned, and those that were not seen.

    Of a ring, the first one should use a slot again.
    """
    reached, size = host.reached[point], host.sizes[name]
    planned = growth.seen[: growth.planned]
    before = {one.sizes[name] for one in planned if point in one.reached and name in one.sizes}
    top = max(before, default=size)
    rungs, last = list[int](), float(size if pool.listed else top)
    if reached.slots and reached.used:
        last = max(last, size * _uses(reached.slots) / reached.used / _FACTOR)
    for larger in pool.every:
        if larger > top and larger >= last * _FACTOR:
            rungs.append(larger)
            last = larger
    skipped = [one for one in pool.every if one > top and one not in rungs]
    # The largest one is tried at last, where it is near the one before.
    rungs += skipped[-1:] if skipped and (not rungs or skipped[-1] > rungs[-1]) else []
    return [*rungs, *(one for one in pool.sizes if one not in before and one not in rungs)]


def _uses(slots: int) -> int:
    """Return how often the slots of a ring should be used: again, and few slots twice."""
    return slots + 1 if slots > _FEW_SLOTS else 2 * slots + 1


def _changes(seen: Sequence[Seen], way: Way, name: str) -> bool | None:
    """Return whether the size of a dim matters at a point; None if it is not known.

    It is known from two examples that differ in nothing else. It does not matter if one of these is
    much larger.
    """
    examples = [one for one in seen if name in one.sizes]
    verdict = None
    for one, other in combinations(examples, 2):
        small, large = sorted((one.sizes[name], other.sizes[name]))
        if small == large or _rest(one, name) != _rest(other, name):
            continue
        if _effect(one, way) != _effect(other, way):
            return True
        verdict = False if large >= _LEAP * small else verdict
    return verdict


def _rest(example: Seen, name: str) -> Any:
    """Return what an example is besides the size of a dim, and its values."""
    sizes = {dim: size for dim, size in example.sizes.items() if dim != name}
    return sizes, {aspect: word for aspect, word in example.choices.items() if aspect != VALUES}


def _effect(example: Seen, way: Way) -> Any:
    """Return what an example did at a point: how often it went each way.

    More programs that all go one way are no change, unless the trace says what a missing way needs.
    """
    point, missing = way
    reached = example.reached.get(point)
    if reached is None:
        return None
    counts = {name: count for name, count in reached.counts.items() if count}
    total = 1 if missing in reached.needs else sum(counts.values())
    return {name: round(count / total, 6) for name, count in counts.items()}, reached.used


def _cost(seen: Sequence[Seen], goal: Goal) -> int:
    """Return how many steps an example may take: in proportion to the nearest smaller one."""

    def factor(example: Seen) -> float:
        ratio = 1.0
        for name, size in goal.sizes.items():
            ratio *= size / max(1, example.sizes.get(name, size))
        return ratio

    factors = [(factor(one), one.steps) for one in seen if one.choices == goal.choices]
    factors = factors or [(factor(one), one.steps) for one in seen]
    larger = [pair for pair in factors if pair[0] >= 1] or factors
    nearest, steps = min(larger)
    return round(steps * max(nearest, 1.0))


def _reason(growth: Growth, way: Way) -> str:
    """Return why no example went a way."""
    reached = _reached(growth, way)
    if _never_holds(reached, way[1]):
        (thing, axis), sign, value = reached.needs[way[1]]
        return f"no size reaches it, because {_INDICES[thing]} {axis} is never {sign} {value}"
    needs = _need(reached, way[1])
    if way in growth.cut:
        return f"{needs}not reached within {growth.budget:,} steps (--pallas-growth)"
    names = [name for name, pool in growth.pools.items() if len(pool.every) > 1]
    if not names:
        return f"{needs}the strategy has no dims that could grow"
    matter = [name for name in names if _changes(growth.seen, way, name)]
    bounded = matter or [name for name in names if _changes(growth.seen, way, name) is None]
    if not bounded:
        return f"{needs}no size of {' or '.join(names)} changes it"
    return needs + ", ".join(_limit(growth, name) for name in bounded)


#: Numbers that are never negative, by the thing that a way depends on.
_INDICES = {
    "program_id": "the index along grid axis",
    "axis_index": "the index along mesh axis",
    "num_programs": "the number of programs along grid axis",
}


def _reached(growth: Growth, way: Way) -> Reached:
    """Return what all examples reached at the point of a way."""
    point, _ = way
    [reached] = merged([one.reached[point]] for one in growth.seen if point in one.reached)
    return reached


def _never_holds(reached: Reached, way: str) -> bool:
    """Return whether a way needs a negative index, which no program has."""
    (thing, _), sign, value = reached.needs.get(way, (("", 0), "", 0))
    negative = value <= 0 if sign == "<" else value < 0 and sign in ("<=", "==")
    return thing in _INDICES and negative


def _need(reached: Reached, way: str) -> str:
    """Say what a way needs, with a colon, as far as the trace says it; else ""."""
    (thing, number), comparison, value = reached.needs.get(way, (("", 0), "", 0))
    least = max(0, {">=": value + 1, ">": value + 2, "==": value + 1}.get(comparison, 0))
    if thing == "program_id":
        steps = f"{least} or more steps" if least else "other steps"
        return f"needs {steps} along axis {number} of the grid: "
    if thing == "loop" and least:
        return f"needs {least} or more rounds of its loop: "
    return ""


def _limit(growth: Growth, name: str) -> str:
    """Return why no larger size of a dim was tried."""
    pool = growth.pools[name]
    largest = max((one.sizes.get(name, 0) for one in growth.seen), default=0)
    if pool.listed:
        return f"dims= lists no size of {name} that reaches it"
    if name in growth.too_large:
        return f"{name} is at most {largest} (max_elements=, max_bytes=)"
    if pool.high is not None:
        return f"{name} is at most {pool.high} (max_dim=)"
    if name in growth.refused:
        return f"the kernel refuses {name} above {largest}, or needs more memory than the chip has"
    return f"no size of {name} up to {largest} reaches it"
