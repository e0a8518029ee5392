import dataclasses

import ml_dtypes
import numpy as np
import pytest

from pallas_sim.dtypes import wide
from pytest_pallas import KernelReferenceError
from pytest_pallas.judge.judgement import compare
from pytest_pallas.judge.tolerance import Tolerance

FLOATS = [
    np.float16,
    np.float32,
    np.float64,
    ml_dtypes.bfloat16,
    ml_dtypes.float8_e4m3fn,
    ml_dtypes.float8_e5m2,
    ml_dtypes.float8_e4m3b11fnuz,
    ml_dtypes.float8_e8m0fnu,
    ml_dtypes.float6_e2m3fn,
    ml_dtypes.float4_e2m1fn,
]
bf16 = ml_dtypes.bfloat16


def judge(actual, oracle, **options):
    """Compare with the oracle rounded to the dtype of ``actual`` as the baseline."""
    actual, oracle = np.asarray(actual), np.asarray(oracle)
    with np.errstate(all="ignore"):
        baseline = oracle.astype(actual.dtype)
    return compare(actual, oracle, baseline, **options)


@pytest.fixture
def oracle():
    return np.random.default_rng(0).uniform(0.5, 2, size=(5, 7))


@pytest.mark.parametrize("dtype", FLOATS)
def test_every_float_passes_rounded_and_fails_when_far(oracle, dtype):
    good = oracle.astype(dtype)
    result = judge(good, oracle)
    assert (result.passed, result.kind, result.wrong, result.message) == (True, "close", 0, "")
    assert result.error == result.baseline_error <= 0.5
    bad = good.copy()
    bad[2, 3] = 4.0 if dtype != ml_dtypes.float8_e8m0fnu else 2.0**20
    if np.dtype(dtype) == np.dtype(ml_dtypes.float4_e2m1fn):
        bad[2, 3] = 6.0
    result = judge(bad, oracle)
    assert not result.passed
    assert (result.kind, result.wrong, result.worst_index) == ("close", 1, (2, 3))
    assert result.mask[2, 3]
    assert result.actual_value == float(bad[2, 3])
    assert result.expected_value == oracle[2, 3]


def test_error_is_in_ulps_of_the_elements_magnitude_or_of_the_rms():
    oracle = np.array([8.0, 0.0, 0.0, 0.0])  # rms 4
    actual = oracle.astype(np.float32)
    actual[1] = 4 * 3 * 2.0**-23
    result = judge(actual, oracle)
    assert (result.error, result.worst_index) == (3.0, (1,))
    actual[0] += 8 * 4 * 2.0**-23
    assert judge(actual, oracle).error == 4.0


def test_multiple_is_relative_to_the_baseline_but_to_one_ulp_at_least():
    oracle, ulp = np.ones(4), 2.0**-23
    actual = (oracle + [0, 12 * ulp, 0, 0]).astype(np.float32)
    baseline = (oracle + [3 * ulp, 0, 0, 0]).astype(np.float32)
    result = compare(actual, oracle, baseline)
    assert (result.error, result.baseline_error, result.multiple) == (12, 3, 4)
    assert compare(actual, oracle, oracle.astype(np.float32)).multiple == 12


def test_allowed_error_grows_with_the_baselines():
    oracle, ulp = np.ones(4), 2.0**-23
    actual = (oracle + [0, 24 * ulp, 0, 0]).astype(np.float32)
    near, far = (compare(actual, oracle, (oracle + k * ulp).astype("f4")) for k in (9, 10))
    assert (near.passed, near.allowed) == (False, 2 * 9 + 4 + 1)
    assert (far.passed, far.allowed) == (True, 2 * 10 + 4 + 1)


def test_depth_allows_for_the_order_of_summation():
    oracle = np.ones(1)
    actual = (oracle + 20 * 2.0**-23).astype(np.float32)
    assert not judge(actual, oracle, depth=100).passed
    assert judge(actual, oracle, depth=1024).passed


def test_fraction_excuses_outliers_but_not_nan():
    oracle = np.ones(100)
    actual = oracle.astype(np.float32)
    actual[:3] = 2
    assert not judge(actual, oracle, tolerance=Tolerance(fraction=0.02)).passed
    result = judge(actual, oracle, tolerance=Tolerance(fraction=0.03))
    assert (result.passed, result.wrong, result.message) == (True, 3, "")
    actual[0] = np.nan
    assert not judge(actual, oracle, tolerance=Tolerance(fraction=1)).passed


