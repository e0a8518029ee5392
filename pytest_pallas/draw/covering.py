"""Draw examples in which every pair of choices comes together: ``Covering``.

An example makes choices: a dtype, a kind of size along each dim, a class of values, options, tuning
parameters. Most bugs need one choice or two together, seldom three (Kuhn, Wallace and Gallo,
"Software fault interactions and implications for software testing", IEEE TSE 30, 2004). So each
example is made of the choices that bring the most new pairs, one choice after the other: by the
pairs with the choices already made, and by the share of pairs that are open with those to come
(Bryce and Colbourn, "The density algorithm for pairwise interaction testing", STVR 17, 2007).

Strategies ask the plan while hypothesis generates (``choose``, ``Covering.sizes``), and hypothesis
records the answers as choices of its own: shrinking, the database and replays know no plan.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any

from hypothesis import strategies as st
from hypothesis.errors import InvalidArgument
from hypothesis.strategies import DrawFn, SearchStrategy

from pytest_pallas.compat.fuzzing import answered_by, answering, sampled_elements
from pytest_pallas.draw.sizes import SizePool, exceeding
from pytest_pallas.draw.steering import Steered, SteeringMemory
from pytest_pallas.errors import SpecError
from pytest_pallas.record import Aspect

#: Limit on the number of alternatives that are known one by one.
MOST = 24

#: As many rows of sizes are made, and as many of the table are looked at, to take the best. Up to
#: ``_EVERY_ROW`` rows in all, every one is looked at.
_ROWS, _EVERY_ROW = 8, 64

#: A list is an aspect of its own as often in a call; further ones are drawn at random.
_LISTS = 2

#: What a new way to exceed tiles is worth, in pairs.
_NEW_EXTENT = 40.0

#: What an example costs besides its tiles, in tiles.
_TILES = 8.0

#: One of so many draws without a plan is an expensive one; in a plan it comes after these shapes.
_SELDOM, _USUAL_FIRST = 64, 6

#: After so many more rejected than accepted examples, a plan steers users' strategies rarely.
_REFUSED, _RARELY = 3, 4

#: The role of what users' own strategies draw, and the number of alternatives whose pairs count
#: more than that all come.
_OWN, _FEW = "own", 4

#: What a pair is worth that came once before.
_AGAIN = 0.1

#: What a new triple of options and tuning is worth, in pairs, and the roles of these.
_NEW_TRIPLE, _OPTIONS = 0.5, ("option", "tuning")

#: A choice: an aspect and a word for its value.
type Choice = tuple[Aspect, str]

#: The numbers of two choices, the smaller first.
type Pair = tuple[int, int]

#: The numbers of three choices, the smallest first.
type Triple = tuple[int, int, int]


@dataclass(frozen=True)
class Goal:
    """What an example is to be, as far as its strategy can draw it.

    Attributes:
      sizes: of dims, by name.
      choices: words, by aspect.
    """

    sizes: Mapping[str, int]
    choices: Mapping[Aspect, str]


@dataclass(repr=False)
class Covering:
    """The choices of all examples so far, and of the one that is being drawn.

    Attributes:
      random: decides between equal choices.
      domain: the words of each aspect, as far as they are known.
      numbers: of the choices.
      pairs: how often pairs of choices came together, by their numbers.
      triples: the options and tuning that came together, three by three.
      tries: how often pairs were to come together, and could not or were rejected.
      met: the choices of all examples, with how often they came.
      shapes: the sizes of all examples.
      extents: how examples exceeded tiles; see ``sizes.exceeding``.
      fixed: the choices of the current example.
      followed: whether hypothesis has drawn what the plan chose, so far in the current example.
      tiled: whether a dim has tiles; then the simplest example is none of the pool, and counts not.
      shares: the shares of pairs with an aspect that are open, as far as they were computed.
      goal: what the example is to be, before all pairs; None for every pair.
      pools: the sizes of dims, as far as they are known.
      too_large: whether the last sizes were too large for the arrays.
      seldom: whether an example was an expensive one.
      memory: of the strategies of users; see ``steering``.
    """

    random: random.Random
    goal: Goal | None = None
    domain: dict[Aspect, dict[str, None]] = field(default_factory=dict[Aspect, dict[str, None]])
    numbers: dict[Choice, int] = field(default_factory=dict[Choice, int])
    pairs: Counter[Pair] = field(default_factory=Counter[Pair])
    triples: set[Triple] = field(default_factory=set[Triple])
    tries: Counter[Pair] = field(default_factory=Counter[Pair])
    met: Counter[Choice] = field(default_factory=Counter[Choice])
    shapes: set[tuple[tuple[str, int], ...]] = field(
        default_factory=set[tuple[tuple[str, int], ...]]
    )
    extents: set[str] = field(default_factory=set[str])
    fixed: dict[Aspect, str] = field(default_factory=dict[Aspect, str])
    followed: bool = True
    tiled: bool = False
    shares: dict[int, dict[Aspect, float]] = field(default_factory=dict[int, dict[Aspect, float]])
    pools: dict[str, SizePool] = field(default_factory=dict[str, SizePool])
    too_large: bool = False
    seldom: bool = False
    memory: SteeringMemory = field(default_factory=SteeringMemory)

    def end(self, *, accepted: bool) -> None:
        """End the current example, and begin the next one."""
        if self.followed or not self.tiled:
            (self.pairs if accepted else self.tries).update(self._pairs(self.fixed.items()))
            self.met.update(self.fixed.items() if accepted else ())
            self.triples.update(self._triples(self.fixed) if accepted else ())
        self.fixed.clear()
        self.followed = True
        self.shares.clear()

    def position(self, aspect: Aspect, labels: Sequence[str]) -> int:
        """Choose one of the labels for an aspect of the current example; returns its position."""
        self.domain.setdefault(aspect, {}).update(dict.fromkeys(labels))
        chosen = None if self.goal is None else self.goal.choices.get(aspect)
        return labels.index(chosen) if chosen in labels else self._best(aspect, labels, self.fixed)

    def steer(self, name: str, labels: Sequence[str]) -> int:
        """Choose one of the labels for what a user's own strategy draws; returns its position.

        No label comes much more often than others. Of many, all come once before one comes again.
        """
        aspect = Aspect(_OWN, name)
        most = min(self.met[aspect, word] for word in labels) + 2 * (len(labels) <= _FEW)
        open_labels = [word for word in labels if self.met[aspect, word] <= most]
        label = open_labels[self.position(aspect, open_labels)]
        self.fixed[aspect] = label
        return labels.index(label)

    def together(self, choices: Sequence[Mapping[Aspect, str]]) -> int:
        """Choose some words together: those that no example had first; returns their position."""
        for labels in choices:
            for aspect, word in labels.items():
                self.domain.setdefault(aspect, {})[word] = None

        aims = {} if self.goal is None else self.goal.choices

        def worth(position: int) -> tuple[int, int, float, float]:
            several = choices[position].items()
            aimed = sum(aims.get(aspect) == word for aspect, word in several)
            new = sum(choice not in self.met for choice in several)
            pairs = sum(self._worth(choice, {}) for choice in several)
            return aimed, new, pairs, self.random.random()

        return max(range(len(choices)), key=worth)

    def numbered(self, aspect: Aspect) -> Aspect | None:
        """Return the aspect of a list with the number of such lists so far; None for too many."""
        for number in range(1, _LISTS + 1):
            own = aspect if number == 1 else Aspect(aspect.role, f"{aspect.name} {number}")
            if own not in self.fixed:
                return own
        return None

    def sizes(
        self,
        pools: Mapping[str, SizePool],
        labels: Mapping[str, Sequence[str]],
        fits: Callable[[Mapping[str, int]], bool],
        table: Sequence[Sequence[int]],
    ) -> Sequence[int] | None:
        """Choose the sizes of the dims of the current example.

        Args:
          pools: of each dim, the sizes that it may have.
          labels: the kind of each.
          fits: whether sizes satisfy all constraints.
          table: positions of sizes that fit.

        Returns:
          The position of each dim's size; None if no sizes were found that fit.
        """
        aspects = {name: Aspect("dim", name) for name in pools}
        for name, aspect in aspects.items():
            self.domain.setdefault(aspect, {}).update(dict.fromkeys(labels[name]))
        names = list(pools)
        tiles = _tiles(pools)
        self.tiled |= bool(tiles)
        best, most = None, (False, 0, -1.0)
        counts = [len(pool.sizes) for pool in pools.values()]
        rows = [self._row(aspects, labels, pools) for _ in range(_ROWS)]
        rows += self.random.sample(table, len(table))
        if math.prod(counts) <= _EVERY_ROW:
            rows += product(*map(range, counts))
        for number, row in enumerate(rows):
            if most[0] and number >= 2 * _ROWS:
                break
            chosen = {name: pools[name].sizes[at] for name, at in zip(names, row, strict=True)}
            if not fits(chosen):
                tried = [(aspects[n], labels[n][at]) for n, at in zip(names, row, strict=True)]
                self.tries.update(self._pairs(tried))
                continue
            fixed = dict(self.fixed)
            new = 0
            worth = self.random.random() * 1e-3
            for name, at in zip(names, row, strict=True):
                choice = (aspects[name], labels[name][at])
                worth += self._worth(choice, fixed)
                fixed[choice[0]] = choice[1]
                new += choice not in self.met
            worth += _NEW_EXTENT * len(exceeding(chosen, tiles) - self.extents)
            worth /= _TILES + math.prod(map(_tiles_of, pools.values(), chosen.values()))
            score = tuple(chosen.items()) not in self.shapes, new, worth
            if score > most:
                best, most = row, score
        return best

    def fix_sizes(
        self,
        pools: Mapping[str, SizePool],
        labels: Mapping[str, Sequence[str]],
        positions: Sequence[int],
    ) -> None:
        """Add the sizes of the current example."""
        at_of = dict(zip(pools, positions, strict=True))
        self.fixed.update((Aspect("dim", name), labels[name][at]) for name, at in at_of.items())
        if self.followed or not self.tiled:
            sizes = {name: pools[name].sizes[at] for name, at in at_of.items()}
            self.shapes.add(tuple(sizes.items()))
            self.extents.update(exceeding(sizes, _tiles(pools)))

    def _row(
        self,
        aspects: Mapping[str, Aspect],
        labels: Mapping[str, Sequence[str]],
        pools: Mapping[str, SizePool],
    ) -> Sequence[int]:
        """Choose positions of sizes: dim by dim the best one by its tiles, in a random order."""
        fixed, row = dict(self.fixed), dict[str, int]()
        for name in self.random.sample([*aspects], len(aspects)):
            tiles = [1 + _tiles_of(pools[name], size) for size in pools[name].sizes]
            row[name] = self._best(aspects[name], labels[name], fixed, tiles)
            fixed[aspects[name]] = labels[name][row[name]]
        return [row[name] for name in aspects]

    def _best(
        self,
        aspect: Aspect,
        labels: Sequence[str],
        fixed: Mapping[Aspect, str],
        costs: Sequence[float] | None = None,
    ) -> int:
        """Return the position of the label that is worth the most, by its cost."""
        worth = {word: self._worth((aspect, word), fixed) for word in dict.fromkeys(labels)}

        def score(at: int) -> tuple[bool, float, float]:
            cost = 1.0 if costs is None else costs[at]
            new = costs is not None and (aspect, labels[at]) not in self.met
            return new, worth[labels[at]] / cost, self.random.random()

        return max(range(len(labels)), key=score)

    def _worth(self, choice: Choice, fixed: Mapping[Aspect, str]) -> float:
        """Return the new pairs of a choice: those with fixed ones, and the share of the rest.

        What users' own strategies will draw is unknown: it may depend on this choice.
        """
        number = self._number(choice)
        shares = self._shares(number)
        worth = sum(shares.values()) - shares.get(choice[0], 0.0)
        for aspect, word in fixed.items():
            if aspect != choice[0]:
                worth += self._open(number, self._number((aspect, word))) - shares.get(aspect, 0)
        if choice[0].role in _OPTIONS:
            others = {aspect: word for aspect, word in fixed.items() if aspect != choice[0]}
            new = self._triples(others | {choice[0]: choice[1]}) - self._triples(others)
            worth += _NEW_TRIPLE * len(new - self.triples)
        return worth

    def _shares(self, number: int) -> Mapping[Aspect, float]:
        """Return the share of pairs of a choice that are open, by the other aspect."""
        shares = self.shares.setdefault(number, {})
        if len(shares) < sum(aspect.role != _OWN for aspect in self.domain):
            for aspect, labels in self.domain.items():
                if aspect.role == _OWN:
                    continue
                numbers = [self._number((aspect, word)) for word in labels]
                shares[aspect] = sum(self._open(number, n) for n in numbers) / len(labels)
        return shares

    def _open(self, number: int, other: int) -> float:
        """Return what a pair is worth: less if it came before, or could not be had."""
        pair = (number, other) if number < other else (other, number)
        count = self.pairs.get(pair, 0)
        return _AGAIN / count if count else 1 / (1 + self.tries.get(pair, 0))

    def _number(self, choice: Choice) -> int:
        return self.numbers.setdefault(choice, len(self.numbers))

    def _triples(self, choices: Mapping[Aspect, str]) -> set[Triple]:
        """Return the triples of options and tuning."""
        chosen = [choice for choice in choices.items() if choice[0].role in _OPTIONS]
        return set(combinations(sorted(map(self._number, chosen)), 3))

    def _pairs(self, choices: Iterable[Choice]) -> Iterable[Pair]:
        return combinations(sorted(map(self._number, choices)), 2)


def _tiles_of(pool: SizePool, size: int) -> float:
    """Return how many tiles a size has; 1 in a pool without tiles."""
    return max(1.0, size / max(pool.tiles)) if pool.tiles else 1.0


def _tiles(pools: Mapping[str, SizePool]) -> Mapping[str, Sequence[int]]:
    """Return the tiles of dims that have some."""
    return {name: pool.tiles for name, pool in pools.items() if pool.tiles}


_COVERING: ContextVar[Covering | None] = ContextVar("covering", default=None)


def current_covering() -> Covering | None:
    """Return the plan of the example that is being drawn, or None."""
    return _COVERING.get()


@st.composite
def planned(draw: DrawFn, strategy: SearchStrategy[Any], covering: Covering) -> Any:
    """Return a strategy whose choices a plan makes, as far as hypothesis generates."""
    token = _COVERING.set(covering)
    accepted = False
    # A strategy that rejects what is planned has random numbers most of the time.
    memory = covering.memory
    steers = memory.refused < _REFUSED or not covering.random.randrange(_RARELY)
    steered = (
        Steered(covering.steer, lambda: covering.fixed, covering.random, memory) if steers else None
    )
    try:
        with answered_by(steered):
            drawn = draw(strategy)
        accepted = True
        if steered is not None:
            steered.finish()
    finally:
        if steered is not None and steered.used:
            memory.refused = max(0, memory.refused + (-1 if accepted else 1))
        covering.end(accepted=accepted)
        _COVERING.reset(token)
    return drawn


def alternatives(strategy: Any) -> tuple[Any, ...]:
    """Return the choices of a strategy; empty if they are not known, or more than ``MOST``."""
    elements = sampled_elements(strategy)
    return () if elements is None or len(elements) > MOST else tuple(elements)


def some(name: str, strategy: Any) -> Any:
    """Return a strategy that can draw something.

    Raises:
      SpecError: it cannot, for which hypothesis would reject the whole draw; or it is invalid.
    """
    try:
        empty = strategy.is_empty
    except InvalidArgument as error:
        raise SpecError(f"{name}: the strategy cannot be used: {error}") from error
    if empty:
        raise SpecError(f"{name}: the strategy {strategy!r:.80} can draw nothing; give it a value")
    return strategy


def choose(draw: DrawFn, strategy: Any, aspect: Aspect, word: Callable[[Any], str]) -> Any:
    """Draw from a strategy; of a few alternatives, the plan chooses.

    Args:
      draw: of the strategy around it.
      strategy: to draw from.
      aspect: what is chosen.
      word: returns the word of a value.
    """
    values = alternatives(some(f"{aspect.role} {aspect.name}".strip(), strategy))
    if len(values) < 2:
        return draw(strategy)
    covering = current_covering()
    positions = st.sampled_from(range(len(values)))
    if covering is None:
        return values[draw(positions)]
    labels = [word(value) for value in values]
    chosen = covering.position(aspect, labels)
    with answering(chosen):
        position = draw(positions)
    covering.followed &= position == chosen
    covering.fixed[aspect] = labels[position]
    return values[position]


def draw_once_in_a_while(draw: DrawFn) -> bool:
    """Draw whether this is the one example of a plan that is expensive; not one of the first."""
    covering = current_covering()
    positions = st.sampled_from(range(_SELDOM))
    if covering is None:
        return draw(positions) == _SELDOM - 1
    now = covering.goal is None and not covering.seldom and len(covering.shapes) >= _USUAL_FIRST
    with answering(_SELDOM - 1 if now else 0):
        drawn = draw(positions) == _SELDOM - 1
    covering.seldom |= drawn
    return drawn


def choose_together(draw: DrawFn, choices: Sequence[Mapping[Aspect, str]]) -> int:
    """Draw the position of words of several aspects."""
    covering = current_covering()
    positions = st.sampled_from(range(len(choices)))
    if covering is None:
        return draw(positions)
    chosen = covering.together(choices)
    with answering(chosen):
        position = draw(positions)
    covering.followed &= position == chosen
    covering.fixed.update(choices[position])
    return position


def kind_of_list(draw: DrawFn, name: str, kinds: Sequence[str]) -> str:
    """Draw the kind of a list, such as lengths; a kind may be given several times."""
    covering = current_covering()
    aspect = None if covering is None else covering.numbered(Aspect("list", name))
    if covering is None or aspect is None:
        return draw(st.sampled_from(kinds))
    chosen = covering.position(aspect, kinds)
    with answering(chosen):
        kind = draw(st.sampled_from(kinds))
    covering.followed &= kind == kinds[chosen]
    covering.fixed[aspect] = kind
    return kind
