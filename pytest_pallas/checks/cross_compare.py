"""Compare two right outputs with each other: one of them is the oracle of the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from pytest_pallas.checks.context import CheckContext
from pytest_pallas.numerics import Comparison, Noise, compare_trees, is_exact, wide
from pytest_pallas.numerics.precision import FLOAT32_BITS, Precision
from pytest_pallas.oracle.expected import Expected, LazyMapping, Leaves


def apart(
    context: CheckContext, here: str, there: str, mine: Leaves, theirs: Leaves, expected: Expected
) -> list[Comparison]:
    """Compare one output with another, whose error is taken to be that of the baseline.

    Args:
      context: has the tolerance.
      here: name of the first output in messages.
      there: name of the second output.
      mine: the first output, by path.
      theirs: the second output. A comparison fails where its paths or shapes differ from
        ``expected``.
      expected: the expected values of both.
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
        sensitivity=LazyMapping(lambda: dict(named(list(expected.sensitivity.items()), name))),
        noise=named_noise(expected, name),
        precision=named_precision(expected, name),
        check_dtype=False,  # what is wide has another, and both were judged
        explained=context.explained,
    )


def coarser(one: Expected, other: Expected) -> Expected:
    """The expected values of one call whose products have the lower precision."""
    return min(one, other, key=lambda each: each.products.bits if each.products else FLOAT32_BITS)


def named_noise(expected: Expected, name: str) -> Callable[[str], Noise | None]:
    """The noise of each output, by its name together with ``name``."""
    paths = dict(named([(path, path) for path, _ in expected.oracle], name))
    return lambda words: expected.noise(paths[words])


def named_precision(expected: Expected, name: str) -> Callable[[str], Precision | None]:
    """Where the oracle of each output leaves float64, by its name together with ``name``."""
    return dict(named(list(expected.precision.items()), name)).get


def named[T](leaves: Sequence[tuple[str, T]], name: str) -> list[tuple[str, T]]:
    """Leaves by their names in messages."""
    return [(f"{path or 'output'} of {name}", leaf) for path, leaf in leaves]
