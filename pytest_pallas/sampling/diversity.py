"""Few examples, but different ones: drawing is cheap, and compiling what was drawn is not."""

from __future__ import annotations

import contextlib
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import hypothesis
import jax
import numpy as np
from hypothesis import HealthCheck, Phase

from pytest_pallas.aspects import Aspect
from pytest_pallas.compat.fuzzing import without_module_constants
from pytest_pallas.strategies.arguments import Arguments, Drawn
from pytest_pallas.strategies.declared import NOTHING, aspects, extents, keyword_word
from pytest_pallas.strategies.value_variants import settle


def pool_size(examples: int) -> int:
    """How many draws to choose ``examples`` from."""
    return max(2 * examples, 64)


#: After so many draws in a row with nothing that no earlier one has, there is nothing more to draw.
_SETTLED = 24


#: What a value seen for the first time is worth, by the role of its aspect (see
#: ``strategies.declared``): options and dtypes are few and hide bugs in their combinations. A new
#: kind of boundary counts, and a new size of the same kind hardly.
_WORTH = {"option": 4.0, "tuning": 2.0, "dtype": 3.0, "values": 2.0, "dim": 2.0}
_SIZE, _OTHER = 0.1, 1.0

#: How many choices of ``BASE`` examples to compare, and rounds of exchange in each; two or three
#: rounds are usual.
_STARTS, _ROUNDS = 32, 8

#: So many examples are chosen together, and fewer are the first of those: checks that ask about
#: fewer share the compiled kernels of the others (but see ``_first``).
BASE = 8

#: Bytes of draws that a pool keeps; what is beyond is drawn again if it is chosen.
MOST_BYTES = 2**27

#: So few examples are what they are: one of them is not given away for its size.
_FEW = 3

#: So many times more is drawn where draws of three dims or more never have several tiles of each.
_FURTHER = 4

#: Specs whose draws are kept: items come spec by spec, but not always.
SOURCES = 3

#: What there is to ask about a draw.
type Subjects = Callable[[Any], Collection[Hashable]]

#: What each feature is worth: a choice, ``(name, word)``, or a pair of choices.
Features = Mapping[Any, float]


@dataclass(frozen=True)
class Choice:
    """Examples by their words (``words_of``).

    Attributes:
      chosen: what was chosen, with the drawn values.
    """

    chosen: Mapping[str, Any]


@dataclass(frozen=True)
class Pool:
    """What was drawn with one seed.

    Attributes:
      features: of each draw.
      values: the draws, of which large ones may be missing.
      size: how many draws were allowed.
      extents: how far each draw goes beyond its tiles; see ``strategies.declared.extents``.
      tiled: whether the sizes of a dim are chosen around tiles.
      base: by number, so many examples that have most together.
    """

    features: Mapping[str, Features]
    values: Mapping[str, Any]
    size: int
    extents: Mapping[str, frozenset[str]]
    tiled: bool
    base: dict[int, list[str]] = field(default_factory=dict[int, list[str]])


@dataclass
class Source:
    """Chooses examples of one strategy, which checks and backends share: it is drawn from once."""

    strategy: Any
    pools: OrderedDict[tuple[int, int], Pool] = field(
        default_factory=OrderedDict[tuple[int, int], Pool]
    )

    def pool(self, seed: int, examples: int) -> Pool:
        """What is drawn to choose ``examples`` from: ``pool_size(examples)`` draws at most.

        ``_FURTHER`` times as many if none of these has several of the tiles along every dim.
        """
        key = (seed, pool_size(examples))
        pool = self.pools.pop(key, None)
        if pool is None:
            pool = _pool(self.strategy, *key)
            if pool.tiled and not any(pool.extents.values()):
                pool = _pool(self.strategy, seed, _FURTHER * key[1])
        self.pools[key] = pool
        if len(self.pools) > 2:
            self.pools.popitem(last=False)
        return pool

    def choose(self, seed: int, examples: int, subjects: Subjects | None = None) -> Choice:
        """Choose the ``examples`` of a pool that differ most.

        Greedily: the next is the one with most that no chosen one has. Then each is exchanged for
        whatever has more beside the others, until nothing has: so that a handful of examples meets
        every boundary of every dim. With a seed, hypothesis draws the same again.

        Args:
          seed: of the draws.
          examples: how many to choose.
          subjects: what there is to ask about a draw: of those that all examples are chosen from,
            the ones with most that is new come first, and none without any.
        """
        pool = self.pool(seed, examples)
        count = min(max(examples, BASE), len(pool.features))
        if count not in pool.base:
            pool.base[count] = _most_varied(pool.features, count)
        chosen = _extended(_first(pool.features, pool.base[count], examples), pool.extents)
        values = dict(pool.values)
        if not values.keys() >= set(chosen):
            _draw(self.strategy, seed, pool.size, values.setdefault)
        if subjects is not None:
            order = dict.fromkeys([*chosen, *pool.base[count], *pool.features])
            kept = [words for words in order if words in values]
            told = {words: frozenset(subjects(values[words])) for words in kept}
            chosen = _telling(told, examples) or chosen
        return Choice({words: values[words] for words in chosen})


