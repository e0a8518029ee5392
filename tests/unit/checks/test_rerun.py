"""``checks.rerun``: which differences between two runs are only roundings."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pytest_pallas.backends.protocol import Outcome
from pytest_pallas.checks.metamorphic import unchanged

FIRST = np.linspace(-1, 1, 64)


def same(again, first):
    (comparison,) = unchanged(Outcome(values=again), Outcome(values=first), "with other memory")
    assert comparison.passed == (comparison.message == "")
    return comparison.passed


@pytest.mark.parametrize(
    ("dtype", "ulps", "expected"),
    [
        (np.float32, 60, True),
        (np.float32, 70, False),
        (np.complex64, 60, True),
        (ml_dtypes.bfloat16, 3, True),
        (ml_dtypes.bfloat16, 5, False),
        (np.float16, 5, False),
    ],
)
def test_a_few_ulps(dtype, ulps, expected):
    """A program that is compiled anew may round otherwise."""
    first = FIRST.astype(dtype)
    epsilon = float(ml_dtypes.finfo(np.dtype(dtype).type(0).real.dtype).eps)
    again = first.copy()
    again[-1] = dtype(1 + ulps * epsilon)
    assert same(again, first) == expected


@pytest.mark.parametrize("value", [np.nan, np.inf, 0, 3.4e38])
def test_what_memory_is_filled_with(value):
    again = FIRST.astype(np.float32)
    again[3] = value
    assert not same(again, FIRST.astype(np.float32))


def test_integers_must_be_equal():
    first = np.arange(8, dtype=np.int32)
    assert same(first.copy(), first)
    assert not same(first + (first == 3), first)


def test_the_payload_of_nan():
    first = np.array([np.nan, 1], np.float32)
    again = first.copy()
    again.view(np.uint32)[0] |= 0x80000001
    assert same(again, first)


def test_both_values_are_said_to_be_the_kernels():
    """No expected value is in the message: the reference is not compared here."""
    first = np.arange(8, dtype=np.int32)
    again = first.copy()
    again[3] = 9
    (found,) = unchanged(Outcome(values=again), Outcome(values=first), "with NaN in padding")
    assert found.explanation is not None
    facts = {fact.name: fact.text for fact in found.explanation.facts}
    assert facts["kernel"] == "9 with NaN in padding\n3 without, also from the kernel"
    assert "expected" not in facts
