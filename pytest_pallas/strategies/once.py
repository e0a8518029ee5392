"""``draw_once``: one example of a strategy, to see what it is like."""

from __future__ import annotations

from typing import Any

import hypothesis
from hypothesis import HealthCheck

from pytest_pallas import compat
from pytest_pallas.strategies.arguments import Arguments, as_arguments


def draw_once(strategy: Any) -> Arguments:
    """One example of a strategy, always the same."""
    drawn: list[Any] = []

    @hypothesis.settings(
        max_examples=1,
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

    with compat.without_module_constants():
        draw()
    return as_arguments(drawn[0])
