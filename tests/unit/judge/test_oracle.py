"""The reference as oracle and baseline."""

import dataclasses
import inspect

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pytest_pallas import KernelReferenceError
from pytest_pallas.budget import LastUsed
from pytest_pallas.judge import oracle as noise
from pytest_pallas.judge import references
from pytest_pallas.judge.judgement import compare_trees
from pytest_pallas.judge.oracle import PERTURBATIONS, ExpectedCache, expected


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

    with pytest.raises(
        KernelReferenceError, match=r"attention, evaluated .* on \(float32\[3\]\), raised TypeError"
    ):
        expected(attention, (np.ones(3, np.float32),), {})


def test_a_reference_that_returns_no_array():
    with pytest.raises(KernelReferenceError, match="must return an array"):
        expected(lambda a: None, (np.ones(3, np.float32),), {})


def test_nan_for_finite_inputs_is_the_references_fault():
    x = np.array([1.0, -1.0], np.float32)
    with pytest.raises(KernelReferenceError, match="NaN in 1 of 2 elements of the output"):
        expected(jnp.log, (x,), {})
    assert np.isnan(expected(jnp.log, (x,), {}, nan_ok=True).oracle[0][1][1])
    assert np.isnan(expected(jnp.log, (np.array([np.nan], np.float32),), {}).oracle[0][1])


def test_cache_evaluates_once_and_tells_values_apart():
    calls = []

    def reference(a, *, by):
        calls.append(by)
        return np.asarray(a) * by  # jit does not take it, so each evaluation is a call

    cache = ExpectedCache(kept=LastUsed(most=2, most_bytes=2**20))
    x = np.ones(3, np.float32)
    cache.get(reference, (x,), {"by": 2})
    once = len(calls)
    assert once == 2 * 2  # oracle and baseline; tried under jit first
    again = cache.get(reference, (x.copy(),), {"by": 2})
    assert len(calls) == once
    assert again.sensitivity("") > 0
    assert again.sensitivity("elsewhere") == 0
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
    assert 1000 < found.sensitivity("") < 3000


def test_sensitivity_of_a_step_is_small():
    """A floor changes by 1 however small the change of its input: that is no slope."""
    x = np.arange(1, 9, dtype=np.float32)
    assert expected(jnp.floor, (x,), {}).sensitivity("") <= 64


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
    lucky_found = dataclasses.replace(found, baseline=lucky)
    silent = dataclasses.replace(lucky_found, noise=lambda _: None)
    right, wrong = ([("", f * gradient_of_norm_by_hand(x))] for f in map(np.float32, (1, 1.1)))
    assert not compare_trees(right, silent)[0].passed
    for outputs, passed in ((right, True), (wrong, False)):
        judged = compare_trees(outputs, lucky_found)
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
        (judged,) = compare_trees(outputs, found, check_dtype=False)
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
    monkeypatch.setattr(noise, "rounded", lambda *_: calls.append(1) or 1 / 0)
    found = expected(lambda a: (a, a + 1), (np.ones(3, np.float32),), {})
    assert not calls
    assert found.noise("[0]") is None
    assert found.noise("[1]") is None
    assert len(calls) == 1


def variance_in_float32(x):
    x = x.astype(jnp.float32)
    return (x * x).mean(axis=1) - x.mean(axis=1) ** 2


def variance_of_bits(x):
    """In float32 whatever its inputs are: nothing wider has these bits."""
    bits = jax.lax.bitcast_convert_type(x.astype(jnp.float32), jnp.int32)
    x = jax.lax.bitcast_convert_type(bits, jnp.float32) + 0 * x.astype(jnp.float32)
    return (x * x).mean(axis=1) - x.mean(axis=1) ** 2


def variance(x):
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return (x * x).mean(axis=1) - x.mean(axis=1) ** 2


def judged(found, outputs, **changes):
    """The comparison of the only output."""
    (comparison,) = compare_trees([("", outputs)], dataclasses.replace(found, **changes))
    return comparison


@pytest.fixture(params=range(3))
def far_from_zero(request):
    """Rows whose variance is a ten thousandth of their squares."""
    drawn = np.random.default_rng(request.param).standard_normal((16, 64))
    return (100 + drawn).astype(np.float32)