def shared(sources: dict[Any, Source], key: Hashable, strategy: Any) -> Source:
    """The source of a spec: the one that earlier checks of it used, of the last few specs."""
    source = sources.pop(key, None) or Source(strategy)
    sources[key] = source
    while len(sources) > SOURCES:
        del sources[next(iter(sources))]
    return source


def choose(strategy: Any, *, seed: int, examples: int) -> Choice:
    """``Source.choose`` for whoever chooses once."""
    return Source(strategy).choose(seed, examples)


def _pool(strategy: Any, seed: int, size: int) -> Pool:
    """Draw, and keep what is small: a pool may hold as much as all its draws."""
    features: dict[str, Features] = {}
    values: dict[str, Any] = {}
    beyond: dict[str, frozenset[str]] = {}
    tiled = False
    kept = 0

    def add(words: str, drawn: Any) -> None:
        nonlocal kept, tiled
        if words in features:
            return
        features[words] = dict(_features(drawn))
        if _tiled(drawn):
            tiled, beyond[words] = True, extents(drawn)
        kept += sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(_args(drawn)))
        if kept <= MOST_BYTES:
            values[words] = drawn

    _draw(strategy, seed, size, add)
    return Pool(features, values, size, beyond, tiled)


class _Enough(BaseException):
    """Ends drawing. Hypothesis takes an ``Exception`` for a failure of the test."""


