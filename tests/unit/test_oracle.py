"""The reference as oracle and baseline."""

import threading

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pytest_pallas import noise
from pytest_pallas.errors import ReferenceError
from pytest_pallas.numerics import compare_trees
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
    assert once == 2 * 2  # oracle and baseline; tried under jit first
    again = cache.get(reference, (x.copy(),), {"by": 2})
    assert len(calls) == once
    assert again.sensitivity[""] > 0
    assert again.sensitivity.get("elsewhere") is None
    assert len(calls) == once + 2 * PERTURBATIONS  # when somebody looks at it, once
    cache.get(reference, (x + 1,), {"by": 2})
    cache.get(reference, (x,), {"by": 3})
    assert len(calls) == 2 * PERTURBATIONS + 3 * once
    cache.get(reference, (x,), {"by": 2})  # it had to go: two are kept
    assert len(calls) == 2 * PERTURBATIONS + 4 * once


def test_sensitivity_is_the_size_of_the_terms():
    x = np.array([[1000.0, -1000.0]], np.float32)
    found = expected(lambda a: a.sum(axis=1), (x,), {})
    assert found.oracle[0][1][0] == 0
    assert 1000 < found.sensitivity[""] < 3000


def test_sensitivity_of_a_step_is_small():
    """A floor changes by 1 however small the change of its input: that is no slope."""
    x = np.arange(1, 9, dtype=np.float32)
    assert expected(jnp.floor, (x,), {}).sensitivity[""] <= 64


def norm(x):
    rows = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    rows = rows - rows.mean(axis=1, keepdims=True)
    return (rows / jnp.sqrt((rows**2).mean(axis=1, keepdims=True) + 1e-5)).astype(x.dtype)


def gradient_of_norm(x):
    return jax.vjp(norm, x)[1](jnp.ones_like(x) + jnp.arange(2, dtype=x.dtype))[0]


def gradient_of_norm_by_hand(x):
    """The usual formula; of two columns hardly anything is left but its rounding errors."""
    rows = x - x.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt((rows**2).mean(axis=1, keepdims=True) + np.float32(1e-5))
    normed, pulled = rows * scale, np.ones_like(x) + np.arange(2, dtype=x.dtype)
    mean = (pulled * normed).mean(axis=1, keepdims=True)
    return scale * (pulled - pulled.mean(axis=1, keepdims=True) - normed * mean)


def test_noise_explains_a_gradient_that_cancels():
    x = np.random.default_rng(0).standard_normal((30, 2)).astype(np.float32)
    found = expected(gradient_of_norm, (x,), {})
    measured = found.noise("")
    lucky = [("", found.oracle[0][1].astype(np.float32))]  # as a baseline may be on few elements
    arguments = {"depth": found.depth, "sensitivity": found.sensitivity}
    right, wrong = ([("", f * gradient_of_norm_by_hand(x))] for f in map(np.float32, (1, 1.1)))
    assert not compare_trees(right, found.oracle, lucky, **arguments)[0].passed
    for outputs, passed in ((right, True), (wrong, False)):
        judged = compare_trees(outputs, found.oracle, lucky, noise=found.noise, **arguments)
        assert judged[0].passed is passed
    assert measured.wide.shape == (noise.DRAWS, 30, 2)
    np.testing.assert_array_equal(measured.wide, measured.narrow)  # none narrower than float32


def test_noise_explains_a_function_that_is_two_ulps_off():
    """XLA's tanh on CPUs is 1 - 3 / 2**24 where it should be 1; gelu' at 6 is 28 times as wrong."""
    x = np.full((1, 1), 6.0, np.float32)

    def slope(tanh, x):
        inner = np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)
        return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh**2) * inner

    def reference(x):
        return slope(jnp.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)), x)

    found = expected(reference, (x,), {})
    for off, passed in ((3, True), (12, False)):
        outputs = [("", slope(np.float32(1 - off * 2**-24), x))]
        (judged,) = compare_trees(
            outputs,
            found.oracle,
            found.baseline,
            depth=found.depth,
            sensitivity=found.sensitivity,
            noise=found.noise,
            check_dtype=False,
        )
        assert judged.passed is passed


def test_noise_of_a_narrow_output_has_both_parts():
    x = np.random.default_rng(0).standard_normal((4, 50)).astype(ml_dtypes.bfloat16)
    found = expected(lambda a: jax.nn.softmax(a) @ a.T, (x,), {}).noise("")
    assert 0 < np.abs(found.wide).max() < 1e-5
    assert 1e-5 < np.abs(found.narrow).max() < 1e-1


@pytest.mark.parametrize(
    "reference",
    [
        pytest.param(lambda a: np.sin(np.asarray(a)), id="numpy"),
        pytest.param(lambda a: jnp.asarray(a > 0), id="bool"),
    ],
)
def test_no_noise_where_nothing_can_be_said(reference):
    assert expected(reference, (np.ones(3, np.float32),), {}).noise("") is None


def test_noise_is_evaluated_once_and_only_when_asked(monkeypatch):
    calls = []
    monkeypatch.setattr(noise.roundings, "rounded", lambda *_: calls.append(1) or 1 / 0)
    found = expected(lambda a: (a, a + 1), (np.ones(3, np.float32),), {})
    assert not calls
    assert found.noise("[0]") is None
    assert found.noise("[1]") is None
    assert len(calls) == 1


def test_begun_in_another_thread():
    threads = []

    def reference(a):
        threads.append(threading.current_thread())
        return np.asarray(a) * 2

    cache = ExpectedCache()
    x = np.ones(3, np.float32)
    cache.begin(reference, (x,), {})
    cache.begin(reference, (x,), {})
    found = cache.get(reference, (x,), {})
    assert found.oracle[0][1].tolist() == [2, 2, 2]
    assert len(threads) == 4
    assert threading.main_thread() not in threads
    assert cache.get(reference, (x,), {}) is found


def test_an_error_in_another_thread_is_raised_when_it_is_asked_for():
    def reference(a):
        raise ValueError("not for this")

    cache = ExpectedCache()
    x = np.ones(3, np.float32)
    cache.begin(reference, (x,), {})
    for _ in range(2):
        with pytest.raises(ReferenceError, match="not for this"):
            cache.get(reference, (x,), {})