def test_a_reference_in_float32_is_evaluated_in_float64(far_from_zero):
    found = expected(variance_in_float32, (far_from_zero,), {})
    line = inspect.getsourcelines(variance_in_float32)[1] + 1
    text = f"the reference computes in float32 ({__file__}:{line}); the oracle is its trace with"
    (note,) = found.notes
    assert (note.kind, note.text) == ("reference", f"{text} float64 instead")
    exact = expected(variance, (far_from_zero,), {})
    assert not (found.precision)
    assert not (exact.precision)
    assert not (exact.notes)
    np.testing.assert_array_equal(found.oracle[0][1], exact.oracle[0][1])


def scanned_in_float32(x):
    return jax.lax.scan(lambda sums, row: (sums + row, sums), jnp.zeros(64, jnp.float32), x)[0]


def refusing(x):
    if x.dtype == jnp.float64:
        raise TypeError("no float64")
    return jnp.cumsum(x, axis=0)[-1]


def converting(x):
    assert x.dtype.itemsize <= 4
    return jnp.sum(x.astype(jnp.float32), axis=0).astype(x.dtype)


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
@pytest.mark.parametrize("reference", [scanned_in_float32, refusing, converting])
def test_a_reference_that_refuses_float64_is_evaluated_in_it(reference, dtype, far_from_zero):
    x = far_from_zero.astype(dtype)
    found = expected(reference, (x,), {})
    np.testing.assert_array_equal(found.oracle[0][1], x.astype(np.float64).sum(axis=0))
    assert not found.precision
    (note,) = found.notes
    assert "refuses float64" in note.text or "computes in float32" in note.text


def test_a_reference_without_a_trace_that_refuses_float64_is_no_oracle(far_from_zero):
    """An ulp of the inputs shows what rounding does to it."""

    def reference(x):
        x = np.asarray(x)
        assert x.dtype == np.float32, "only float32"
        return (x * x).mean(axis=1) - x.mean(axis=1) ** 2

    found = expected(reference, (far_from_zero,), {})
    assert found.precision[""].dtype == "float32"
    first, *_ = found.notes
    assert "computes in float32" in first.text
    assert any("AssertionError: only float32" in note.text for note in found.notes)
    right = far_from_zero.astype(np.float64).var(axis=1).astype(np.float32)
    assert judged(found, right).passed
    assert not judged(found, np.float32(1.05) * right).passed


@pytest.mark.parametrize(
    ("function", "dtype"),
    [
        (lambda x: np.asarray(x, np.float32).mean(axis=1), "float32"),
        (lambda x: np.asarray(x).mean(axis=1), None),
        (lambda x: np.asarray(x)[:, ::-1], None),
        (lambda x: np.round(np.asarray(x)), None),
    ],
    ids=["float32", "float64", "moved", "integers"],
)
def test_numbers_of_float32_show_a_reference_in_numpy(function, dtype):
    x = np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    found = expected(function, (x,), {})
    assert [place.dtype for place in found.precision.values()] == [dtype] * (dtype is not None)


def test_an_error_in_all_dtypes_is_none_of_float64():
    with pytest.raises(KernelReferenceError, match="in the kernel's dtypes"):
        expected(lambda x: x.missing, (np.ones(3, np.float32),), {})


def test_the_bound_of_a_reference_of_bits_is_from_roundings(far_from_zero):
    """The oracle has the baseline's errors, so that twice their difference would be nothing."""
    found = expected(variance_of_bits, (far_from_zero,), {})
    right = far_from_zero.astype(np.float64).var(axis=1).astype(np.float32)
    np.testing.assert_array_equal(found.oracle[0][1], found.baseline[0][1])
    assert judged(found, right).passed
    assert not judged(found, right, noise=lambda _: None).passed
    wrong = judged(found, np.float32(1.05) * right)
    assert not wrong.passed
    assert f"computes in float32 ({__file__}:" in wrong.message
    assert "no more exact than the baseline" in wrong.message


