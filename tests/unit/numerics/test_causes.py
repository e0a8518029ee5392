"""What the values of a wrong output say about the cause."""

import ml_dtypes
import numpy as np
import pytest

from pytest_pallas.numerics import compare

VALUES = np.random.default_rng(0).normal(size=(8, 16)) * 100


def causes(actual, expected):
    """Of a kernel's output against the values that it should have."""
    dtype = np.asarray(actual).dtype
    found = compare(actual, expected, np.asarray(expected).astype(dtype), exact=True)
    assert not found.passed
    assert found.explanation is not None
    return [fact.text for fact in found.explanation.facts if fact.name == "cause"]


@pytest.mark.parametrize(
    ("narrow", "dtype"),
    [
        ("bfloat16", np.float32),
        ("float16", np.float32),
        ("bfloat16", np.float64),
        ("float32", np.float64),
        ("float8_e4m3fn", ml_dtypes.bfloat16),
        ("bfloat16", np.complex64),
    ],
)
def test_an_answer_that_was_rounded_on_the_way(narrow, dtype):
    rounded = VALUES.astype(getattr(ml_dtypes, narrow, narrow)).astype(np.float64)
    [text] = causes(rounded.astype(dtype), VALUES)
    assert text.startswith(f"every value is a {narrow} number, and 1")
    assert text.endswith(f"the output is {np.dtype(dtype)}, but was rounded to {narrow} on the way")


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        (VALUES + 1, VALUES),  # of all digits
        (np.rint(VALUES) + 1, np.rint(VALUES)),  # small integers are bfloat16 numbers anyway
        (np.where(VALUES > 0, VALUES, 0), VALUES),
        (np.full((8, 16), np.nan), VALUES),
        (np.zeros((2,)), np.array([0.1, 0.2])),  # too few to say
    ],
)
def test_nothing_is_said_of_other_answers(actual, expected):
    assert causes(actual.astype(np.float32), expected) == []


SUMS = np.array([100, 200, -300, 7, 120])


@pytest.mark.parametrize("dtype", [np.int8, ml_dtypes.int4])
def test_integers_that_saturate_on_one_side(dtype):
    sums = SUMS if dtype is np.int8 else np.array([3, 9, -10, 7])
    info = ml_dtypes.iinfo(dtype)
    clamped = np.clip(sums, info.min, info.max).astype(dtype)
    around = ((sums - info.min) % 2**info.bits + info.min).astype(dtype)
    ends = f"{info.min}, the lowest number or {info.max}, the highest number of {np.dtype(dtype)}"
    assert causes(clamped, around) == [
        f"the wrong elements are all {ends}: the kernel saturates where the reference wraps around"
    ]
    assert causes(around, clamped) == [
        f"the expected values are all {ends} there: the reference saturates where the kernel wraps "
        "around"
    ]


@pytest.mark.parametrize(
    ("actual", "expected"),
    [
        ([0, 0, 5], [7, 9, 5]),  # never written
        ([255, 3, 5], [250, 2, 5]),
        ([255, 255, 5], [254, 253, 5]),  # no overflow
        ([0, 0, 5], [254, 250, 5]),  # or it is uninitialized memory
    ],
)
def test_the_end_of_a_range_alone_is_no_saturation(actual, expected):
    assert causes(np.array(actual, np.uint8), np.array(expected, np.uint8)) == []
