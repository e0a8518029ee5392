"""Random roundings of a traced function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_sim.rules import control
from pytest_pallas.judge.roundings import SPREAD, Rounding, rounded
from pytest_pallas.judge.stored import rounded_when_stored

X = np.random.default_rng(0).standard_normal((6, 8))


def deviation(function, *args, narrow=0.0, wide=0.0, dtypes=()):
    """Root mean square of what roundings change, over 200 draws: of the shape of the output."""
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(function)(*args)
        exact = np.asarray(function(*map(jnp.asarray, args)), np.float64)
    generator = np.random.default_rng(0)

    def error(shape):
        return generator.uniform(-SPREAD, SPREAD, shape)

    rounding = Rounding(narrow, wide, error, dtypes)
    draws = [draw.astype(np.float64) for (draw, *_) in rounded(jaxpr, args, rounding, 200)]
    return np.sqrt(np.mean(np.square(np.stack(draws) - exact), axis=0))


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["", "jit", "remat"])
def test_an_operation_is_rounded_once(wrap):
    found = deviation(wrap(lambda x: x * 3.0), X, wide=1e-6)
    np.testing.assert_allclose(found, 3e-6 * np.abs(X), rtol=0.3)


def test_an_approximated_function_has_more_roundings():
    found = deviation(jnp.tanh, np.full((1, 9), 20.0), wide=1e-6)
    np.testing.assert_allclose(found, 4e-6, rtol=0.3)


@pytest.mark.parametrize(
    ("function", "slope"),
    [(jnp.exp2, np.log(2) * 30), (lambda x: jnp.power(3.0, x), np.log(3) * 30 * np.sqrt(2))],
)
def test_the_argument_of_an_approximated_function_is_rounded(function, slope):
    found = deviation(function, np.full((1, 9), 30.0), wide=1e-6)
    exact = np.asarray(function(30.0), np.float64)
    np.testing.assert_allclose(found, 1e-6 * exact * np.hypot(slope, 4), rtol=0.3)


def test_a_function_within_jit_is_rounded_operation_by_operation():
    """Also one that is so long that the simulator calls it."""

    def many(x):
        for _ in range(100):
            x = x * 1.5 / 1.5
        return x

    def call(x):
        return jax.jit(many)(x)

    x = np.full(64, 3.0, np.float32)
    alone, called = (deviation(each, x, wide=2.0**-20) for each in (many, call))
    np.testing.assert_array_equal(called, alone)
    assert alone.min() > 3 * 3 * 2.0**-20  # 200 roundings: more than ten times one


def test_a_function_of_integers_stays_one():
    found = deviation(lambda x: x + jnp.asarray(2) ** jnp.arange(8), X, wide=1e-6)
    np.testing.assert_allclose(found, 1e-6 * np.abs(X + 2.0 ** np.arange(8)), rtol=0.3)


def test_functions_with_rules_of_their_own_are_entered():
    found = deviation(lambda x: jax.nn.relu(x * 3.0), X, wide=1e-6)
    np.testing.assert_allclose(found, 3e-6 * np.maximum(X, 0), rtol=0.3)


def test_what_an_infinity_masks_stays_masked():
    def weights(x):
        scores = jnp.where(jnp.arange(8) < 4, x * 3.0, -jnp.inf) * 0.5
        return jax.nn.softmax(scores)

    found = deviation(weights, X, wide=1e-6)
    assert (found[:, :4] > 0).all()
    assert (found[:, 4:] == 0).all()


def test_what_moves_or_chooses_is_exact():
    def function(x):
        return jnp.concatenate([jnp.maximum(-x.T, 0.5), x.T[::-1]])

    assert not deviation(function, X, wide=1e-6, narrow=1e-3).any()


def test_a_comparison_is_no_use_of_a_product():
    """An element is equal to the largest: in the gradient of a maximum, one is."""

    def of_largest(a, b):
        z = a @ b
        return jnp.where(z == z.max(), 1.0, 0.0)

    assert not deviation(of_largest, X, X.T, wide=1e-3, narrow=1e-3).any()


def test_a_product_of_inputs_has_no_narrow_rounding():
    assert deviation(lambda x: x @ x.T, X, narrow=1e-3).max() < 1e-12
    assert deviation(lambda x: jnp.sum(x, 0), X, narrow=1e-3).max() < 1e-12


def test_terms_that_were_computed_are_rounded():
    found = deviation(lambda x: jnp.sum(jnp.exp(x), 1), X, narrow=1e-3)
    np.testing.assert_allclose(found, 1e-3 * np.sqrt(np.exp(2 * X).sum(1)), rtol=0.3)


def test_a_product_that_cancels_is_used_with_the_error_of_its_terms():
    x, y = np.array([[1.0, 1.0]]), np.array([[100.0], [-100.0]])
    found = deviation(lambda a, b: a.T.T @ b + 1.0, x, y, narrow=1e-3)
    np.testing.assert_allclose(found, 1e-3 * np.sqrt(2) * 100, rtol=0.3)


def test_a_product_that_is_used_twice_may_be_two_products():
    """As in the gradient of attention, where a kernel has ``sum(o * do)`` for ``sum(p * dp)``."""
    row, column = np.ones((1, 8)), np.array([[1.0], [-1.0]] * 4)

    def once(x, y):
        return (x @ y) * 2.0

    def twice(x, y):
        z = x @ y
        return z * 2.0 - z * 2.0

    of_one_sum = deviation(once, row, column, wide=1e-6) / 2
    assert of_one_sum > 8e-6
    found = deviation(twice, row, column, wide=1e-6) / 2
    np.testing.assert_allclose(found, of_one_sum, rtol=0.3)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["", "jit"])
@pytest.mark.parametrize(
    "change",
    [
        lambda z: jnp.where(jnp.arange(z.size) % 2 == 0, z, 0.0),
        lambda z: jnp.concatenate([z, z])[:1],
        lambda z: jnp.pad(z, 1)[1:-1, 1:-1],
        lambda z: z.T,
    ],
    ids=["masked", "joined", "padded", "transposed"],
)
def test_a_masked_or_moved_product_may_be_two_products(wrap, change):
    """The mask of attention is between a product and its uses; a mask alone is no use."""
    row, column = np.ones((1, 8)), np.array([[1.0], [-1.0]] * 4)
    changed = wrap(change)
    of_one_sum = deviation(lambda x, y: (x @ y) * 2.0, row, column, wide=1e-6)
    once = deviation(lambda x, y: changed(changed(x @ y)) * 2.0, row, column, wide=1e-6)
    np.testing.assert_allclose(once, of_one_sum, rtol=0.3)

    def twice(x, y):
        z = changed(x @ y)
        return z * 2.0 - z * 2.0

    np.testing.assert_allclose(deviation(twice, row, column, wide=1e-6), of_one_sum, rtol=0.3)


LOGITS = np.array([[7.0, 6.0, 5.5, 6.5]]) + np.array([[0.0], [100.0], [-400.0]])


def of_products(exponents):
    """Divide exponentials by their sums, in two ways that cancel: what remains is rounding."""
    e = jnp.exp(exponents - exponents.max(1, keepdims=True))
    e = jnp.where(jnp.arange(4) < 4, e, 0.0)
    sums = e.sum(1, keepdims=True)
    return e / sums


@pytest.mark.parametrize(
    "softmax",
    [
        of_products,
        lambda x: jax.nn.softmax(x, axis=1),
        lambda x: jnp.exp(jax.nn.log_softmax(x, axis=1)),
        lambda x: jnp.exp(x - jax.nn.logsumexp(x, axis=1, keepdims=True)),
    ],
    ids=["by hand", "softmax", "log_softmax", "logsumexp"],
)
def test_an_exponential_may_be_computed_again_from_a_stored_log_sum_exp(softmax):
    """``exp(x - lse)`` has the error of rounding ``lse``, and that of rounding ``x`` for 2^x."""
    with jax.enable_x64(True):
        exact = np.asarray(softmax(jnp.asarray(LOGITS)))
    found = deviation(softmax, LOGITS, wide=1e-6) / exact / 1e-6
    stored = np.abs(np.log(np.exp(LOGITS).sum(1, keepdims=True)) + np.zeros(4))
    assert (found[1:] > 0.8 * stored[1:]).all(), found
    assert (found[1:] < 2.5 * stored[1:]).all(), found


def test_an_exponent_that_is_computed_again_is_rounded_again():
    """The largest cancels with itself; in ``exp(x - lse)`` it does not, and has its own error."""
    x = np.array([[300.0, 100.0, 300.0]])

    def twice(a):
        e = jnp.exp(a - a.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    found = deviation(lambda a: twice(a)[:, 0] - twice(a)[:, 2], x, wide=1e-6)
    assert found > 0.8 * 0.5 * np.sqrt(2) * 300e-6


def test_an_exponent_that_is_a_product_may_be_another_product():
    """One key has the weight 1, to the bit; with scores of another product, it is off by that."""
    x, y = np.full((1, 64), 2.0), np.concatenate([[1.0] * 32, [-1.0] * 32])[:, None]

    def weight(a, b):
        s = jnp.where(jnp.arange(1) == 0, (a @ b) * 1.0, -jnp.inf)
        e = jnp.exp(s - s.max(1, keepdims=True))
        return (e / e.sum(1, keepdims=True)) * 1.0

    found = deviation(weight, x, y, wide=1e-6)
    of_product = deviation(lambda a, b: a @ b, x, y, wide=1e-6)
    np.testing.assert_allclose(found, of_product, rtol=0.3)


def test_the_error_of_a_stored_log_sum_exp_is_that_of_its_row():
    """A row of a softmax that was summed up is off by it, however many terms it has."""
    x = np.full((1, 400), 50.0)
    found = deviation(lambda a: jax.nn.softmax(a, 1).sum(1), x, wide=1e-6)
    assert found > 0.8e-6 * (50 + np.log(400))


def test_a_row_that_is_masked_has_no_error():
    """Its sum is 0: the logarithm of that is the error of no other row."""

    def softmax(x):
        s = jnp.where(jnp.arange(3)[:, None] > 0, x, -jnp.inf)
        most = s.max(1, keepdims=True)
        e = jnp.exp(s - jnp.where(most == -jnp.inf, 0.0, most))
        total = e.sum(1, keepdims=True)
        return (e / jnp.where(total == 0.0, 1.0, total)).T @ jnp.ones((3, 2))

    found = deviation(softmax, LOGITS, wide=1e-6)
    assert np.isfinite(found).all()
    assert found.max() > 1e-5


def test_a_gradient_has_the_error_of_a_stored_log_sum_exp_before_it_cancels():
    """The gradient of the largest exponent cancels it, as in a softmax that is written by hand."""
    x, ct = np.array([[30.0, 0.0, 1.0]]), np.array([[1.0, 2.0, 3.0]])

    def softmax(a):
        e = jnp.exp(a - a.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    found = deviation(lambda a, c: jax.vjp(softmax, a)[1](c)[0], x, ct, wide=1e-6)
    assert found[0, 0] > 10e-6, "p * (dp - delta) is off by what rounds delta, not by itself"


@pytest.mark.parametrize("keys", [1, 2])
def test_the_gradient_of_a_row_of_one_key_has_the_error_of_its_products(keys):
    """It cancels to the bit; a kernel has ``dp - sum(o * do)``, whose parts are rounded."""
    q, k = np.ones((1, 4)), np.array([[0.1] * 4, [-100.0] * 4])[:keys]
    v, ct = np.random.default_rng(1).standard_normal((2, keys, 16))

    def attention(a, b, c):
        s = a @ b.T
        e = jnp.exp(s - s.max(1, keepdims=True))
        return (e / e.sum(1, keepdims=True)) @ c

    def gradient(a, b, c, d):
        return jax.vjp(attention, a, b, c)[1](d)[0]

    of_product = deviation(lambda a, b: (a @ b.T) * 1.0, ct[:1], v[:1], wide=1e-6)
    found = deviation(gradient, q, k, v, ct[:1], wide=1e-6)
    assert (found > 0.5 * of_product * 0.1).all(), (found, of_product)
    assert (found < 5 * of_product * 0.1).all(), (found, of_product)
    narrow = deviation(gradient, q, k, v, ct[:1], narrow=1e-3)
    terms = 1e-3 * np.sqrt(np.sum(np.square(ct[0] * v[0])))
    assert (narrow > 0.05 * terms).all(), "the output may be rounded to a narrow dtype"


def test_a_difference_of_a_difference_may_be_one_of_a_sum():
    found = deviation(lambda a, b, c: (a - b) - c, *np.array([[101.0], [60.0], [40.0]]), wide=1e-6)
    np.testing.assert_allclose(found, np.hypot(100, 41) * 1e-6, rtol=0.3)


def test_a_sum_has_the_error_of_its_magnitude_and_order():
    x = np.random.default_rng(1).standard_normal((1, 400))
    found = deviation(lambda a: a.sum(1), x, wide=1e-6)
    np.testing.assert_allclose(found, 1e-6 * 20 * np.abs(x).sum(), rtol=0.3)


@pytest.mark.parametrize("product", [False, True])
def test_equal_terms_are_rounded_alike(product):
    x = np.full((1, 4000), 0.7)
    function = (lambda a: a @ a.T) if product else (lambda a: a.sum(1))
    found = deviation(function, x, wide=1e-6)
    total = 4000 * (0.49 if product else 0.7)
    np.testing.assert_allclose(found, 1e-6 * 0.29 * 4000 * total, rtol=0.3)


def test_a_sequential_sum_of_equal_terms_is_off_by_a_sixteenth_of_an_ulp_each():
    """The constant behind the last test."""
    terms = np.abs(np.random.default_rng(2).standard_normal(2000)).astype(np.float32)
    sums = np.array([np.cumsum(np.full(2048, t))[-1] for t in terms], float)
    errors = (sums / (2048.0 * terms) - 1) / 2.0**-23
    assert np.sqrt(np.mean(errors**2)) == pytest.approx(2048 / 16, rel=0.1)


def test_loops_are_one_operation():
    def function(x):
        return jax.lax.fori_loop(0, 5, lambda _, y: y * 2.0, x)

    found = deviation(function, X, wide=1e-6)
    np.testing.assert_allclose(found, 32e-6 * np.abs(X), rtol=0.3)


def test_a_number_in_float32_moves_to_its_neighbors():
    """One of twelve does, which has the mean square of rounding to nearest."""
    found = deviation(
        lambda x: x.astype(jnp.float32) * 3,
        np.linspace(1, 2, 500, endpoint=False)[None],
        wide=1e-9,
        dtypes={"float32"},
    )
    tripled = np.float32(np.linspace(1, 2, 500, endpoint=False)) * 3
    ulps = found / np.spacing(tripled)
    assert np.sqrt(np.mean(ulps**2)) == pytest.approx(np.sqrt(1 / 12), rel=0.05)


def test_a_number_is_rounded_as_it_was_meant():
    """What need not be rounded at random keeps its value."""
    found = deviation(lambda x: x.astype(jnp.bfloat16) * 3, X, wide=1e-9, dtypes={"float32"})
    assert found.max() == 0


def test_a_sum_in_float32_has_the_error_of_its_order():
    x = np.random.default_rng(1).standard_normal((1, 400))
    found = deviation(lambda a: a.astype(jnp.float32).sum(1), x, wide=1e-5, dtypes={"float32"})
    np.testing.assert_allclose(found, 1e-5 * 20 * np.abs(x).sum(), rtol=0.3)


@pytest.mark.parametrize(("prepared", "steps"), [(lambda x: x.T, 5), (lambda x: x * 2.0, 50)])
def test_a_loop_over_inputs_is_evaluated_once_for_all_draws(monkeypatch, prepared, steps):
    def recurrent(x):
        return jax.lax.scan(lambda s, row: (s + row, s), jnp.zeros(5), prepared(x))[1]

    counted = []

    def run(*args):
        counted.append(args)
        return original(*args)

    original = control.run
    monkeypatch.setattr(control, "run", run)
    x = np.random.default_rng(0).standard_normal((5, 5))
    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(recurrent)(x)
    error = np.random.default_rng(0).standard_normal
    draws = rounded(jaxpr, [x], Rounding(0.0, 1e-6, error), 10)
    assert len(counted) == steps
    assert len({draw.tobytes() for (draw,) in draws}) == 10  # its output is rounded each time


@pytest.mark.parametrize(
    "softmax",
    [
        of_products,
        lambda x: jax.nn.softmax(x, axis=1),
        lambda x: jnp.exp(x - jax.nn.logsumexp(x, axis=1, keepdims=True)),
    ],
    ids=["by hand", "softmax", "logsumexp"],
)
@pytest.mark.parametrize("delta", ["sum", "product"])
def test_a_gradient_starts_from_an_output_that_was_rounded(softmax, delta):
    """By the scores it is ``p * (dp - sum(o * do))``, with one error for each row."""
    v, do = np.random.default_rng(1).standard_normal((2, 4, 16))
    do = do[:3]

    def of_scores(x, b, ct):
        if delta == "sum":
            return jax.vjp(lambda a: softmax(a) @ b, x)[1](ct)[0], softmax(x)
        p, dp = softmax(x), ct @ b.T
        return p * (dp - jnp.einsum("qk,qk->q", p, dp)[:, None]), p

    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(of_scores)(LOGITS, v, do)
        exact, p = (np.asarray(x) for x in of_scores(LOGITS, v, do))
    error = np.random.default_rng(0).uniform
    rounding = Rounding(1e-3, 1e-6, lambda shape: error(-SPREAD, SPREAD, shape))
    draws = rounded_when_stored(jaxpr, (LOGITS, v, do), rounding, 200)
    of_delta = (np.stack([draw for draw, _ in draws]) - exact) / p
    np.testing.assert_allclose(of_delta, of_delta[..., :1] + np.zeros(4), rtol=1e-6)
    of_output = np.square(do * (p @ v)).sum(1)
    of_terms = np.einsum("qe,qk,ke->q", do**2, p**2, v**2)
    deviations = np.sqrt(np.mean(np.square(of_delta[..., 0]), 0))
    np.testing.assert_allclose(deviations, 1e-3 * np.sqrt(of_output + of_terms), rtol=0.3)


def test_without_a_softmax_no_output_was_stored():
    def weighted(x, y):
        return jnp.sum((x @ y) * x, 1)

    with jax.enable_x64(True):
        jaxpr = jax.make_jaxpr(weighted)(X, np.eye(8))
    rounding = Rounding(1e-3, 0.0, np.ones)
    [[result]] = rounded_when_stored(jaxpr, (X, np.eye(8)), rounding, 1)
    np.testing.assert_allclose(result, np.square(X).sum(1))
