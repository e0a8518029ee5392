"""What the values of a wrong output say about the cause."""

import ml_dtypes
import numpy as np
import pytest

from pytest_pallas.judge.judgement import compare

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


#: Answers that say nothing of a cause: what they have in common is that nothing was computed.
DEGENERATE = {
    "zeros": lambda right: np.zeros_like(right),
    "ones": lambda right: np.ones_like(right),
    "minus one": lambda right: -np.ones_like(right),
    "a constant": lambda right: np.full_like(right, 1.75),
    "a large constant": lambda right: np.full_like(right, 3.3e38),
    "NaN": lambda right: np.full_like(right, np.nan),
    "infinity": lambda right: np.full_like(right, np.inf),
    "both infinities": lambda right: np.copysign(np.inf, right),
    "infinities and zeros": lambda right: np.where(right > 0, np.inf, 0),
    "NaN and ones": lambda right: np.where(right > 0, np.nan, 1),
    "powers of two": lambda right: 2.0 ** np.arange(right.size).reshape(right.shape) % 97,
    "the powers of two below": lambda right: (
        np.sign(right) * np.exp2(np.floor(np.log2(np.abs(right))))
    ),
    "signs": np.sign,
    "a ramp": lambda right: np.arange(right.size, dtype=float).reshape(right.shape),
    "zeros but one": lambda right: np.where(right == right.max(), right, 0),
    "only the first": lambda right: np.full_like(right, right.flat[0]),
}

EXPECTED = {
    "normal": VALUES,
    "positive": np.abs(VALUES) + 0.1,
    "small": VALUES / 1e5,
    "near 1": 1 + VALUES / 1e4,
    "near the constant": 1.75 + VALUES / 1e5,
    "one element": VALUES[:1, :1],
    "a few": VALUES[:1, :3],
}


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16", "complex64"])
@pytest.mark.parametrize("expected", EXPECTED.values(), ids=EXPECTED)
@pytest.mark.parametrize("answer", DEGENERATE.values(), ids=DEGENERATE)
def test_a_degenerate_answer_was_not_rounded(answer, expected, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    with np.errstate(all="ignore"):
        right = expected.astype(kind)
        wrong = answer(right.astype(np.float64) if kind.kind != "c" else right.real).astype(kind)
    if not np.array_equal(wrong, right):
        assert causes(wrong, right.astype(np.complex128 if kind.kind == "c" else float)) == []


INTEGERS = ["int8", "uint8", "int16", "uint16", "int32", "int4", "uint4"]

DEGENERATE_INTEGERS = {
    "zeros": lambda right, info: np.zeros_like(right),
    "ones": lambda right, info: np.ones_like(right),
    "the lowest": lambda right, info: np.full_like(right, info.min),
    "the highest": lambda right, info: np.full_like(right, info.max),
    "both ends": lambda right, info: np.where(right > 0, info.max, info.min),
    "an end of the lower half": lambda right, info: np.where(
        right < (info.min + info.max) / 2, info.max, info.min
    ),
    "a tail that was never written": lambda right, info: np.where(
        np.arange(right.size) < right.size - 3, right, info.min if info.min else info.max
    ),
    "powers of two": lambda right, info: 2 ** (np.arange(right.size) % (info.bits - 1)),
}

EXPECTED_INTEGERS = {
    "any": lambda info: np.random.default_rng(0).integers(info.min, info.max, 9),
    "small": lambda info: np.arange(9) % 7,
    "none": lambda info: np.zeros(9, int),
    "minima": lambda info: np.linspace(info.min, info.min / 2, 9).astype(int),
    "the highest": lambda info: np.full(9, info.max),
    "the lowest": lambda info: np.full(9, info.min),
    "one": lambda info: np.array([info.min + 1]),
}


@pytest.mark.parametrize("dtype", INTEGERS)
@pytest.mark.parametrize("expected", EXPECTED_INTEGERS.values(), ids=EXPECTED_INTEGERS)
@pytest.mark.parametrize("answer", DEGENERATE_INTEGERS.values(), ids=DEGENERATE_INTEGERS)
def test_a_degenerate_answer_did_not_saturate_nor_wrap(answer, expected, dtype):
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    info = ml_dtypes.iinfo(kind)
    right = expected(info)
    wrong = np.asarray(answer(right, info))
    if not np.array_equal(wrong, right):
        found = compare(wrong.astype(kind), right.astype(kind), right.astype(kind), exact=True)
        assert "saturates" not in str(found.explanation)
        assert "wrap" not in str(found.explanation)
