"""Select few, diverse examples from many draws: drawing is cheap, compiling is not."""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import hypothesis
import jax
import numpy as np
from hypothesis import HealthCheck, Phase
from hypothesis.errors import FailedHealthCheck, Unsatisfiable

from pytest_pallas.budget import LastUsed
from pytest_pallas.compat.fuzzing import without_module_constants
from pytest_pallas.draw.arguments import (
    NOTHING,
    Arguments,
    Declared,
    Drawn,
    aspects,
    extents,
    keyword_word,
    mark_drawn,
    mesh_aspects,
)
from pytest_pallas.errors import SpecError
from pytest_pallas.record import Aspect


def pool_size(examples: int) -> int:
    """Return the number of draws from which to select ``examples``."""
    return max(2 * examples, 64)


#: Drawing stops after this many draws in a row without a new feature.
_IDLE = 24


#: Weight of a new value, by the role of its aspect (see ``draw.arguments.Declared``): there are few
#: options and dtypes, and bugs hide in their combinations. A new kind of boundary counts more than
#: a new size of the same kind, and a new number of devices more than all else.
_WORTH = {"option": 4.0, "tuning": 2.0, "dtype": 3.0, "values": 2.0, "dim": 2.0, "mesh": 64.0}
_SIZE, _OTHER = 0.1, 1.0

#: Number of selections of ``BASE`` examples to compare, and the limit on exchange rounds in each;
#: two or three rounds are usual.
_STARTS, _ROUNDS = 32, 8

#: Number of examples that are selected together; fewer are the first of those, so that checks with
#: fewer examples share the compiled kernels of the others (but see ``_first``).
BASE = 8

#: Bytes of draws that a pool keeps; others are drawn again if they are selected.
MOST_BYTES = 2**27

#: With at most this many examples, none is replaced by a larger one.
_FEW = 3

#: Factor for more draws, if no draw has several tiles along every dim.
_FURTHER = 4

#: Number of specs whose draws are kept: items usually come spec by spec.
SOURCES = 3

#: The parts of a check that apply to a draw; see ``Check.subjects``.
type Subjects = Callable[[Any], Collection[Hashable]]

#: Weight of each feature: a choice, ``(name, word)``, or a pair of choices.
Features = Mapping[Any, float]


#: The axes of the drawn mesh of each draw, with the words of their sizes.
type Devices = Mapping[str, frozenset[Any]]


@dataclass(frozen=True)
class DrawPool:
    """The draws of one seed.

    Attributes:
      features: of each draw.
      values: the draws, of which large ones may be missing.
      size: the number of draws allowed.
      extents: how each draw exceeds its tiles; see ``draw.arguments.extents``.
      devices: the drawn mesh of each draw, as ``draw.arguments.mesh_aspects`` gives it.
      tiled: whether the sizes of a dim are chosen around tiles.
      base: by number of examples, the most diverse selection.
    """

    features: Mapping[str, Features]
    values: Mapping[str, Any]
    size: int
    extents: Mapping[str, frozenset[str]]
    devices: Devices
    tiled: bool
    base: dict[int, list[str]] = field(default_factory=dict[int, list[str]])