@pytest.mark.parametrize(
    ("actual", "oracle", "words"),
    [
        (np.nan, 1.0, "NaN where the oracle is finite: 1"),
        (1.0, np.nan, "finite where the oracle is NaN: 1"),
        (np.inf, -np.inf, "+inf where the oracle is -inf: 1"),
        (-np.inf, 1.0, "-inf where the oracle is finite: 1"),
        (np.nan, np.inf, "NaN where the oracle is +inf: 1"),
    ],
)
@pytest.mark.parametrize("rule", [Tolerance(), Tolerance(rtol=9.0, fraction=1)])
def test_classes_must_agree(actual, oracle, words, rule):
    kernel, right = np.ones(4, np.float32), np.ones(4)
    kernel[2], right[2] = actual, oracle
    result = judge(kernel, right, tolerance=rule)
    assert not result.passed
    assert (result.kind, result.error, result.worst_index) == ("class", np.inf, (2,))
    assert words in result.message


def test_equal_classes_pass_and_the_rest_is_measured():
    oracle = np.array([np.nan, np.inf, -np.inf, 1.0, 3.0])
    assert judge(oracle.astype(np.float32), oracle).passed
    assert not judge(np.array([np.nan, np.inf, -np.inf, 1.1, 3.0], "f4"), oracle).passed


@pytest.mark.parametrize("exact", [True, False])
def test_signalling_nans_of_stale_memory_are_nans(exact):
    stale = np.full(9, 0x7F800001, np.uint32).view(np.float32)
    assert not judge(stale, np.ones(9), exact=exact).passed
    assert compare(stale, np.full(9, np.nan), stale, exact=exact).passed


def test_everything_nan_passes():
    assert judge(np.full(3, np.nan, np.float32), np.full(3, np.nan)).passed


@pytest.mark.parametrize(
    ("dtype", "overflowed"),
    [
        (np.float16, np.inf),
        (bf16, np.inf),
        (ml_dtypes.float8_e4m3fn, np.nan),
        (ml_dtypes.float8_e5m2, np.inf),
        (ml_dtypes.float4_e2m1fn, 6.0),
    ],
)
def test_the_oracle_overflows_as_the_output_does(dtype, overflowed):
    oracle = np.array([1.0, 1e300])
    good = np.array([1.0, overflowed]).astype(dtype)
    assert judge(good, oracle).passed
    assert not judge(np.array([1.0, 1.0]).astype(dtype), oracle).passed


def test_one_ulp_at_the_edge_of_overflow_is_no_error_of_class():
    largest = float(np.finfo(np.float16).max)
    oracle = np.array([largest, 1.0])
    assert judge(np.array([np.inf, 1.0], np.float16), oracle).passed
    assert not judge(np.array([-np.inf, 1.0], np.float16), oracle).passed
    oracle[0] = 0.97 * largest  # 30 ulps away
    assert judge(np.array([np.inf, 1.0], np.float16), oracle).kind == "class"
    oracle[0] = 0.9 * largest
    baseline = np.array([60, 1.0], np.float16)  # however bad the baseline
    assert not compare(np.array([np.inf, 1.0], np.float16), oracle, baseline).passed


def test_an_excused_overflow_is_not_counted():
    oracle = np.array([float(np.finfo(np.float16).max), 1.0])
    result = judge(np.array([np.inf, np.nan], np.float16), oracle)
    assert (result.wrong, result.mask.tolist()) == (1, [False, True])
    assert "NaN where the oracle is finite: 1" in result.message
    assert "inf where" not in result.message


def test_a_nan_is_not_excused_even_where_it_stands_for_overflow():
    dtype = ml_dtypes.float8_e8m0fnu
    assert not judge(np.array([np.nan, 1.0]).astype(dtype), np.array([1.0, 1.0])).passed


def test_a_class_error_that_the_baseline_shares_fails_and_says_so():
    kernel = np.array([np.inf, 1.0], np.float32)
    result = compare(kernel, np.array([100.0, 1.0]), kernel)
    assert not result.passed
    assert "in 1 of them the baseline is no better" in result.message