def _draw(strategy: Any, seed: int, size: int, add: Callable[[str, Any], object]) -> None:
    """Draw ``size`` times, or until all that is declared was drawn and draws bring nothing new.

    One of them also has several of the tiles along every dim, where there are tiles.
    """
    seen: set[Any] = set()
    idle = 0
    beyond = False

    @hypothesis.settings(
        max_examples=size,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @hypothesis.seed(seed)
    @hypothesis.given(drawn=strategy)
    def collect(**example: Any) -> None:
        nonlocal idle, beyond
        drawn = example["drawn"]
        settle(drawn)
        add(words_of(drawn), drawn)
        features = {feature for feature, _ in _features(drawn)}
        idle = 0 if features - seen or not features else idle + 1
        seen.update(features)
        beyond = beyond or not _tiled(drawn) or bool(extents(drawn))
        if idle >= _SETTLED and beyond and seen.issuperset(_declared(drawn)):
            raise _Enough

    with without_module_constants(), contextlib.suppress(_Enough):
        collect()


def _tiled(drawn: Any) -> bool:
    """Whether the sizes of a dim are chosen around tiles."""
    return bool((getattr(drawn, "declared", None) or NOTHING).tiles)


def _declared(drawn: Any) -> Iterator[tuple[str, str]]:
    """All that draws of a strategy may have, as far as that is known."""
    declared = getattr(drawn, "declared", None) or NOTHING
    for aspect, words in declared.words.items():
        yield from ((str(aspect), word) for word in words)


def _args(drawn: Any) -> Any:
    """The positional arguments of what was drawn, as a pytree."""
    return tuple(drawn) if isinstance(drawn, Drawn) else getattr(drawn, "args", drawn)


def _first(drawn: Mapping[str, Features], base: Sequence[str], examples: int) -> list[str]:
    """So many of the ``base``; of half of it or more, the last is one with what the base lacks."""
    chosen = _greedy({words: drawn[words] for words in base}, min(examples, len(base)))
    if len(base) <= 2 * len(chosen) < 2 * len(base):
        seen = {feature for words in base for feature in drawn[words]}
        other = max(drawn, key=lambda words: _gain(drawn[words], seen))
        if _gain(drawn[other], seen) >= _OTHER:  # a new size of a known kind is not worth a compile
            chosen[-1] = other
    return chosen


def _extended(chosen: list[str], beyond: Mapping[str, frozenset[str]]) -> list[str]:
    """The chosen examples, the last of which goes beyond its tiles if no other one does.

    Kernels are wrong at the second block and at the edge of the last one, along every axis at once.
    A few examples of different sizes along each axis need not have that.
    """
    met = frozenset[str]().union(*(beyond.get(words, frozenset()) for words in chosen))
    further = max(beyond, key=lambda words: len(beyond[words] - met), default="")
    if len(chosen) < _FEW or not further or beyond[further] <= met:
        return chosen
    return [*chosen[:-1], further]


def _telling(told: Mapping[str, frozenset[Any]], examples: int) -> list[str]:
    """So many examples of which there is most to ask, in the given order where all is the same."""
    left = [words for words in told if told[words]]
    chosen: list[str] = []
    seen = frozenset[Any]()
    while left and len(chosen) < examples:
        best = max(left, key=lambda words: len(told[words] - seen))
        left.remove(best)
        chosen.append(best)
        seen |= told[best]
    return chosen


def _most_varied(drawn: Mapping[str, Features], examples: int) -> list[str]:
    """So many examples that have most together; the best of a few choices begun differently."""
    every = _worth(drawn, drawn)
    best: list[str] = []
    for first in list(drawn)[: max(1, _STARTS * BASE // examples)]:  # many meet all anyway
        chosen = _greedy(drawn, examples, first) if best else _greedy(drawn, examples)
        chosen = _exchanged(drawn, chosen)
        if not best or _worth(drawn, chosen) > _worth(drawn, best):
            best = chosen
        if _worth(drawn, best) == every:
            break
    return _paired(drawn, best)


def _paired(drawn: Mapping[str, Features], chosen: list[str]) -> list[str]:
    """The chosen examples, where one has nothing that the rest lacks replaced.

    What replaces it has most pairs that no other one has together, such as a dtype with an option:
    pairwise testing (Mandl, "Orthogonal Latin squares", Communications of the ACM 28, 1985).
    """
    pairs = {
        words: dict.fromkeys(combinations(features, 2), 1.0) for words, features in drawn.items()
    }
    for position, words in enumerate(chosen):
        rest = chosen[:position] + chosen[position + 1 :]
        if _gain(drawn[words], {feature for other in rest for feature in drawn[other]}):
            continue
        seen = {pair for other in rest for pair in pairs[other]}
        chosen[position] = _best(pairs, rest, seen)
    return chosen


def _worth(drawn: Mapping[str, Features], chosen: Iterable[str]) -> float:
    """What examples are worth together."""
    together = {feature: worth for words in chosen for feature, worth in drawn[words].items()}
    return sum(together[feature] for feature in sorted(together))


def _greedy(drawn: Mapping[str, Features], examples: int, *first: str) -> list[str]:
    """Examples one after the other, each with most that is new."""
    chosen = list(first)
    seen = {feature for words in first for feature in drawn[words]}
    for _ in range(examples - len(first)):
        best = _best(drawn, chosen, seen)
        chosen.append(best)
        seen.update(drawn[best])
    return chosen


def _exchanged(drawn: Mapping[str, Features], chosen: list[str]) -> list[str]:
    """The chosen examples, each replaced where another one has more that is new beside the rest."""
    for _ in range(_ROUNDS):
        before = list(chosen)
        for position, words in enumerate(chosen):
            rest = chosen[:position] + chosen[position + 1 :]
            seen = {feature for other in rest for feature in drawn[other]}
            best = _best(drawn, rest, seen)
            if _gain(drawn[best], seen) > _gain(drawn[words], seen):
                chosen[position] = best
        if chosen == before:
            break
    return chosen


def _best(drawn: Mapping[str, Features], chosen: Collection[str], seen: Collection[Any]) -> str:
    """The example with most that was not seen, of those that are not chosen."""
    left = [words for words in drawn if words not in chosen]
    return max(left, key=lambda words: _gain(drawn[words], seen))


def _gain(features: Features, seen: Collection[Any]) -> float:
    return sum(worth for feature, worth in features.items() if feature not in seen)


def words_of(call: Any) -> str:
    """A call in words that tell it from every other call of its strategy."""
    if "seed" in getattr(call, "recipe", ()):
        return repr(call)
    number = 0
    for leaf in jax.tree.leaves(_args(call)):
        if isinstance(leaf, (np.ndarray, jax.Array)) and not _is_key(leaf):
            number = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), number)
    return f"{call!r} {number:08x}"


def _is_key(leaf: Any) -> bool:
    return jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _features(drawn: object) -> Iterator[tuple[tuple[str, str], float]]:
    """What an example has, and what each is worth."""
    if not isinstance(drawn, (Arguments, Drawn)):
        return
    for aspect, word in aspects(drawn):
        yield (str(aspect), word), _WORTH[aspect.role]
    kinds = (drawn.declared or NOTHING).kinds
    for name, value in drawn.recipe.items():
        if name not in ("seed", "dtype", "values"):
            yield (name, str(value)), _SIZE if name in kinds else _OTHER
    if isinstance(drawn, Arguments):  # what is not a choice between a few
        for role, keywords in (("option", drawn.options), ("tuning", drawn.tuning)):
            for name, value in keywords.items():
                yield (str(Aspect(role, name)), keyword_word(value)), _WORTH[role]
