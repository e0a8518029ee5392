"""What rounding alone may do: it widens the default rule where the reference is as sensitive."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pallas_sim.findings import SourceLine
from pytest_pallas.checks.transformations import Vjp
from pytest_pallas.draw.values import generate
from pytest_pallas.judge.judgement import Expected, compare, compare_trees
from pytest_pallas.judge.oracle import expected
from pytest_pallas.judge.tolerance import Noise, Precision, Tolerance, excused, measure

bf16 = np.dtype(ml_dtypes.bfloat16)
EPS = 2.0**-23
COUNT = 400


def draws(deviations, *, seed=0):
    """Sixteen errors of each element, normal with the given deviations in float32 ulps."""
    generator = np.random.default_rng(seed)
    return EPS * np.asarray(deviations) * generator.standard_normal((16, COUNT))


def judge(errors, noise=None, **options):
    """Compare ones that are off by ``errors`` float32 ulps with an exact baseline."""
    oracle = np.ones(COUNT)
    actual = (oracle + EPS * np.asarray(errors)).astype(np.float32)
    called = None if noise is None else lambda: noise
    return compare(actual, oracle, oracle.astype(np.float32), noise=called, **options)


def one(error, at=0):
    errors = np.zeros(COUNT)
    errors[at] = error
    return errors


def test_noise_excuses_an_element_of_six_deviations():
    quiet = draws(one(10.0))
    noise = Noise(wide=quiet, narrow=quiet)
    assert not judge(one(30)).passed
    result = judge(one(30), noise)
    assert result.passed
    assert 30 < result.allowed < 90
    assert not judge(one(100), noise).passed
    assert not judge(one(30, at=1), noise).passed  # nothing is uncertain there


def test_the_deviation_of_an_element_of_many_is_not_by_chance_far_too_small():
    """Six times the least of 2^18 deviations of sixteen draws are 1.6 deviations."""
    drawn = EPS * 10 * np.random.default_rng(0).standard_normal((16, 2**18))
    drawn[:, 0] = 0.0
    errors = excused_errors(drawn.reshape(16, 512, 512))
    assert errors[0, 1:].min() > 30
    assert errors.mean() == pytest.approx(60, rel=0.05)
    few = excused_errors(drawn[:, :64].reshape(16, 8, 8))
    assert few[0, 0] == 0
    drawn = drawn.reshape(16, 512, 512)
    drawn[:, 7] = drawn[:, :, 3] = 0.0
    errors = excused_errors(drawn)
    assert not errors[7].any(), "a row without noise has none"
    assert not errors[:, 3].any(), "nor has a column"


def excused_errors(drawn):
    """What noise excuses in an output of ones."""
    ones = np.ones(drawn.shape[1:])
    measured = measure(ones, ones, ones, np.dtype(np.float32))
    noise = Noise(wide=drawn, narrow=np.zeros_like(drawn))
    return excused(noise, measured, Tolerance(), np.float32, 0.0).elements


def test_noise_excuses_many_errors_as_large_as_itself_and_no_larger():
    noise = Noise(wide=draws(np.full(COUNT, 10.0)), narrow=draws(np.full(COUNT, 10.0)))
    errors = 10 * np.random.default_rng(7).choice([-1, 1], COUNT)
    assert not judge(errors).passed
    assert judge(errors, noise).passed
    result = judge(2 * errors, noise)
    assert (result.passed, result.kind) == (False, "rms")
    assert 10 < result.allowed < 13


def test_a_stricter_factor_excuses_less():
    noise = Noise(wide=draws(one(10.0)), narrow=draws(one(10.0)))
    assert not judge(one(30), noise, tolerance=Tolerance(factor=0.5)).passed


def test_narrow_noise_doubles_the_bound_of_an_element_at_most():
    oracle = np.ones(COUNT)
    baseline = oracle.astype(bf16)
    wild = 2.0**16 * draws(np.full(COUNT, 100.0))
    noise = Noise(wide=0 * wild, narrow=wild)

    def passes(ulps, count=1):
        actual = oracle.copy()
        actual[:count] += ulps * 2.0**-7
        return compare(actual.astype(bf16), oracle, baseline, noise=lambda: noise).passed

    assert passes(4)
    assert passes(8)
    assert not passes(9)
    assert not passes(2, count=COUNT)  # the root mean square has no more room


def test_it_is_asked_only_where_an_output_would_fail():
    called = []

    def noise(path):
        called.append(path)
        return None

    ones = np.ones(3, np.float32)
    good, bad = [("a", ones), ("b", ones)], [("a", ones), ("b", 2 * ones)]
    compare_trees(good, Expected(good, good, noise=noise))
    compare_trees(bad, Expected(good, good, noise=noise), tolerance=Tolerance(rtol=1e-3))
    compare_trees(bad, Expected(good, good, noise=noise), exact=True)
    compare_trees([("a", ones), ("b", np.nan * ones)], Expected(good, good, noise=noise))
    assert called == []
    assert [c.passed for c in compare_trees(bad, Expected(good, good, noise=noise))] == [
        True,
        False,
    ]
    assert called == ["b"]


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_noise_that_is_not_finite_excuses_nothing(value):
    noise = Noise(wide=np.full((16, COUNT), value), narrow=np.full((16, COUNT), value))
    assert not judge(one(30), noise).passed


@pytest.mark.parametrize("precision", [None, Precision("float32", SourceLine("refs.py", 12))])
def test_an_oracle_with_noise_of_its_own_widens_the_bound(precision):
    """By three times the worst error of a draw: the baseline's twice, and the oracle's."""
    noise = Noise(wide=draws(one(10.0)), narrow=draws(one(10.0)))
    result = judge(one(1000), noise, precision=precision)
    assert not result.passed
    assert ("computes in float32 (refs.py:12)" in result.message) is bool(precision)
    errors = noise.wide[:, 0] / EPS
    deviation, worst = np.sqrt(np.mean(errors**2)), np.mean(np.abs(errors))
    allowed = max(5 + 3 * worst, 6 * np.sqrt(2) * deviation) if precision else 6 * deviation
    assert result.allowed == pytest.approx(allowed)


def test_many_errors_beside_an_oracle_with_noise_of_its_own():
    """Allowed on the whole is what is without noise, and three times that of a draw."""
    noise = Noise(wide=draws(np.full(COUNT, 10.0)), narrow=draws(np.full(COUNT, 10.0)))
    errors = 10 * np.random.default_rng(7).choice([-1, 1], COUNT)
    assert judge(3 * errors, noise, precision=Precision("float32")).passed
    result = judge(4 * errors, noise, precision=Precision("float32"))
    assert (result.passed, result.kind) == (False, "rms")
    assert 30 < result.allowed < 37


def test_the_sums_of_tensor_cores_come_on_top():
    """An element may have twice the worst error of a draw; the mean square, twice that of one."""
    quiet = np.zeros((16, COUNT))
    sums = draws(np.full(COUNT, 50.0))
    without, noise = Noise(wide=quiet, narrow=quiet), Noise(wide=quiet, narrow=quiet, chip=sums)
    errors = 50 * np.random.default_rng(7).standard_normal(COUNT)
    assert not judge(errors, without).passed
    assert judge(errors, noise).passed
    worst = np.abs(sums).max(axis=1).mean() / EPS
    result = judge(one(1.9 * worst), noise)
    assert result.passed
    assert 2 * worst < result.allowed < 4 * worst
    assert not judge(one(4 * worst), noise).passed
    result = judge(3 * 50 * np.sign(errors), noise)
    assert (result.passed, result.kind) == (False, "rms")


def test_sums_that_change_nothing_allow_nothing():
    quiet = np.zeros((16, COUNT))
    noise = Noise(wide=quiet, narrow=quiet, chip=quiet)
    assert judge(one(5), noise).allowed == judge(one(5)).allowed


def in_lines(errors, of_rows):
    """Judge bfloat16 ones that are off by ulps; each row may be off by a multiple of one line."""
    oracle = np.ones((8, 50))
    actual = (oracle + 2.0**-7 * errors).astype(bf16)
    generator = np.random.default_rng(0)
    stored = 2.0**-7 * of_rows * generator.standard_normal((16, 8, 1))
    quiet = np.zeros_like(stored)
    noise = Noise(wide=quiet, narrow=quiet, stored=stored)
    baseline = oracle.astype(bf16)
    return compare(actual, oracle, baseline, noise=lambda: noise, explained=False)


def test_what_a_stored_output_changes_is_taken_off():
    """Where its errors have the ratio of the draws, and are not larger than those say."""
    line = np.arange(50) % 2 * 8.0
    steps = np.random.default_rng(1).choice([-2, -1, 1, 2], (8, 1))
    assert not in_lines(steps * line, 0 * line).passed
    assert in_lines(steps * line, line).passed
    assert not in_lines(steps * line[::-1], line).passed, "in other elements"
    assert not in_lines(steps * np.abs(line - 4), line).passed, "in all of them"
    assert not in_lines(9 * steps * line, line).passed, "nine deviations"
    assert not in_lines(steps * line + 6 * (np.arange(50) == 3), line).passed, "beside it"
    columns = in_lines((steps * line).T.reshape(8, 50), line)
    assert not columns.passed


def attention(q, k, v):
    return jax.nn.softmax(q @ jnp.swapaxes(k, -1, -2) * 40**-0.5, axis=-1) @ v


def by_blocks(do, q, k, v, *, rounded=True, part=1.0, order=1):
    """Gradients as flash attention has them, with ``sum(o * do)`` of a rounded output."""
    do, q, k, v = (np.asarray(array, np.float64) for array in (do, q, k, v))
    s = np.einsum("...qd,...kd->...qk", q, k) * 40**-0.5
    p = np.exp(s - s.max(-1, keepdims=True))
    p /= p.sum(-1, keepdims=True)
    o = p @ v
    o = o.astype(bf16).astype(np.float64) if rounded else o
    ds = p * (np.einsum("...qe,...ke->...qk", do, v) - part * (o * do).sum(-1, keepdims=True))
    ds = ds[..., ::order]
    dk = 40**-0.5 * np.einsum("...qk,...qd->...kd", ds, q)
    return [a.astype(bf16) for a in (40**-0.5 * ds @ k, dk, np.swapaxes(p, -1, -2) @ do)]


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(("values", "of_values"), [("integers", 166), ("ties", 2), ("peaks", 3)])
def test_a_gradient_of_attention_from_the_output_that_was_rounded(values, of_values, seed):
    """Of single queries, with few keys that have nearly all of the weight."""
    shapes = (2, 3, 1, 40), (2, 3, 33, 40), (2, 3, 33, 24)
    qkv = [generate(values, shape, bf16, seed=of_values, index=i) for i, shape in enumerate(shapes)]
    do = np.random.default_rng(seed).standard_normal((2, 3, 1, 24)).astype(bf16)
    values = expected(Vjp(attention, (0, 1, 2)), (do, *qkv), {})

    def passes(**changes):
        answers = by_blocks(do, *qkv, **changes)
        named = [(path, array) for (path, _), array in zip(values.oracle, answers, strict=True)]
        return [result.passed for result in compare_trees(named, values, explained=False)]

    assert passes() == passes(rounded=False) == [True, True, True]
    assert passes(part=0.95)[:2] == [False, False]
    assert not all(passes(part=0.0)[:2])
    assert passes(order=-1)[:2] == [False, False]