def test_a_baseline_of_wrong_class_does_not_widen_the_bound():
    oracle = np.array([1.0, 2.0])
    result = compare(np.array([1.0, 2.1], "f4"), oracle, np.array([np.nan, 2.0], "f4"))
    assert (result.passed, result.baseline_error) == (False, 0.0)


@pytest.mark.parametrize("dtype", [np.float32, bf16, np.float64])
def test_a_subnormal_may_be_flushed_but_zero_is_not_anything(dtype):
    tiny = float(ml_dtypes.finfo(dtype).smallest_normal)
    assert judge(np.zeros(2, dtype), np.array([tiny / 2, -tiny / 4])).passed
    assert not judge(np.full(2, 2.0**20 * tiny, dtype), np.zeros(2)).passed


def test_subnormals_of_narrow_formats_count():
    oracle = np.full(3, 2.0**-7)  # half the smallest normal of float8_e4m3fn, 4 ulps
    assert not judge(np.zeros(3, ml_dtypes.float8_e4m3fn), oracle).passed


def test_squares_of_extreme_values_neither_overflow_nor_vanish():
    for size in (1e300, 1e-280):
        oracle = size * np.array([1.0, 0.5])
        assert judge(oracle, oracle).passed
        assert not judge(1.1 * oracle, oracle).passed
        assert judge(-oracle, oracle).error == pytest.approx(2 * 2.0**52)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64", "uint64", "int4", "uint2"])
def test_integers_must_equal_the_baseline(dtype):
    dtype = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    baseline = np.array([0, 1, 1, 0]).astype(dtype)
    assert compare(baseline, np.zeros(4), baseline).passed
    actual = np.array([0, 1, 0, 0]).astype(dtype)
    result = compare(actual, actual, baseline)
    assert (result.passed, result.kind, result.error, result.worst_index) == (
        False,
        "exact",
        1.0,
        (2,),
    )
    assert (result.actual_value, result.expected_value) == (0, 1)


@pytest.mark.parametrize(("low", "high", "dtype"), [(0, 2**64 - 1, "u8"), (-(2**63), 2**62, "i8")])
def test_differences_of_large_integers_do_not_wrap(low, high, dtype):
    low, high = np.array([low], dtype), np.array([high], dtype)
    assert judge(low, high).error == float(int(high[0]) - int(low[0]))


def test_bool():
    result = judge(np.array([True, False]), np.array([True, True]))
    assert (result.passed, result.actual_value, result.expected_value) == (False, False, True)
    assert judge(np.array([True, False]), np.array([True, False])).passed


def test_integers_can_have_an_explicit_tolerance():
    actual, oracle = np.array([10, 21], np.int8), np.array([11, 20])
    for rule in (Tolerance(atol=1), Tolerance(ulp=1), Tolerance(rtol=0.1)):
        assert judge(actual, oracle, tolerance=rule).passed
    result = judge(actual, oracle, tolerance=Tolerance(atol=0.5))
    assert (result.passed, result.kind, result.wrong) == (False, "explicit", 2)


@pytest.mark.parametrize(
    ("rule", "passed"),
    [
        (Tolerance(atol=0.02), True),
        (Tolerance(atol=0.001), False),
        (Tolerance(rtol=0.02), True),
        (Tolerance(rtol=0.001), False),
        (Tolerance(rtol=0.006, atol=0.006), True),
        (Tolerance(ulp=0.011 * 2**23), True),
        (Tolerance(ulp=0.009 * 2**23), False),
        (Tolerance(rtol=0.0, ulp=0.011 * 2**23), True),
    ],
)
def test_explicit_rules_replace_the_default(rule, passed):
    result = judge(np.float32([1.01, 1.0]), np.ones(2), tolerance=rule)
    assert (result.passed, result.kind) == (passed, "explicit")


def test_explicit_worst_is_the_element_furthest_over_its_limit():
    oracle = np.array([1e3, 1e-3])
    result = judge(np.float32([1001.0, 2e-3]), oracle, tolerance=Tolerance(rtol=0.01))
    assert result.worst_index == (1,)
    assert result.wrong == 1


