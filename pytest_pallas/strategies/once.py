"""``draw_once`` and ``draw_several``: a few examples of a strategy, to inspect it."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import hypothesis
from hypothesis import HealthCheck

from pytest_pallas.budget import max_bytes
from pytest_pallas.compat.fuzzing import without_module_constants
from pytest_pallas.strategies.arguments import Arguments, as_arguments
from pytest_pallas.strategies.sizes.learned import current_probe


def draw_once(strategy: Any) -> Arguments:
    """One example of a strategy, always the same."""
    return draw_several(strategy, 1)[0]


def draw_several(strategy: Any, most: int) -> Sequence[Arguments]:
    """Up to so many examples of a strategy, always the same; cached for the last few strategies."""
    draw = _draw if current_probe() is not None else _kept
    return draw(strategy, most, max_bytes())


def _draw(strategy: Any, most: int, budget: int) -> Sequence[Arguments]:
    del budget  # strategies need it
    drawn: list[Any] = []

    @hypothesis.settings(
        max_examples=most,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=[
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
            HealthCheck.filter_too_much,
        ],
    )
    @hypothesis.given(strategy)
    def draw(value: Any) -> None:
        drawn.append(value)

    with without_module_constants():
        draw()
    return [as_arguments(each) for each in drawn]


_kept = functools.lru_cache(maxsize=4)(_draw)
