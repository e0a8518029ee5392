"""Which failures of one check have different causes."""

from types import SimpleNamespace

import numpy as np
import pytest

from pytest_pallas.errors import KernelError, MismatchError, RaceError
from pytest_pallas.findings import Finding
from pytest_pallas.numerics import compare
from pytest_pallas.sampling.causes import cause_of, distinct


def wrong(actual, size=4, subject=""):
    expected = np.ones(size, np.float32)
    failed = compare(np.full(size, actual, np.float32), expected, expected)
    error = MismatchError(str(failed))
    arguments = SimpleNamespace(args=(expected,))
    error.failure = SimpleNamespace(
        finding=SimpleNamespace(failed=failed, subject=subject),
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
        error.kernel_error = inner
        return error


def race(line):
    return RaceError.of(Finding(kind="race", message="at 3", line=line))


@pytest.mark.parametrize(
    ("one", "two", "same"),
    [
        (wrong(2), wrong(3, size=8), True),
        (wrong(2), wrong(np.nan), False),
        (wrong(2), wrong(1.001), False),
        (wrong(2), wrong(2, subject="gradient"), False),
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


def test_there_is_a_limit():
    errors = [wrong(2, subject=each) for each in "abcdef"]
    assert distinct(wrong(2), errors) == errors[:2]