@pytest.mark.parametrize("dtype", FLOATS)
def test_exact_is_the_rounded_oracle(oracle, dtype):
    good = oracle.astype(dtype)
    result = compare(good, oracle, np.zeros_like(good), exact=True)
    assert (result.passed, result.kind) == (True, "exact")
    bad = good.copy()
    bad.view(f"u{bad.dtype.itemsize}")[1, 1] ^= 1
    result = compare(bad, oracle, good, exact=True, tolerance=Tolerance(rtol=9, fraction=1))
    assert (result.passed, result.worst_index, result.wrong) == (False, (1, 1), 1)


def test_exact_takes_zeros_as_equal_and_nans_as_equal():
    oracle = np.array([0.0, np.nan, np.inf, 1.0])
    actual = np.array([-0.0, -np.nan, np.inf, 1.0], np.float32)
    assert judge(actual, oracle, exact=True).passed
    actual[3] = np.nan
    assert not judge(actual, oracle, exact=True).passed


def test_complex():
    oracle = np.array([3 + 4j, 1e-9 + 1j])
    actual = oracle.astype(np.complex64)
    assert judge(actual, oracle).passed
    assert judge(actual, oracle, exact=True).passed
    # The small real part is measured by the magnitude of the number.
    actual[1] = 2e-9 + 1j
    assert judge(actual, oracle).passed
    assert not judge(actual, oracle, exact=True).passed
    actual[1] = 1e-3 + 1j
    assert not judge(actual, oracle).passed


def test_complex_classes():
    oracle = np.array([1 + 1j, complex(np.inf, 0)])
    assert judge(np.complex64([1 + 1j, complex(np.nan, np.inf)]), oracle).passed
    result = judge(np.complex64([complex(1, np.nan), np.inf]), oracle)
    assert (result.kind, result.worst_index) == ("class", (0,))


def test_shape_mismatch_says_both():
    result = judge(np.zeros((2, 3), "f4"), np.zeros((3, 2)), where="output 1")
    assert (result.passed, result.kind, result.mask) == (False, "shape", None)
    assert result.message == "output 1: the kernel returned shape (2, 3), the reference (3, 2)"


def test_dtype_mismatch_says_both_and_can_be_allowed():
    ones = np.ones(3)
    result = compare(ones.astype("f4"), ones, ones.astype(bf16), where="o")
    assert (result.passed, result.kind) == (False, "dtype")
    assert result.message == "o: the kernel returned dtype float32, the reference bfloat16"
    assert compare(ones.astype("f4"), ones, ones.astype(bf16), check_dtype=False).passed


def test_a_dtype_that_is_no_number_fails():
    words = np.array(["a"])
    assert compare(words, words, words).kind == "dtype"


def test_a_reference_whose_shape_depends_on_the_dtype_is_an_error():
    with pytest.raises(KernelReferenceError, match=r"\(3,\).*\(2,\)"):
        compare(np.zeros(3), np.zeros(3), np.zeros(2))


@pytest.mark.parametrize("dtype", ["f4", "i4", "c8", bf16])
@pytest.mark.parametrize("exact", [True, False])
def test_empty_and_scalar_outputs(dtype, exact):
    empty = np.zeros((0, 3), dtype)
    assert compare(empty, wide(empty), empty, exact=exact).passed
    one, two = np.ones((), dtype), np.full((), 2, dtype)
    assert compare(one, wide(one), one, exact=exact).passed
    result = compare(two, wide(one), one, exact=exact)
    assert (result.passed, result.worst_index, result.wrong) == (False, (), 1)


def test_inputs_are_not_changed(oracle):
    actual = np.array([np.nan, 1, 2], np.float64)
    oracle, baseline = np.array([1.0, np.inf, 3.0]), np.array([1.0, 2, 3])
    copies = [a.copy() for a in (actual, oracle, baseline)]
    compare(actual, oracle, baseline)
    for array, copy in zip((actual, oracle, baseline), copies, strict=True):
        np.testing.assert_array_equal(array, copy)


def test_values_are_python_numbers():
    result = judge(np.zeros(1, bf16), np.ones(1))
    fields = dataclasses.asdict(result)
    assert {type(fields[f"{side}_value"]) for side in ("actual", "expected", "baseline")} == {float}
    assert type(result.error) is type(result.allowed) is type(result.multiple) is float
