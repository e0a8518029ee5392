"""The reference as oracle and baseline."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pytest_pallas.errors import ReferenceError
from pytest_pallas.oracle import PERTURBATIONS, ExpectedCache, expected


def test_oracle_is_float64_and_baseline_is_the_kernels_dtype():
    x = np.full((4, 4), 0.1, ml_dtypes.bfloat16)
    found = expected(lambda a: a @ a, (x,), {})
    ((_, oracle),), ((_, baseline),) = found.oracle, found.baseline
    assert oracle.dtype == np.float64
    assert baseline.dtype == ml_dtypes.bfloat16
    np.testing.assert_allclose(oracle, x.astype(np.float64) @ x.astype(np.float64), rtol=1e-15)


def test_x64_does_not_leak():
    expected(lambda a: a + 1, (np.ones(3, np.float32),), {})
    assert not jax.config.jax_enable_x64
    assert jnp.arange(3).dtype == jnp.int32


def test_integers_keep_their_dtype():
    found = expected(lambda a, b: (a + b, a * 2.0), (np.arange(3, dtype=np.int8),) * 2, {})
    assert found.oracle[0][1].dtype == np.int8


def test_depth_is_the_largest_dim():
    assert expected(lambda a: a.sum(), (np.ones((3, 700), np.float32),), {}).depth == 700
    assert expected(lambda a: a, (np.float32(1),), {}).depth == 1


def test_trees_have_paths():
    found = expected(lambda a: {"dq": a, "dk": (a, a)}, (np.ones(2, np.float32),), {})
    assert [path for path, _ in found.oracle] == ["['dk'][0]", "['dk'][1]", "['dq']"]


def test_keys_of_random_numbers():
    def noise(key, x):
        return x + jax.random.uniform(key, x.shape), jax.random.split(key)

    cache, x = ExpectedCache(), np.zeros(3, np.float32)
    one, again, other = (
        cache.get(noise, (jax.random.key(seed), x), {}).baseline for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(one[0][1], again[0][1])
    assert (one[0][1] != other[0][1]).all()
    np.testing.assert_array_equal(
        one[1][1], jax.random.key_data(jax.random.split(jax.random.key(0)))
    )


def test_a_numpy_reference_works():
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    found = expected(lambda a: np.matmul(np.asarray(a), np.asarray(a).T), (x,), {})
    np.testing.assert_array_equal(found.oracle[0][1], x.astype(np.float64) @ x.T)


def test_a_reference_that_raises_is_named():
    def attention(q):
        raise TypeError("no such axis")

    with pytest.raises(ReferenceError, match=r"attention raised .* on \(float32\[3\]\): TypeError"):
        expected(attention, (np.ones(3, np.float32),), {})


def test_a_reference_that_returns_no_array():
    with pytest.raises(ReferenceError, match="must return an array"):
        expected(lambda a: None, (np.ones(3, np.float32),), {})


def test_nan_for_finite_inputs_is_the_references_fault():
    x = np.array([1.0, -1.0], np.float32)
    with pytest.raises(ReferenceError, match="NaN in 1 of 2 elements of the output"):
        expected(jnp.log, (x,), {})
    assert np.isnan(expected(jnp.log, (x,), {}, nan_ok=True).oracle[0][1][1])
    assert np.isnan(expected(jnp.log, (np.array([np.nan], np.float32),), {}).oracle[0][1])


def test_cache_evaluates_once_and_tells_values_apart():
    calls = []

    def reference(a, *, by):
        calls.append(by)
        return np.asarray(a) * by  # jit does not take it, so each evaluation is a call

    cache = ExpectedCache(most=2)
    x = np.ones(3, np.float32)
    cache.get(reference, (x,), {"by": 2})
    once = len(calls)
    assert once == 2 * (2 + PERTURBATIONS)  # oracle, baseline, sensitivity; tried under jit first
    cache.get(reference, (x.copy(),), {"by": 2})
    assert len(calls) == once
    cache.get(reference, (x + 1,), {"by": 2})
    cache.get(reference, (x,), {"by": 3})
    assert len(calls) == 3 * once
    cache.get(reference, (x,), {"by": 2})  # it had to go: two are kept
    assert len(calls) == 4 * once


def test_sensitivity_is_the_size_of_the_terms():
    x = np.array([[1000.0, -1000.0]], np.float32)
    found = expected(lambda a: a.sum(axis=1), (x,), {})
    assert found.oracle[0][1][0] == 0
    assert 1000 < found.sensitivity[""] < 3000


def test_sensitivity_of_a_step_is_small():
    """A floor changes by 1 however small the change of its input: that is no slope."""
    x = np.arange(1, 9, dtype=np.float32)
    assert expected(jnp.floor, (x,), {}).sensitivity[""] <= 64
