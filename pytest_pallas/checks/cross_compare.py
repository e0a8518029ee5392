"""Whether two right answers are near each other: one takes the oracle's place."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pytest_pallas.checks.context import CheckContext
from pytest_pallas.numerics import Comparison, Noise, compare_trees, is_exact, wide
from pytest_pallas.numerics.precision import Precision
from pytest_pallas.oracle.expected import Expected, Later, Leaves


def apart(
    context: CheckContext, here: str, there: str, mine: Leaves, theirs: Leaves, expected: Expected
) -> list[Comparison]:
    """Judge one answer by another, which has the error of the baseline about it.

    Args:
      context: whose rule of judgement holds.
      here: what the first is called in messages.
      there: what the second is called.
      mine: the first, by path.
      theirs: the second; both have the paths and shapes of ``expected``, or it is said.
      expected: of both.
    """
    oracle, baseline = dict(expected.oracle), dict(expected.baseline)
    center: Leaves = []
    around: Leaves = []
    for path, values in theirs:
        values = wide(values)
        center.append((path, values))
        with np.errstate(all="ignore"):
            spread = 0 if is_exact(values.dtype) else wide(baseline[path]) - wide(oracle[path])
            around.append((path, values + np.where(np.isfinite(spread), spread, 0)))
    name = f"{here} against {there}"
    return compare_trees(
        named(mine, name),
        named(center, name),
        named(around, name),
        tolerance=context.tolerance,
        depth=expected.depth,
        sensitivity=Later(lambda: dict(named(list(expected.sensitivity.items()), name))),
        noise=named_noise(expected, name),
        precision=named_precision(expected, name),
        check_dtype=False,  # what is wide has another, and both were judged
        explained=context.explained,
    )


def named_noise(expected: Expected, name: str) -> Callable[[str], Noise | None]:
    """The noise of each output by the name that it has beside ``name``."""
    paths = dict(named([(path, path) for path, _ in expected.oracle], name))
    return lambda words: expected.noise(paths[words])


def named_precision(expected: Expected, name: str) -> Callable[[str], Precision | None]:
    """Where the oracle of each output leaves float64, by the name that it has beside ``name``."""
    return dict(named(list(expected.precision.items()), name)).get


def named[T](leaves: Sequence[tuple[str, T]], name: str) -> list[tuple[str, T]]:
    """Leaves by what messages call them."""
    return [(f"{path or 'output'} of {name}", leaf) for path, leaf in leaves]