def test_the_bound_of_a_reference_of_bits_is_near_that_of_one_in_float64(far_from_zero):
    """The error of a baseline that cannot be measured is taken from random roundings."""
    right = far_from_zero.astype(np.float64).var(axis=1).astype(np.float32)
    narrow, exact = (
        judged(expected(reference, (far_from_zero,), {}), np.float32(1.05) * right)
        for reference in (variance_of_bits, variance)
    )
    assert exact.allowed / 4 < narrow.allowed < 4 * exact.allowed


def test_an_infinity_of_float32_is_none_of_the_oracle():
    def reference(x):
        return jnp.log(jnp.exp(x.astype(jnp.float32)).sum(axis=1))

    x = np.full((2, 3), 100, np.float32)
    found = expected(reference, (x,), {})
    assert judged(found, np.full(2, 100 + np.log(3), np.float32)).passed


def test_a_wrong_accumulator_is_caught_beside_a_reference_in_float32():
    """Operands in bfloat16, a reference that accumulates in float32, a kernel in bfloat16."""
    generator = np.random.default_rng(0)
    x, y = (generator.standard_normal((64, 64)).astype(ml_dtypes.bfloat16) for _ in range(2))

    def reference(x, y):
        product = x.astype(jnp.float32) @ y.astype(jnp.float32)
        return (product + 1).astype(x.dtype)

    found = expected(reference, (x, y), {})
    total = np.zeros((64, 64), ml_dtypes.bfloat16)
    for k in range(64):
        total = (total + np.outer(x[:, k], y[k]).astype(np.float32)).astype(ml_dtypes.bfloat16)
    assert judged(found, found.baseline[0][1]).passed
    assert not judged(found, (total + 1).astype(ml_dtypes.bfloat16)).passed


def test_nothing_is_compiled(monkeypatch):
    """Not even where the noise and the sensitivity are asked for."""
    programs = []

    def counted(event, seconds, **_):
        programs.append(event) if event.endswith("backend_compile_duration") else None

    jax.monitoring.register_event_duration_secs_listener(counted)
    try:
        jax.jit(lambda x: x * 3)(np.ones(7))
        before = len(programs)
        x = np.random.default_rng(0).standard_normal((7, 19)).astype(np.float32)
        found = expected(lambda x: jax.nn.softmax(x) @ x.T + jnp.tanh(x).sum(), (x,), {})
        assert found.noise("") is not None
        assert found.sensitivity("")
        assert before
        assert len(programs) == before
        assert not found.notes
    finally:
        jax.monitoring.unregister_event_duration_listener(counted)


def test_the_trace_is_kept_by_shape_and_not_by_values():
    calls = []

    def reference(x):
        calls.append(x)
        return x + 1

    for value in range(3):
        expected(reference, (np.full(3, value, np.float32),), {})
    assert len(calls) == 2
    expected(reference, (np.zeros(3, ml_dtypes.bfloat16),), {})
    assert len(calls) == 3  # in float64 both are the same
    expected(reference, (np.zeros(4, np.float32),), {})
    assert len(calls) == 5


def test_a_reference_that_looks_at_values_is_evaluated_operation_by_operation():
    def reference(x):
        return jnp.exp(x) if x[0] > 0 else jnp.zeros_like(x)

    found = expected(reference, (np.ones(3, np.float32),), {})
    np.testing.assert_allclose(found.oracle[0][1], np.e, rtol=1e-15)
    assert found.noise("") is None
    assert found.sensitivity("") > 0
    assert not found.notes


def test_what_jax_has_to_evaluate_is_noted():
    def reference(x):
        return jax.lax.rng_uniform(2 * x[0], 2 * x[0], x.shape)

    found = expected(reference, (np.ones(3, np.float32),), {})
    assert found.oracle[0][1].tolist() == [2, 2, 2]
    [note] = found.notes
    assert note.kind == "reference"
    assert note.text.startswith("the reference was evaluated by JAX")


def test_a_reference_that_does_not_end(monkeypatch):
    def reference(x):
        return jax.lax.while_loop(lambda x: x[0] >= 0, lambda x: x * 1, x)

    monkeypatch.setattr(references, "STEPS", 1000)
    with pytest.raises(
        KernelReferenceError, match="reference reference: stopped after 1,000 equations"
    ):
        expected(reference, (np.ones(3, np.float32),), {})
