"""The root mean square of all errors: what the worst error hides."""

import math

import ml_dtypes
import numpy as np
import pytest

from pallas_sim.dtypes import wide
from pytest_pallas.judge.judgement import compare
from pytest_pallas.judge.tolerance import Tolerance

bf16 = np.dtype(ml_dtypes.bfloat16)
ULP = 2.0**-7


def off_by(errors, baseline=0.0, dtype=bf16, **options):
    """Compare an output of ones that is off by ``errors`` ulps; so are those of ``baseline``."""
    errors = np.asarray(errors, float)
    oracle = np.ones(errors.shape)
    actual = (oracle + errors * ULP).astype(dtype)
    base = np.asarray(oracle + np.asarray(baseline) * ULP).astype(dtype)
    return compare(actual, oracle, base, **options)


def stepwise(size, steps, *, dtype=bf16, seed=0):
    """A product of ``16 * steps`` terms, rounded after every 16: actual, oracle, baseline."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(size, 16 * steps)).astype(dtype).astype(np.float32)
    y = rng.normal(size=(16 * steps, size)).astype(dtype).astype(np.float32)
    total = np.zeros((size, size), dtype)
    for k in range(0, 16 * steps, 16):
        total = (total + (x[:, k : k + 16] @ y[k : k + 16]).astype(dtype)).astype(dtype)
    return total, wide(x) @ wide(y), (x @ y).astype(dtype)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("size", "steps"), [(32, 16), (64, 8), (48, 16)])
@pytest.mark.parametrize("dtype", [bf16, np.float16])
def test_a_narrow_accumulator_is_caught_before_its_worst_error_is(size, steps, dtype, seed):
    actual, oracle, baseline = stepwise(size, steps, dtype=dtype, seed=seed)
    result = compare(actual, oracle, baseline, depth=16 * steps)
    assert (result.passed, result.kind) == (False, "rms")


def test_fields_are_root_mean_squares():
    result = off_by([2.0] * 60 + [1.0] * 40, [0.0] * 50 + [1.0] * 50)
    error, baseline = math.sqrt((60 * 4 + 40) / 100), math.sqrt(0.5)
    assert (result.passed, result.kind) == (True, "close")
    assert result.error == 2
    result = off_by([3.0] * 60 + [1.0] * 40, [0.0] * 50 + [1.0] * 50)
    error = math.sqrt((60 * 9 + 40) / 100)
    assert (result.passed, result.kind) == (False, "rms")
    assert result.error == pytest.approx(error)
    assert result.baseline_error == pytest.approx(baseline)
    assert result.multiple == pytest.approx(error / baseline)
    assert result.allowed == pytest.approx(2 * baseline + 4 / 10, rel=1e-3)
    assert (result.wrong, result.worst_index) == (60, (0,))
    assert result.mask.tolist() == [True] * 60 + [False] * 40


def test_without_an_element_beyond_the_baselines_worst_the_worst_is_wrong():
    result = off_by([1.0] * 399 + [2.0], [0.0] * 399 + [2.0])
    assert (result.kind, result.wrong, result.worst_index) == ("rms", 1, (399,))
    assert result.baseline_error == pytest.approx(0.1)


def test_a_baseline_without_error_is_no_multiple():
    result = off_by([1.0] * 400)
    assert (result.kind, result.multiple) == ("rms", math.inf)
    assert "inf times the baseline's (0)" in result.message


@pytest.mark.parametrize("count", [1, 2, 10, 100, 10_000])
def test_one_element_at_the_floor_is_chance_in_any_size(count):
    errors = np.zeros(count)
    errors[-1] = 4
    assert off_by(errors).passed
    errors[-1] = 5
    assert off_by(errors).kind == "close"


def test_a_wide_output_may_have_the_floor_everywhere():
    oracle = np.ones(10_000)
    actual = (oracle + 4 * 2.0**-23).astype(np.float32)
    assert compare(actual, oracle, oracle.astype(np.float32)).passed


def test_sensitive_outputs_may_be_as_far_as_one_rounding_of_the_inputs():
    assert off_by([1.0] * 10_000).kind == "rms"
    assert off_by([1.0] * 10_000, sensitivity=4.0).kind == "rms"
    assert off_by([1.0] * 10_000, sensitivity=5.0).passed


def test_what_is_not_finite_is_not_counted():
    oracle = np.full(1000, np.nan)
    oracle[:2] = 1.0
    actual = oracle.copy()
    actual[0] += 4 * ULP
    assert compare(actual.astype(bf16), oracle, oracle.astype(bf16)).passed
    oracle[2:] = actual[2:] = 1.0
    actual[:400] = 1 + ULP
    assert compare(actual.astype(bf16), oracle, oracle.astype(bf16)).kind == "rms"
    # As many elements that are NaN on both sides make no mean smaller.
    oracle, actual = (np.append(a, np.full(10_000, np.nan)) for a in (oracle, actual))
    assert compare(actual.astype(bf16), oracle, oracle.astype(bf16)).kind == "rms"


def test_sensitivity_counts_where_some_of_the_oracle_is_nan():
    oracle = np.append(np.ones(10_000), np.nan)
    actual = (oracle + ULP).astype(bf16)
    assert compare(actual, oracle, oracle.astype(bf16), sensitivity=5.0).passed


def test_excused_elements_are_left_out():
    errors = np.zeros(1000)
    errors[:100] = 50
    assert off_by(errors, tolerance=Tolerance(fraction=0.1)).passed
    errors[100:] = 1
    assert off_by(errors, tolerance=Tolerance(fraction=0.1)).kind == "rms"
    assert off_by(np.full(5, 9.0), tolerance=Tolerance(fraction=1)).passed


@pytest.mark.parametrize(
    "rule", [Tolerance(ulp=1), Tolerance(rtol=0.1), Tolerance(factor=9), Tolerance(floor=200)]
)
def test_other_rules_allow_it(rule):
    errors, baseline = np.ones(10_000), np.zeros(10_000)
    baseline[::50] = 1
    assert off_by(errors, baseline).kind == "rms"
    assert off_by(errors, baseline, tolerance=rule).passed


def test_the_message_says_what_it_is():
    actual, oracle, baseline = stepwise(32, 32)
    result = compare(actual, oracle, baseline, where="output 0")
    lines = result.message.splitlines()
    assert lines[0].startswith(
        "output 0, bfloat16[32, 32]: inaccurate on the whole, most of all in"
    )
    (error,) = (i for i, line in enumerate(lines) if line.startswith("  error"))
    assert lines[error : error + 4] == [
        f"  error     rms {result.error:.4g} ulps of the output scale, {result.multiple:.3g} times "
        f"the baseline's ({result.baseline_error:.3g}); allowed {result.allowed:.4g}",
        "            root mean square: many small errors rather than a few large ones, as from",
        "            an accumulator that is rounded to bfloat16 at every step; if that is meant,",
        "            let the reference round likewise, or set Tolerance(factor=)",
    ]
    assert max(map(len, lines)) <= 100


def test_a_float32_output_is_not_said_to_be_rounded_to_float32():
    oracle = np.ones(100)
    actual = (oracle + 8 * 2.0**-23).astype(np.float32)
    baseline = oracle.astype(np.float32)
    baseline[0] += 1e-6
    result = compare(actual, oracle, baseline)
    assert result.kind == "rms"
    assert "too narrow and rounded at every step" in result.message


def softmax_attention(q, k, v, rounded):
    scores = q.shape[1] ** -0.5 * (q @ k.T)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return rounded(weights) @ v / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("dtype", [bf16, np.dtype(np.float16)])
def test_attention_with_rounded_weights_raises_no_alarm(dtype):
    rng = np.random.default_rng(5)
    for _ in range(100):
        queries, keys = rng.integers(1, 65), rng.integers(1, 300)
        narrow = [rng.normal(size=(n, 40)).astype(dtype) for n in (queries, keys, keys)]
        single = [array.astype(np.float32) for array in narrow]
        oracle = softmax_attention(*map(wide, narrow), lambda w: w)
        baseline = softmax_attention(*single, lambda w: w).astype(dtype)
        actual = softmax_attention(*single, lambda w: w.astype(dtype).astype(w.dtype)).astype(dtype)
        result = compare(actual, oracle, baseline, depth=keys)
        assert result.passed, result.message