@dataclass
class ExampleSource:
    """Selects examples of one strategy, which checks and backends share: it draws only once."""

    strategy: Any
    pools: LastUsed[DrawPool] = field(default_factory=lambda: LastUsed(2))

    def pool(self, seed: int, examples: int) -> DrawPool:
        """Return the draws from which to select ``examples``: at most ``pool_size(examples)``.

        ``_FURTHER`` times as many if none of these has several tiles along every dim.
        """
        key = (seed, pool_size(examples))
        pool = self.pools.get(key)
        if pool is None:
            pool = _pool(self.strategy, *key)
            if pool.tiled and not any("several" in ways for ways in pool.extents.values()):
                pool = _pool(self.strategy, seed, _FURTHER * key[1])
            self.pools.add(key, pool)
        return pool

    def choose(
        self, seed: int, examples: int, subjects: Subjects | None = None
    ) -> Mapping[str, Any]:
        """Select the most diverse ``examples`` of a pool, by their names (``draw_name``).

        Greedy: the next example is the one with the most new features. Then each example is
        exchanged for one that adds more features to the rest, until no exchange helps, so that a
        few examples cover every boundary of every dim. The same seed draws the same examples.

        Args:
          seed: of the draws.
          examples: the number of examples.
          subjects: returns the parts of the check that apply to a draw. Draws with the most new
            parts come first; draws without any are left out.
        """
        pool = self.pool(seed, examples)
        count = min(max(examples, BASE), len(pool.features))
        if count not in pool.base:
            pool.base[count] = _most_varied(pool.features, count)
        chosen = _first(pool.features, pool.base[count], examples, pool.devices)
        chosen = _extended(chosen, pool.extents, pool.devices)
        values = dict(pool.values)
        if not values.keys() >= set(chosen):
            _draw(self.strategy, seed, pool.size, values.setdefault)
        if subjects is not None:
            order = dict.fromkeys([*chosen, *pool.base[count], *pool.features])
            kept = [name for name in order if name in values]
            parts = {name: frozenset(subjects(values[name])) for name in kept}
            chosen = _most_parts(parts, examples, pool.devices) or chosen
        return {name: values[name] for name in chosen}


def shared(
    sources: dict[Any, ExampleSource], key: Hashable, make: Callable[[], Any]
) -> ExampleSource:
    """Return the source of a spec that its earlier checks used; only the last few are kept.

    ``make`` makes its strategy.
    """
    source = sources.pop(key, None) or ExampleSource(make())
    sources[key] = source
    while len(sources) > SOURCES:
        del sources[next(iter(sources))]
    return source


def choose(strategy: Any, *, seed: int, examples: int) -> Mapping[str, Any]:
    """Select examples as ``ExampleSource.choose`` does, once."""
    return ExampleSource(strategy).choose(seed, examples)


def _pool(strategy: Any, seed: int, size: int) -> DrawPool:
    """Draw, and keep the small draws."""
    features: dict[str, Features] = {}
    values: dict[str, Any] = {}
    devices: dict[str, frozenset[Any]] = {}
    beyond: dict[str, frozenset[str]] = {}
    tiled = False
    kept = 0

    def add(name: str, drawn: Any) -> None:
        nonlocal kept, tiled
        if name in features:
            return
        features[name] = dict(_features(drawn))
        devices[name] = frozenset(mesh_aspects(drawn))
        if _declared(drawn).tiles:
            tiled, beyond[name] = True, extents(drawn)
        kept += sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(_args(drawn)))
        if kept <= MOST_BYTES:
            values[name] = drawn

    _draw(strategy, seed, size, add)
    return DrawPool(features, values, size, beyond, devices, tiled)


class _StopDrawing(BaseException):
    """Ends drawing. Not an ``Exception``, which Hypothesis would report as a failure."""


def _draw(strategy: Any, seed: int, size: int, add: Callable[[str, Any], object]) -> None:
    """Draw ``size`` times, or until everything declared was drawn and draws add nothing new.

    If there are tiles, one draw has several along every dim; if there are sizes for the buffers
    of the kernel, one has such a size.

    Raises:
      SpecError: the strategy filters out almost all draws.
    """
    seen: set[Any] = set()
    ways: set[str] = set()
    idle = 0

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
        nonlocal idle
        drawn = example["drawn"]
        mark_drawn(drawn)
        add(draw_name(drawn), drawn)
        features = {feature for feature, _ in _features(drawn)}
        idle = 0 if features - seen or not features else idle + 1
        seen.update(features)
        needed: set[str] = set()
        if _declared(drawn).tiles:
            ways.update(extents(drawn))
            needed = {"several", "deep"} if _declared(drawn).deep else {"several"}
        declared = _declared(drawn).choices.items()
        declared_features = {
            (str(aspect), word) for aspect, several in declared for word in several
        }
        if idle >= _IDLE and needed <= ways and declared_features <= seen:
            raise _StopDrawing

    try:
        with without_module_constants(), contextlib.suppress(_StopDrawing):
            collect()
    except (FailedHealthCheck, Unsatisfiable) as error:
        raise SpecError(
            "the inputs strategy gives too few examples: it filters out almost all draws. Draw "
            "what is needed, by multiple_of=, dims= or constraints such as 'm n; m <= n', in place "
            "of .filter() and assume()"
        ) from error


