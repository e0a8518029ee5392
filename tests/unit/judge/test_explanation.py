import ml_dtypes
import numpy as np

from pytest_pallas.judge.judgement import bitwise, compare
from pytest_pallas.judge.tolerance import Tolerance

RNG = np.random.default_rng(0)
ORACLE = RNG.normal(size=(64, 300))
BASELINE = ORACLE.astype(np.float32)


def test_the_whole_message():
    oracle = np.ones((4, 300))
    actual = oracle.astype(np.float32)
    actual[:, 256:] = 1.5
    result = compare(actual, oracle, oracle.astype("f4"), where="output 0", block_shape=(4, 128))
    assert result.message.splitlines() == [
        "output 0, float32[4, 300]: wrong in 176 of 1200 elements (14.7 %)",
        "  worst     [0, 256]",
        "  kernel    1.5",
        "  oracle    1",
        "  baseline  1",
        "  error     4.194e+06 ulps of the output scale, "
        "4.19e+06 times the baseline's (0); allowed 5",
        "  wrong at  [0, 256] [0, 257] [0, 258] [0, 259] [0, 260] [0, 261] ...",
        "  pattern   the wrong elements are 1.5 times the oracle",
        "  pattern   whole blocks of shape (4, 128): 1 of 3, at block index (0, 2)",
        "  pattern   only indices >= 256 of axis 1 (columns): the last 44 of 300, a tail mask?",
    ]
    assert len(result.patterns) == 3


def test_messages_fit_the_terminal():
    cases = [
        compare(BASELINE * np.float32(1.1), ORACLE, BASELINE, block_shape=(8, 128)),
        compare(BASELINE * np.float32(np.nan), ORACLE, BASELINE * np.float32(np.nan)),
        compare(-BASELINE, ORACLE, BASELINE, exact=True),
        compare(-BASELINE, ORACLE, BASELINE, tolerance=Tolerance(atol=1e-9)),
    ]
    for result in cases:
        assert not result.passed
        assert max(map(len, result.message.splitlines())) <= 100


def test_the_rule_that_was_broken_is_named():
    wrong = BASELINE + 1
    assert "must be exactly equal" in compare(wrong, ORACLE, BASELINE, exact=True).message
    rule = Tolerance(atol=1e-3)
    assert "explicit tolerance allows" in compare(wrong, ORACLE, BASELINE, tolerance=rule).message
    integers = np.arange(4)
    result = compare(integers, integers, integers + 3, tolerance=Tolerance(atol=1))
    assert "3 at most; the explicit tolerance allows 1 there" in result.message


def test_nothing_is_measured_in_ulps_of_zero():
    actual = np.zeros((4, 5), np.float32)
    actual[1, 2] = 3
    zero = np.zeros((4, 5))
    near = np.full((4, 5), 1e-7, np.float32)
    text = "error     3, where the oracle is 0 everywhere"
    for baseline, options, rest in (
        (zero.astype("f4"), {}, " and so is the baseline; allowed 5.877e-38"),
        (near, {}, " and the baseline at most 1e-07; allowed 2e-07"),
        (near, {"exact": True}, "; must be exactly equal"),
    ):
        lines = compare(actual, zero, baseline, **options).message.splitlines()
        assert f"  {text}{rest}" in lines
    complexes = compare(actual * (1 + 1j), zero + 0j, zero.astype("c8"))
    assert "error     4.243, where the oracle is 0 everywhere" in complexes.message
    assert "nan" not in compare(actual.astype("f8"), zero, zero).message
    assert "oracle is 0" not in bitwise(actual, zero.astype("f4")).message


def test_integers_are_shown_as_integers():
    message = compare(np.array([2**62 + 1]), np.zeros(1), np.array([2**62])).message
    assert f"kernel    {2**62 + 1}" in message
    assert f"expected  {2**62}" in message


def test_double_precision_is_shown_in_full():
    actual = np.array([1.0 + 2.0**-40])
    message = compare(actual, np.ones(1), np.ones(1)).message
    assert "kernel    1.0000000000009095" in message


def test_the_last_block_of_a_product_left_out():
    actual = BASELINE.copy()
    actual[:, 256:] = 0
    patterns = compare(actual, ORACLE, BASELINE).patterns
    assert patterns[0].startswith("the wrong elements are all 0")
    assert "only indices >= 256" in patterns[1]


def test_narrow_formats_do_not_resemble_everything():
    right = RNG.normal(size=(16, 16)).clip(-6, 6)
    for dtype in (ml_dtypes.float4_e2m1fn, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2):
        baseline = right.astype(dtype)
        result = compare((-baseline).astype(dtype), right, baseline)
        assert not result.passed
        assert not [p for p in result.patterns if "rolled" in p or "transposed" in p]

    right = np.array([[1, 2], [1, 0.5]])
    baseline = right.astype(ml_dtypes.float4_e2m1fn)
    assert "wrong sign" in compare((-baseline).astype(baseline.dtype), right, baseline).patterns[0]


def test_only_the_most_specific_patterns_are_shown():
    actual = BASELINE.copy()
    actual[40:48, 256::2] *= 2
    result = compare(actual, ORACLE, BASELINE, block_shape=(8, 128))
    assert [text.split()[0] for text in result.patterns] == ["the", "confined", "only"]
    assert result.message.count("pattern  ") == 3


def test_rounded_outputs_still_show_their_pattern():
    for dtype in (ml_dtypes.bfloat16, np.float16, np.float32, np.float64):
        baseline = ORACLE.astype(dtype)
        rolled = compare(np.roll(baseline, 1, 0), ORACLE, baseline)
        assert "rolled by 1 along axis 0" in rolled.patterns[0]


def test_exactness_says_why_it_is_due():
    integers = np.arange(1.0, 9)
    due = "the inputs are small integers, so any order of summation is exact in float32"
    near, far = integers.astype("f4"), integers.astype("f4")
    near[3] += 0.125
    far[3] = -4
    near, far = (compare(a, integers, integers, exact=True, check_dtype=False) for a in (near, far))
    assert due in near.message
    assert due in far.message
    assert "(a narrow accumulator, or one rounding too many?)" in near.message
    assert "narrow accumulator" not in far.message
    whole = np.arange(3)
    assert due not in compare(whole + 1, whole, whole, exact=True).message
