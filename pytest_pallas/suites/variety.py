"""Few examples, but different ones: drawing is cheap, and compiling what was drawn is not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import HealthCheck, Phase

from pytest_pallas.strategies.arguments import Arguments, Drawn


def pool_size(examples: int) -> int:
    """How many draws to choose ``examples`` from."""
    return max(4 * examples, 24)


#: What a value seen for the first time is worth: options and dtypes are few and hide bugs in their
#: combinations; a new size of a dim is easily had.
_WORTH = {"options": 4.0, "tuning": 2.0, "dtype": 3.0, "values": 2.0}
_DIM = 1.0


@dataclass(frozen=True)
class Choice:
    """Examples by their ``repr``.

    Attributes:
      everything: everything that was drawn.
      chosen: what was chosen of it, with the drawn values.
    """

    everything: frozenset[str]
    chosen: Mapping[str, Any]


def choose(strategy: Any, *, seed: int, examples: int) -> Choice:
    """Draw ``pool_size(examples)`` times and choose ``examples`` that differ most.

    Greedily: the next is the one with most that no chosen one has. With a seed, hypothesis draws
    the same again, so the test that runs them leaves out what was not chosen.

    Args:
      strategy: draws the examples.
      seed: seed of the draws.
      examples: how many to choose.
    """
    drawn: dict[str, Mapping[tuple[str, str], float]] = {}
    values: dict[str, Any] = {}

    @hypothesis.settings(
        max_examples=pool_size(examples),
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @hypothesis.seed(seed)
    @hypothesis.given(drawn=strategy)
    def collect(**example: Any) -> None:
        words = repr(example["drawn"])
        drawn.setdefault(words, dict(_features(example["drawn"])))
        values.setdefault(words, example["drawn"])

    collect()
    left, chosen = dict(drawn), list[str]()
    seen: set[tuple[str, str]] = set()
    while left and len(chosen) < examples:
        best = max(left, key=lambda words: sum(w for f, w in left[words].items() if f not in seen))
        chosen.append(best)
        seen.update(left.pop(best))
    return Choice(frozenset(drawn), {words: values[words] for words in chosen})


def _features(drawn: object) -> Iterator[tuple[tuple[str, str], float]]:
    """What an example has, and what each is worth."""
    if isinstance(drawn, Arguments):
        for kind in ("options", "tuning"):
            for name, value in getattr(drawn, kind).items():
                yield (name, str(value)), _WORTH[kind]
    if isinstance(drawn, (Arguments, Drawn)):
        for name, value in drawn.recipe.items():
            if name != "seed":
                yield (name, str(value)), _WORTH.get(name, _DIM)