def _declared(drawn: Any) -> Declared:
    """Return the choices of the strategy of a draw, as far as they are known."""
    return getattr(drawn, "declared", None) or NOTHING


def _args(drawn: Any) -> Any:
    """Return the positional arguments of a draw, as a pytree."""
    return tuple(drawn) if isinstance(drawn, Drawn) else getattr(drawn, "args", drawn)


def _first(
    drawn: Mapping[str, Features], base: Sequence[str], examples: int, devices: Devices
) -> list[str]:
    """So many of the base; of half of it or more, the last one adds a missing feature."""
    chosen = _greedy({name: drawn[name] for name in base}, min(examples, len(base)))
    if len(base) <= 2 * len(chosen) < 2 * len(base):
        seen = {feature for name in base for feature in drawn[name]}
        other = max(drawn, key=lambda name: _gain(drawn[name], seen))
        if _gain(drawn[other], seen) >= _OTHER:  # a new size is not worth a compilation
            chosen = _with_last(chosen, other, devices)
    return chosen


def _with_last(chosen: list[str], name: str, devices: Devices) -> list[str]:
    """Replace the last example without which each number of devices is still there, if any."""
    needed = frozenset[Any]().union(*(devices[one] for one in chosen))
    for position in reversed(range(len(chosen))):
        rest = [*chosen[:position], *chosen[position + 1 :], name]
        if needed <= frozenset[Any]().union(*(devices[one] for one in rest)):
            return rest
    return chosen


def _extended(
    chosen: list[str], beyond: Mapping[str, frozenset[str]], devices: Devices
) -> list[str]:
    """Replace the last of the selected examples by one with several tiles, if no other has several.

    Kernels fail at the second block and at the edge of the last one, along every axis at once. A
    few examples of different sizes need not include such a case.
    """
    met = frozenset[str]().union(*(beyond.get(name, frozenset()) for name in chosen))
    further = max(beyond, key=lambda name: len(beyond[name] - met), default="")
    if len(chosen) < _FEW or not further or beyond[further] <= met:
        return chosen
    return _with_last(chosen, further, devices)


def _most_parts(parts: Mapping[str, frozenset[Any]], examples: int, devices: Devices) -> list[str]:
    """Return the examples with the most numbers of devices, and the most parts of the check.

    They are in the given order if all are equal.
    """
    left = [name for name in parts if parts[name]]
    chosen: list[str] = []
    seen, met = frozenset[Any](), frozenset[Any]()
    while left and len(chosen) < examples:
        best = max(left, key=lambda name: (len(devices[name] - met), len(parts[name] - seen)))
        left.remove(best)
        chosen.append(best)
        seen |= parts[best]
        met |= devices[best]
    return chosen


