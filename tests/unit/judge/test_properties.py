"""What must hold of any output, with data drawn by hypothesis or from seeds."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from pallas_sim.dtypes import wide
from pytest_pallas.judge.judgement import bitwise, compare

bf16 = np.dtype(ml_dtypes.bfloat16)
SEEDS = st.integers(0, 2**32 - 1)
DTYPES = st.sampled_from(
    [np.dtype(name) for name in ("f2", "f4", "f8", "c8", "i4", "u8", "bool")]
    + [np.dtype(getattr(ml_dtypes, n)) for n in ("bfloat16", "float8_e4m3fn", "int4", "uint2")]
)
BYTES = hnp.arrays(np.uint8, hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))


def product(rng, m, k, n, dtype, shift=0.0):
    x = (rng.normal(size=(m, k)) + shift).astype(dtype)
    y = (rng.normal(size=(k, n)) + shift).astype(dtype)
    oracle = wide(x) @ wide(y)
    baseline = (x.astype(np.float32) @ y.astype(np.float32)).astype(dtype)
    return x, y, oracle, baseline


def from_bytes(seeds, dtype):
    """An array of any bits, NaN, infinities and subnormals included, of the shape of ``seeds``."""
    rng = np.random.default_rng(seeds.ravel())
    if dtype.kind == "b" or (dtype.itemsize == 1 and dtype.kind == "V"):
        return rng.integers(0, 2, seeds.shape).astype(dtype)
    raw = rng.bytes(seeds.size * dtype.itemsize)
    return np.frombuffer(raw, dtype).reshape(seeds.shape).copy()


@settings(max_examples=100, deadline=None)
@given(BYTES, DTYPES, st.booleans())
def test_an_identical_output_always_passes(seeds, dtype, exact):
    array = from_bytes(seeds, dtype)
    result = compare(array.copy(), wide(array), array, exact=exact)
    assert result.passed, result.message
    assert result.error == 0
    assert bitwise(array.copy(), array).passed


@settings(max_examples=100, deadline=None)
@given(BYTES, BYTES, DTYPES)
def test_any_two_outputs_can_be_compared_and_a_failure_is_explained(left, right, dtype):
    actual, other = from_bytes(left, dtype), from_bytes(right, dtype)
    for result in (compare(actual, wide(other), other), bitwise(actual, other)):
        assert result.passed == (result.message == "")
        assert result.wrong == (0 if result.mask is None else np.count_nonzero(result.mask))
        assert not result.passed or result.wrong == 0


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.integers(1, 40), st.integers(1, 200), st.integers(1, 40))
def test_scaling_a_product_by_a_tenth_more_fails(seed, m, k, n):
    for dtype in (np.dtype("f4"), bf16):
        _, _, oracle, baseline = product(np.random.default_rng(seed), m, k, n, dtype)
        scaled = (1.1 * wide(baseline)).astype(dtype)
        assert not compare(scaled, oracle, baseline, depth=k).passed


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.integers(2, 40), st.integers(1, 200), st.integers(2, 40))
def test_dropping_the_last_row_or_half_of_the_terms_fails(seed, m, k, n):
    for dtype in (np.dtype("f4"), bf16):
        # Positive terms of like size: half of them are at least a tenth of the sum.
        rng = np.random.default_rng(seed)
        x, y = (rng.uniform(0.5, 1.5, shape).astype(dtype) for shape in ((m, k), (k, n)))
        oracle = wide(x) @ wide(y)
        baseline = oracle.astype(dtype)
        rows = baseline.copy()
        rows[-1] = 0
        assert not compare(rows, oracle, baseline, depth=k).passed
        kept = k // 2
        part = (wide(x[:, :kept]) @ wide(y[:kept])).astype(dtype)
        assert not compare(part, oracle, baseline, depth=k).passed


@pytest.mark.parametrize("shift", [0.0, 1.0])
def test_summing_in_another_order_raises_no_alarm(shift):
    rng = np.random.default_rng(7)
    for _ in range(100):
        k = int(2 ** rng.uniform(0, 12))
        m, n = rng.integers(2, 11, 2)
        x, y, oracle, baseline = product(rng, m, k, n, np.float32, shift)
        order = rng.permutation(k)
        result = compare(x[:, order] @ y[order], oracle, baseline, depth=max(m, k, n))
        assert result.passed, result.message


def test_accumulating_in_bfloat16_fails_against_a_float32_accumulator():
    rng = np.random.default_rng(3)
    for _ in range(5):
        x, y, oracle, baseline = product(rng, 16, 512, 16, bf16)
        total = np.zeros((16, 16), bf16)
        for k in range(512):
            total = (total + x[:, k, None] * y[k]).astype(bf16)
        assert not compare(total, oracle, baseline, depth=512).passed
