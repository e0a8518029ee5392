"""Which failures of one check have different causes."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from pallas_sim.errors import KernelError
from pallas_sim.findings import Finding
from pytest_pallas import MismatchError, RaceError
from pytest_pallas.backends.protocol import Outcome
from pytest_pallas.checks.context import CheckResult
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import facts_of
from pytest_pallas.judge.judgement import compare
from pytest_pallas.run.causes import ANOTHER, SIMILAR, cause_of, distinct, title_of


def wrong(actual, size=4, output=0, outputs=1, runs=1, **options):
    """An error of the last of some runs of a kernel with some outputs."""
    expected = np.ones(size, np.float32)
    right = compare(expected, expected, expected)
    failed = compare(np.full(size, actual, np.float32), expected, expected)
    last = [right] * output + [failed] + [right] * (outputs - output - 1)
    error = MismatchError(str(failed))
    arguments = Arguments((expected,), options)
    facts_of(error).failure = SimpleNamespace(
        result=CheckResult(
            comparisons=[*[right] * outputs * (runs - 1), *last],
            outcome=Outcome(values=[expected] * outputs),
        ),
        context=SimpleNamespace(arguments=arguments),
    )
    return error


def raised(line):
    try:
        if line:
            raise ValueError("m = 8")
        raise ValueError("m = 16")
    except ValueError as inner:
        error = KernelError("the kernel raised")
        facts_of(error).kernel_error = inner
        return error


def race(line):
    return RaceError.of(Finding(kind="race", message="at 3", line=line))


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (wrong(2), wrong(3, size=8), True),
        (wrong(2), wrong(np.nan), False),
        (wrong(2), wrong(1.001), False),
        (wrong(2, outputs=2), wrong(2, output=1, outputs=2), False),
        (wrong(2, outputs=2), wrong(3, outputs=2, runs=3), True),
        (raised(True), raised(True), True),
        (raised(True), raised(False), False),
        (race("k.py:3"), race("k.py:3"), True),
        (race("k.py:3"), race("k.py:4"), False),
        (race("k.py:3"), wrong(2), False),
    ],
)
def test_causes(one, two, same):
    assert (cause_of(one) == cause_of(two)) == same


def test_of_each_other_cause_the_smallest():
    first, same, nan, small = wrong(2), wrong(5), wrong(np.nan, size=8), wrong(np.nan)
    assert distinct(first, [first, same, nan, small]) == [small]
    assert distinct(nan, [nan, small]) == []


def test_the_worst_of_several_wrong_outputs_is_no_cause():
    first, second = wrong(2, outputs=2), wrong(3, outputs=2)
    for error, worst in ((first, 0), (second, 1)):
        result = facts_of(error).failure.result
        failed = [result.failed, replace(result.failed, error=9e9)]
        order = failed if worst else failed[::-1]
        facts_of(error).failure.result = replace(result, comparisons=order)
    assert distinct(first, [first, second]) == []


def test_a_failure_that_looks_different_may_have_the_same_cause():
    first, nan = wrong(2, causal=False), wrong(np.nan, causal=False)
    assert distinct(first, [first, nan]) == [nan]
    assert title_of(nan) == SIMILAR


def test_an_option_that_decides_what_fails_shows_another_cause():
    first, nan = wrong(2, causal=False), wrong(np.nan, causal=True)
    assert distinct(first, [first, nan]) == [nan]
    assert title_of(nan) == ANOTHER
    again = wrong(2, causal=True)
    assert distinct(first, [first, nan, again]) == [nan]
    assert title_of(nan) == SIMILAR


def races(*lines, size=4):
    error = RaceError.of(*(Finding(kind="race", message="", line=line) for line in lines))
    facts_of(error).failure = SimpleNamespace(
        result=None, context=SimpleNamespace(arguments=Arguments((np.ones(size),)))
    )
    return error


def test_failures_with_a_finding_in_common_have_one_cause():
    first, more, other = races("k:3", "k:4"), races("k:3", "k:4", "k:5"), races("k:7")
    assert distinct(first, [first, more, other, races("k:5")]) == [other]
    assert distinct(first, [races("k:5"), more]) == []
    smaller = races("k:7", "k:8", size=2)
    assert distinct(first, [other, races("k:9"), smaller])[0] is smaller
    assert len(distinct(first, [other, races("k:9"), smaller])) == 2


def test_there_is_a_limit():
    errors = [wrong(2, output=number, outputs=8) for number in range(8)]
    assert distinct(wrong(np.nan, outputs=8), errors) == errors[:2]
