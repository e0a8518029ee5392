"""Select the examples of a check: draws that cover every pair of choices (``covering``)."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Collection, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import hypothesis
import jax
import numpy as np
from hypothesis import HealthCheck, Phase
from hypothesis.strategies import SearchStrategy

from pytest_pallas.budget import LastUsed
from pytest_pallas.compat.fuzzing import PLANNED, planning, without_module_constants
from pytest_pallas.draw.arguments import (
    Arguments,
    Drawn,
    as_arguments,
    aspects,
    mark_drawn,
    mesh_aspects,
)
from pytest_pallas.draw.arrays import strategy_errors
from pytest_pallas.draw.covering import Covering, Goal, planned

#: Draws for each example of a check that has parts; those with new parts are run.
FOR_PARTS = 2

#: Draws of the smallest pool. Smaller pools are the first draws of larger ones, so that checks with
#: fewer examples share the compiled kernels of the others.
LEAST = 16

#: Limit on the draws with a goal, of which the second is made by it.
AIMS = 4

#: Stop drawing after so many draws in a row that are no new example.
_IDLE = 24

#: Bytes of draws that a pool keeps; others are drawn again if they are selected.
MOST_BYTES = 2**27

#: Number of specs whose draws are kept: items usually come spec by spec.
SOURCES = 3

#: The parts of a check that apply to a draw; see ``Check.subjects``.
type Subjects = Callable[[Any], Collection[Hashable]]


@dataclass(frozen=True)
class DrawPool:
    """The draws of one seed.

    Attributes:
      names: of the draws, in order; see ``draw_name``.
      values: the draws by name; large ones may be missing.
      size: the number of draws allowed.
      pairs: how many pairs of choices came together, after each draw.
      choices: how many choices came, after each draw.
    """

    names: list[str]
    values: Mapping[str, Any]
    size: int
    pairs: list[int]
    choices: list[int]

    def first(self, size: int) -> DrawPool:
        """Return the pool of fewer draws: they are the first ones."""
        return DrawPool(
            self.names[:size], self.values, size, self.pairs[:size], self.choices[:size]
        )


@dataclass
class ExampleSource:
    """Draws examples of one strategy, which checks and backends share: it draws only once."""

    strategy: Any
    pools: LastUsed[DrawPool] = field(default_factory=lambda: LastUsed(2))

    def pool(self, seed: int, draws: int) -> DrawPool:
        """Return the pool of a seed with so many draws, or more."""
        size = LEAST
        while size < draws:
            size *= 2
        if (larger := self.pools.get((seed, 2 * size))) is not None:
            return larger.first(size)
        pool = self.pools.get((seed, size))
        if pool is None:
            pool = _pool(self, seed, size)
            self.pools.add((seed, size), pool)
        return pool

    def planned(self, seed: int, covering: Covering | None = None) -> SearchStrategy[Any]:
        """Return the strategy with the plan by which the pools of a seed are drawn."""
        return planned(self.strategy, covering or Covering(random.Random(seed)))

    def aimed(self, seed: int, goal: Goal) -> tuple[Any, Covering]:
        """Draw an example that is what a goal says; None if the strategy draws no such sizes.

        Of several, the one that has most of its choices: some may not go with others. The plan by
        which it was drawn has what is known of the strategy.
        """
        covering = Covering(random.Random(seed), goal)
        drawn: list[tuple[int, Any]] = []

        def collect(**example: Any) -> None:
            mark_drawn(example["drawn"])
            arguments = as_arguments(example["drawn"])
            if any(arguments.recipe.get(name) != size for name, size in goal.sizes.items()):
                return
            chosen = dict(aspects(arguments))
            others = sum(chosen.get(aspect, word) != word for aspect, word in goal.choices.items())
            drawn.append((others, example["drawn"]))
            if not others:
                raise _StopDrawing

        with suppress(Exception):  # whatever the strategy says of such a draw
            _generate(planned(self.strategy, covering), seed, AIMS, collect)
        return min(drawn, key=lambda one: one[0], default=(0, None))[1], covering

    def choose(
        self, seed: int, examples: int, subjects: Subjects | None = None, usual: int | None = None
    ) -> Mapping[str, Any]:
        """Return ``examples`` draws by their names (``draw_name``); the same for the same seed.

        Args:
          seed: of the draws.
          examples: the number of examples.
          subjects: returns the parts of the check that apply to a draw. Draws with the most new
            parts come first; draws without any are left out.
          usual: how many come in any case; after these, only draws with new pairs of choices.
        """
        pool = self.pool(seed, draws_for(examples, subjects))
        usual = examples if usual is None else usual
        chosen = [
            name
            for at, name in enumerate(pool.names[:examples])
            if at < usual or pool.pairs[at] > pool.pairs[at - 1]
        ]
        values = self._values(pool, seed, chosen)
        if subjects is not None:
            kept = [name for name in pool.names if name in values]
            parts = {name: frozenset(subjects(values[name])) for name in kept}
            devices = {name: frozenset(mesh_aspects(values[name])) for name in kept}
            chosen = _most_parts(parts, examples, devices) or chosen
        return {name: values[name] for name in chosen}

    def _values(self, pool: DrawPool, seed: int, names: Collection[str]) -> Mapping[str, Any]:
        if pool.values.keys() >= set(names):
            return pool.values
        values = dict(pool.values)
        _draw(self, seed, pool.size, values.setdefault)
        return values


def draws_with_all(pool: DrawPool, draws: int) -> int:
    """Return how many draws of a pool have all choices that the first ``draws`` have."""
    choices = pool.choices[:draws]
    return choices.index(choices[-1]) + 1 if choices else 0


def draws_for(examples: int, subjects: Subjects | None) -> int:
    """Return the number of draws from which examples are selected."""
    return examples if subjects is None else FOR_PARTS * examples


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
    """Draw examples as ``ExampleSource.choose`` does, once."""
    return ExampleSource(strategy).choose(seed, examples)


def _pool(source: ExampleSource, seed: int, size: int) -> DrawPool:
    """Draw, and keep the small draws."""
    values: dict[str, Any] = {}
    pool = DrawPool([], values, size, [], [])
    covering = Covering(random.Random(seed))
    kept = 0

    def add(name: str, drawn: Any) -> None:
        nonlocal kept
        pool.names.append(name)
        pool.pairs.append(len(covering.pairs))
        pool.choices.append(len(covering.met))
        kept += sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(_args(drawn)))
        if kept <= MOST_BYTES:
            values[name] = drawn

    _draw(source, seed, size, add, covering)
    return pool


class _StopDrawing(BaseException):
    """Ends drawing. Not an ``Exception``, which Hypothesis would report as a failure."""


def _draw(
    source: ExampleSource,
    seed: int,
    size: int,
    add: Callable[[str, Any], object],
    covering: Covering | None = None,
) -> None:
    """Draw different examples, ``size`` in all or fewer if there are no more.

    Raises:
      SpecError: the strategy raises, or filters out almost all draws.
    """
    names: set[str] = set()
    small: list[tuple[str, Any]] = []
    idle, first = 0, True

    def collect(**example: Any) -> None:
        nonlocal idle, first
        drawn = example["drawn"]
        mark_drawn(drawn)
        name = draw_name(drawn)
        # Hypothesis begins with the simplest example, whatever the plan is: one tile at most.
        if first and getattr(getattr(drawn, "declared", None), "tiles", None):
            small.append((name, drawn))
            first = False
            return
        first = False
        idle += 1
        if name not in names:
            names.add(name)
            add(name, drawn)
            idle = 0
        if len(names) >= size or idle >= _IDLE:
            raise _StopDrawing

    with strategy_errors(source.strategy):
        _generate(source.planned(seed, covering), seed, most_draws(size), collect)
    for name, drawn in small:
        if name not in names and len(names) < size:
            add(name, drawn)


def _generate(
    strategy: SearchStrategy[Any], seed: int, most: int, collect: Callable[..., None]
) -> None:
    """Let hypothesis draw up to ``most`` examples of a planned strategy."""
    given = hypothesis.seed(seed)(hypothesis.given(drawn=strategy)(collect))
    with planning(), without_module_constants(), suppress(_StopDrawing):
        hypothesis.settings(
            max_examples=most,
            database=None,
            deadline=None,
            phases=[Phase.generate],
            report_multiple_bugs=False,
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            backend=PLANNED,
        )(given)()


def most_draws(size: int) -> int:
    """Return the limit on the draws for ``size`` different ones."""
    return 4 * size


def _args(drawn: Any) -> Any:
    """Return the positional arguments of a draw, as a pytree."""
    return tuple(drawn) if isinstance(drawn, Drawn) else getattr(drawn, "args", drawn)


def _most_parts(
    parts: Mapping[str, frozenset[Any]], examples: int, devices: Mapping[str, frozenset[Any]]
) -> list[str]:
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


def goal_of(arguments: Arguments) -> Goal:
    """Return the goal of examples with the sizes and choices of a call."""
    draws = [arguments, *(arg for arg in arguments.args if isinstance(arg, Drawn))]
    sizes = {
        name: size
        for draw in draws
        for name, size in draw.recipe.items()
        if type(size) is int and name != "seed"
    }
    choices = {
        aspect: word for draw in draws for aspect, word in aspects(draw) if aspect.role != "dim"
    }
    return Goal(sizes, choices)


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
