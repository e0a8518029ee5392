"""Outputs of which only a part is here: that part is judged, by the scale of the whole."""

import numpy as np
import pytest

from pytest_pallas.judge.judgement import compare
from pytest_pallas.judge.tolerance import Tolerance

RNG = np.random.default_rng(0)
ORACLE = RNG.standard_normal((8, 16))
BASELINE = ORACLE.astype(np.float32)
HERE = np.zeros((8, 16), np.bool_)
HERE[4:] = True


def part(change: float = 0.0, at=(5, 3)):
    """The lower half, and nothing above it."""
    actual = np.where(HERE, BASELINE, 0).astype(np.float32)
    actual[at] += change
    return actual


def test_what_is_not_here_is_not_judged():
    assert not compare(part(), ORACLE, BASELINE).passed
    assert compare(part(), ORACLE, BASELINE, present=HERE).passed
    assert compare(part(1.0, (0, 0)), ORACLE, BASELINE, present=HERE).passed


@pytest.mark.parametrize("exact", [False, True])
def test_what_is_here_is_judged_at_its_place_in_the_whole(exact):
    found = compare(part(1.0), ORACLE, BASELINE, exact=exact, present=HERE)
    assert not found.passed
    assert found.worst_index == (5, 3)
    assert found.wrong == 1
    assert "wrong in 1 of 64 elements of this process" in found.message


def test_the_scale_is_that_of_the_whole():
    oracle = np.where(HERE, ORACLE * 1e-6, ORACLE)
    baseline = oracle.astype(np.float32)
    small = np.float32(np.finfo(np.float32).eps)
    actual = np.where(HERE, baseline + small, 0).astype(np.float32)
    assert compare(actual, oracle, baseline, present=HERE).passed
    alone = (actual[4:], oracle[4:], baseline[4:])
    assert not compare(*alone).passed


def test_the_root_mean_square_is_that_of_what_is_here():
    """Errors that are few of the whole are many of a small part."""
    few = np.zeros((64, 64), np.bool_)
    few[0] = True
    oracle = np.sign(RNG.standard_normal((64, 64))) * 1.5
    baseline = oracle.astype(np.float32)
    error = 6 * np.finfo(np.float32).eps
    actual = np.where(few, baseline * (1 + error), baseline).astype(np.float32)
    whole = compare(actual, oracle, baseline)
    found = compare(actual, oracle, baseline, present=few)
    assert found.error >= whole.error


def test_integers():
    expected = np.arange(128).reshape(8, 16)
    actual = np.where(HERE, expected, 0)
    assert compare(actual, expected, expected, present=HERE).passed
    actual[7, 0] += 1
    found = compare(actual, expected, expected, present=HERE)
    assert (found.passed, found.worst_index, found.wrong) == (False, (7, 0), 1)


def test_nan_where_nothing_is_here_is_no_error():
    actual = np.where(HERE, BASELINE, np.nan).astype(np.float32)
    assert compare(actual, ORACLE, BASELINE, present=HERE).passed
    actual[6, 6] = np.nan
    assert compare(actual, ORACLE, BASELINE, present=HERE).kind == "class"


def test_nothing_here_passes():
    nothing = np.zeros((8, 16), np.bool_)
    assert compare(part(), ORACLE, BASELINE, present=nothing).passed


def test_a_fraction_is_that_of_what_is_here():
    actual = part(1.0)
    tolerance = Tolerance(fraction=1 / 100)
    assert not compare(actual, ORACLE, BASELINE, tolerance=tolerance, present=HERE).passed
    tolerance = Tolerance(fraction=1 / 64)
    assert compare(actual, ORACLE, BASELINE, tolerance=tolerance, present=HERE).passed