def _most_varied(drawn: Mapping[str, Features], examples: int) -> list[str]:
    """Return the most diverse examples: the best of a few selections with different starts."""
    every = _worth(drawn, drawn)
    best: list[str] = []
    for first in list(drawn)[: max(1, _STARTS * BASE // examples)]:  # many cover everything
        chosen = _greedy(drawn, examples, first) if best else _greedy(drawn, examples)
        chosen = _exchanged(drawn, chosen)
        if not best or _worth(drawn, chosen) > _worth(drawn, best):
            best = chosen
        if _worth(drawn, best) == every:
            break
    return _paired(drawn, best)


def _paired(drawn: Mapping[str, Features], chosen: list[str]) -> list[str]:
    """Replace selected examples that add nothing to the rest.

    Its replacement has the most new pairs of features, such as a dtype with an option: pairwise
    testing (Mandl, "Orthogonal Latin squares", Communications of the ACM 28, 1985).
    """
    pairs = {
        name: dict.fromkeys(combinations(features, 2), 1.0) for name, features in drawn.items()
    }
    for position, name in enumerate(chosen):
        rest = chosen[:position] + chosen[position + 1 :]
        if _gain(drawn[name], {feature for other in rest for feature in drawn[other]}):
            continue
        seen = {pair for other in rest for pair in pairs[other]}
        chosen[position] = _best(pairs, rest, seen)
    return chosen


def _worth(drawn: Mapping[str, Features], chosen: Iterable[str]) -> float:
    """Return the total weight of examples."""
    together = {feature: worth for name in chosen for feature, worth in drawn[name].items()}
    return sum(together[feature] for feature in sorted(together))


def _greedy(drawn: Mapping[str, Features], examples: int, *first: str) -> list[str]:
    """Return examples in order, each with the most new features."""
    chosen = list(first)
    seen = {feature for name in first for feature in drawn[name]}
    for _ in range(examples - len(first)):
        best = _best(drawn, chosen, seen)
        chosen.append(best)
        seen.update(drawn[best])
    return chosen


def _exchanged(drawn: Mapping[str, Features], chosen: list[str]) -> list[str]:
    """Exchange selected examples for others that add more to the rest."""
    for _ in range(_ROUNDS):
        before = list(chosen)
        for position, name in enumerate(chosen):
            rest = chosen[:position] + chosen[position + 1 :]
            seen = {feature for other in rest for feature in drawn[other]}
            best = _best(drawn, rest, seen)
            if _gain(drawn[best], seen) > _gain(drawn[name], seen):
                chosen[position] = best
        if chosen == before:
            break
    return chosen


def _best(drawn: Mapping[str, Features], chosen: Collection[str], seen: AbstractSet[Any]) -> str:
    """Return the unselected example with the most new features."""
    left = [name for name in drawn if name not in chosen]
    return max(left, key=lambda name: _gain(drawn[name], seen))


def _gain(features: Features, seen: AbstractSet[Any]) -> float:
    if features.keys() <= seen:  # most draws add nothing to a selection
        return 0.0
    return sum(worth for feature, worth in features.items() if feature not in seen)


def draw_name(call: Any) -> str:
    """Name a call, differently from all other calls of its strategy."""
    if "seed" in getattr(call, "recipe", ()):
        return repr(call)
    number = 0
    for leaf in jax.tree.leaves(_args(call)):
        if isinstance(leaf, np.ndarray) or (
            isinstance(leaf, jax.Array)
            and not jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        ):
            number = zlib.crc32(np.ascontiguousarray(leaf).tobytes(), number)
    return f"{call!r} {number:08x}"


def _features(drawn: object) -> Iterator[tuple[tuple[str, str], float]]:
    """Yield the features of an example and their weights."""
    if not isinstance(drawn, (Arguments, Drawn)):
        return
    for aspect, word in aspects(drawn):
        yield (str(aspect), word), _WORTH[aspect.role]
    kinds = _declared(drawn).kinds
    for name, value in drawn.recipe.items():
        if name not in ("seed", "dtype", "values"):
            yield (name, str(value)), _SIZE if name in kinds else _OTHER
    if isinstance(drawn, Arguments):  # not a choice between a few words
        for role, keywords in (("option", drawn.options), ("tuning", drawn.tuning)):
            for name, value in keywords.items():
                yield (str(Aspect(role, name)), keyword_word(value)), _WORTH[role]
