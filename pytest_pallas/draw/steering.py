"""Choose the integers that a user's own strategies draw: ``Steered``.

Lengths that ``st.lists(st.integers(0, n))`` draws are random numbers, and most mistakes need other
ones: a list that is full, or whose first sequence is empty. So while hypothesis generates, integers
with bounds, booleans and the lengths of lists are choices of the plan (``covering``), too: a number
by where it is in its range, the numbers of a list by a pattern. Strategies of this package make
their own choices, and draw without it (``unsteered``).

Numbers are of a list if they are in a collection of hypothesis, or if one strategy drew several at
the same place of an example. How many of these will come is known from earlier examples.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas.compat.fuzzing import CollectionKind, answered_by

#: Collections of more elements are data, whose numbers are random.
_LONGEST = 256

#: Of up to so many values each is a choice; of more, the ends and edges.
_FEW = 8

#: Numbers from 0 to this or more that are in no list are seeds.
_SEED = 9_999

#: So many examples are remembered.
_REMEMBERED = 64

#: As many choices of one example are made by the plan.
_MOST_ASPECTS = 16

#: Up to so many choices between a few values, at the same place, are choices of their own.
_APART = 4


def unsteered() -> AbstractContextManager[None]:
    """Draw at random inside this context."""
    return answered_by(None)


@dataclass
class SteeringMemory:
    """What the examples so far say about the strategies of users.

    Attributes:
      paths: their numbers.
      counts: how many numbers each drew lately, and what was drawn before them.
      refused: how many more examples with steered numbers were rejected than accepted.
    """

    paths: dict[int, int] = field(default_factory=dict[int, int])
    counts: dict[str, list[tuple[Mapping[Hashable, object], int]]] = field(
        default_factory=dict[str, list[tuple[Mapping[Hashable, object], int]]]
    )
    refused: int = 0


@dataclass
class _Run:
    """Numbers of one list.

    Attributes:
      bounds: of each.
      values: to answer; None for random ones.
      before: what was drawn before.
      count: how many were drawn.
    """

    bounds: tuple[int, int]
    values: Sequence[int] | None
    before: Mapping[Hashable, object] = field(default_factory=dict[Hashable, object])
    count: int = 0

    def answer(self, position: int, bounds: tuple[int, int]) -> int | None:
        if not self.values or bounds != self.bounds:
            return None
        if position < len(self.values):
            return self.values[position]
        return self.values[0] if len(set(self.values)) == 1 else None  # more than were expected


@dataclass
class _Collection:
    """A collection that is being drawn.

    Attributes:
      kind: how hypothesis draws it.
      name: of its aspects.
      depth: the number of spans around its elements.
      count: the number of elements to draw; None if it is not steered.
      width: the number of elements that are a list: all, or those of a row of an array.
      element: the number of the current element.
      column: how many integers of the current element were drawn.
      order: the number of the order in which elements are picked.
      runs: by row and column.
    """

    kind: CollectionKind
    name: str
    depth: int
    count: int | None
    width: int | None
    element: int = -1
    column: int = 0
    order: int = 0
    runs: dict[tuple[int, int], _Run] = field(default_factory=dict[tuple[int, int], _Run])


@dataclass
class _Span:
    """A span of draws: its path, the collection that it is in, and the runs that it has part in."""

    path: int = 0
    inner: _Collection | None = None
    is_element: bool = False
    runs: list[_Run] = field(default_factory=list[_Run])


@dataclass
class Steered:
    """Answers the draws of one example, by the plan.

    Attributes:
      choose: chooses one of some labels for an aspect, which is named; returns its position.
      fixed: returns the choices of the example so far.
      chance: decides about the rest.
      memory: of earlier examples.
      spans: the current span of draws, and those around it.
      loose: the numbers that are in no collection, by path and the number of their bounds there.
      bounds: the bounds of such numbers, by path.
      used: the names of the aspects so far.
      drawn: the numbers in no collection, by name.
      current: the name of the number that is being drawn.
    """

    choose: Callable[[str, Sequence[str]], int]
    fixed: Callable[[], Mapping[Any, object]]
    chance: random.Random
    memory: SteeringMemory
    spans: list[_Span] = field(default_factory=lambda: [_Span()])
    loose: dict[tuple[int, int], _Run] = field(default_factory=dict[tuple[int, int], _Run])
    bounds: dict[int, list[tuple[int, int]]] = field(
        default_factory=dict[int, list[tuple[int, int]]]
    )
    used: set[str] = field(default_factory=set[str])
    drawn: dict[Hashable, object] = field(default_factory=dict[Hashable, object])
    current: str = ""

    def start(self, label: int, *, element: bool) -> None:
        """Start a span; it may be an element of a collection."""
        outer = self.spans[-1]
        inner = outer.inner
        span = _Span(hash((outer.path, label)), inner)
        if inner is not None:
            depth = len(self.spans) - inner.depth
            own = element and depth <= (inner.kind == "unique")
            if own or (inner.kind == "dense" and not depth):
                inner.element += 1
                inner.column = 0
            span.is_element = own
        self.spans.append(span)

    def end(self, *, discarded: bool) -> None:
        """End a span. Draws after discarded ones are random: a filter rejects what is planned."""
        if len(self.spans) == 1:
            return
        span = self.spans.pop()
        for run in span.runs:
            run.values = None if discarded else run.values
        self.spans[-1].runs += span.runs

    def collect(
        self, kind: CollectionKind, least: int, most: float, width: int | None = None
    ) -> None:
        """Begin a collection, and choose how many elements it has."""
        span = self.spans[-1]
        name = self._name(span.path)
        count: int | None = least
        if least > _LONGEST:
            count = None
        elif least < most:
            whole = int(most) if most <= _LONGEST else least + _FEW
            sizes = sorted({least, least + 1, (least + whole) // 2, whole - 1, whole})
            at = self._choose(f"{name} length", ["least", *map(str, sizes[1:])])
            count = None if at is None else sizes[at]
        span.inner = _Collection(kind, name, len(self.spans), count, width)

    def boolean(self) -> bool | None:
        """Answer a boolean as 0 or 1, or whether a collection has another element."""
        span = self.spans[-1]
        if not span.is_element:
            answer = self.integer(0, 1)
            return None if answer is None else bool(answer)
        assert span.inner is not None
        return None if span.inner.count is None else span.inner.element < span.inner.count

    def integer(self, low: int, high: int) -> int | None:
        """Answer an integer: of a list by its pattern, another by where it is in its range."""
        span, bounds = self.spans[-1], (low, high)
        inner = span.inner
        if low >= high:
            return None
        if inner is None:
            return self._loose(span, bounds)
        if inner.count is None:
            return None
        if inner.kind == "sparse" and span.is_element:
            return min(max(inner.element, low), high)  # in turns, so that every element is drawn
        if inner.kind in ("permutation", "picks"):
            return self._order(inner, bounds)
        width = inner.width or inner.count
        row, position = divmod(max(inner.element, 0), max(width, 1))
        column = (row, inner.column)
        inner.column += 1
        if column not in inner.runs:
            names = _PATTERNS_OF_DIFFERENT if inner.kind == "unique" else PATTERNS
            values = self._pattern(f"{inner.name}.{column[1]}", names, width, bounds)
            inner.runs[column] = _Run(bounds, values)
        run = inner.runs[column]
        span.runs.append(run)
        return run.answer(position, bounds)

    def drew(self, number: int) -> None:
        """Record a number, whether it was an answer or random."""
        if self.current:
            self.drawn[self.current] = number
            self.current = ""

    def finish(self) -> None:
        """Remember how many numbers each strategy drew."""
        for (path, ordinal), run in self.loose.items():
            counts = self.memory.counts.setdefault(self._name(path, ordinal), [])
            counts.append((run.before, run.count))
            del counts[:-_REMEMBERED]

    def _expected(self, name: str) -> int:
        """Return how many numbers of a name will come: as many as after the same draws before."""
        counts = self.memory.counts.get(name)
        if not counts:
            return 1
        best, most = self.chance.choice(counts)[1], 1
        for key, value in {**self.fixed(), **self.drawn}.items():
            by_value = dict[object, set[int]]()
            for before, count in counts:
                by_value.setdefault(before.get(key), set()).add(count)
            same = by_value.get(value, ())
            if len(same) == 1 and len(by_value) > most and max(map(len, by_value.values())) == 1:
                [best], most = same, len(by_value)
        return best

    def _loose(self, span: _Span, bounds: tuple[int, int]) -> int | None:
        """Answer an integer that is in no collection."""
        low, high = bounds
        known = self.bounds.setdefault(span.path, [])
        if bounds not in known:
            known.append(bounds)
        key = (span.path, known.index(bounds))
        name = self._name(*key)
        run = self.loose.get(key)
        if run is None:
            count = self._expected(name)
            run = _Run(bounds, None, {**self.fixed(), **self.drawn})
            if 1 < count <= _LONGEST and (count > _APART or high - low >= _FEW):
                run.values = self._pattern(name, PATTERNS, count, bounds)
            self.loose[key] = run
        position = run.count
        run.count += 1
        self.current = f"{name}.{position}"
        span.runs.append(run)
        if run.values is not None:
            return run.answer(position, bounds)
        if high - low < _FEW and position < _APART:
            labels = [f"least+{number}" for number in range(high - low + 1)]
            at = self._choose(self.current, labels)
            return None if at is None else low + at
        several = any(count > 1 for _, count in self.memory.counts.get(name, ()))
        if several or position or (not low and high >= _SEED):
            return None
        at = self._choose(name, [*CLASSES])
        return None if at is None else CLASSES[[*CLASSES][at]](low, high, self.chance)

    def _order(self, inner: _Collection, bounds: tuple[int, int]) -> int | None:
        """Answer a swap of a permutation, or the next one of several to pick: by the order."""
        if not inner.column:
            at = self._choose(inner.name, ["random", "same", "reversed", "rotated"])
            inner.order = self.chance.randrange(4) if at is None else at
        inner.column += 1
        low, high = bounds
        reverse = max(low, high - low) if inner.kind == "permutation" else high
        return (None, low, reverse, high)[inner.order]

    def _pattern(
        self, name: str, names: Mapping[str, Pattern | None], count: int, bounds: tuple[int, int]
    ) -> Sequence[int] | None:
        """Choose the pattern of a list, and return its numbers; None for random ones."""
        if count < 2 and "full" in names:
            name = f"{name} one"
            names = {word: names[word] for word in ("random", "full", "least", "edges")}
        labels = [*names]
        at = self._choose(name, labels)
        if at is None:  # a further list of the same strategy, such as another row
            at = self.chance.randrange(len(labels))
        make = names[labels[at]]
        return None if make is None else make(count, *bounds, self.chance)

    def _name(self, path: int, ordinal: int = 0) -> str:
        """Return a short name for draws, by the strategies that they are in."""
        paths = self.memory.paths
        return f"{paths.setdefault(path, len(paths))}-{ordinal}"

    def _choose(self, name: str, labels: Sequence[str]) -> int | None:
        """Let the plan choose, once for each aspect."""
        if name in self.used or len(self.used) >= _MOST_ASPECTS:
            return None
        self.used.add(name)
        return self.choose(name, labels)


# Numbers at the ends of a range, and at edges of tiles in it.


def edge(low: int, high: int, chance: random.Random, steps: Sequence[int] = (-1, 0, 1)) -> int:
    """Return a number at an edge of a tile, whose size is unknown.

    Tiles are powers of two from 4 on, and a half, a third or a quarter of the largest number. The
    edges are those of the first two tiles, and of the last one.
    """
    tiles = [1 << bits for bits in range(2, min(max(high, 4), 1 << 20).bit_length())]
    tile = chance.choice([*tiles, *(max(1, high // parts) for parts in (2, 3, 4))])
    start = chance.choice((tile, 2 * tile, high // tile * tile))
    return min(max(start + chance.choice(steps), low), high)


#: Where a number is in its range.
CLASSES: dict[str, Callable[[int, int, random.Random], int | None]] = {
    "random": lambda _low, _high, _chance: None,
    "least": lambda low, _high, _chance: low,
    "least+1": lambda low, _high, _chance: low + 1,
    "edge-1": lambda low, high, chance: edge(low, high, chance, (-1,)),
    "edge": lambda low, high, chance: edge(low, high, chance, (0,)),
    "edge+1": lambda low, high, chance: edge(low, high, chance, (1,)),
    "most-1": lambda _low, high, _chance: high - 1,
    "most": lambda _low, high, _chance: high,
}


def _number(low: int, high: int, chance: random.Random) -> int:
    """Return a number at an end, at an edge, or between."""
    kind = chance.randrange(8)
    if kind < 2:
        return (high, high - 1)[kind]
    return edge(low, high, chance) if kind < 6 else chance.randint(low, high)


def _different(count: int, low: int, high: int, chance: random.Random) -> list[int]:
    """Return different numbers, as far as there are so many; the largest is among them."""
    numbers = {high: None}
    for _ in range(4 * count):
        numbers[_number(low, high, chance)] = None
    several = [*numbers][:count]
    if len(several) < min(count, high - low + 1):
        rest = range(low, high + 1)
        more = (number for number in chance.sample(rest, min(len(rest), 2 * count)))
        several += [number for number in more if number not in numbers]
    several = several[:count] + [chance.randint(low, high) for _ in range(count - len(several))]
    chance.shuffle(several)
    return several[:count]


def _with_empty(position: Callable[[int], int]) -> Pattern:
    """Return a pattern with the least number at a position only, and the largest one elsewhere."""

    def make(count: int, low: int, high: int, chance: random.Random) -> list[int]:
        numbers = [max(number, low + 1) for number in _different(count, low, high, chance)]
        numbers[position(count)] = low
        return numbers

    return make


def _single(count: int, low: int, high: int, chance: random.Random) -> list[int]:
    numbers = [low] * count
    numbers[chance.randrange(count)] = max(_number(low, high, chance), low + 1)
    return numbers


def _almost_full(count: int, low: int, high: int, chance: random.Random) -> list[int]:
    numbers = [high] * count
    numbers[chance.randrange(count)] = high - 1
    return numbers


def _edges(count: int, low: int, high: int, chance: random.Random) -> list[int]:
    return [edge(low, high, chance, (1, 1, 0, -1)) for _ in range(count)]


#: Returns the numbers of a list, of a length within bounds.
type Pattern = Callable[[int, int, int, random.Random], list[int]]

#: The patterns of lists; None is random.
PATTERNS: dict[str, Pattern | None] = {
    "random": None,
    "different": _different,
    "up": lambda *request: sorted(_different(*request)),
    "down": lambda *request: sorted(_different(*request), reverse=True),
    "equal": lambda count, *request: [_number(*request)] * count,
    "full": lambda count, _low, high, _chance: [high] * count,
    "almost full": _almost_full,
    "least": lambda count, low, _high, _chance: [low] * count,
    "single": _single,
    "edges": _edges,
    "empty first": _with_empty(lambda _: 0),
    "empty within": _with_empty(lambda count: count // 2),
    "empty last": _with_empty(lambda count: count - 1),
}

_PATTERNS_OF_DIFFERENT = {name: PATTERNS[name] for name in ("random", "different", "up", "down")}
