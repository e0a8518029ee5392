"""What JAX composes of other primitives, passes on as it is, or asks the host for."""

from __future__ import annotations

import functools
import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import io_callback, sparse
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.extend.core import jaxpr_as_fun
from pallas_test_support.rules_of_jax import assert_same_bits, assert_within_ulps, both, drawn

from pallas_sim import simulate
from pallas_sim.errors import SimulationError

#: Where JAX has operations that are not public.
OPERATIONS = importlib.import_module("jax._src.lax.lax")

X = np.random.default_rng(0).standard_normal((4, 6)).astype(np.float32)


def test_gamma_and_what_is_made_of_it():
    alpha = np.array([0.3, 1.0, 7.5], np.float32)

    def draws(alpha):
        key = jax.random.key(1)
        return [
            jax.random.gamma(key, alpha, (5, 3)),
            jax.random.loggamma(key, alpha),
            jax.random.beta(key, alpha, 2.0),
            jax.random.dirichlet(key, alpha),
            jax.grad(lambda a: jax.random.gamma(key, a).sum())(alpha),
        ]

    for actual, wanted in both(draws, alpha):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4)


def other_generators() -> list[str]:
    """Those of this JAX that the simulator does not know itself."""
    known = importlib.import_module("jax._src.random.prng").prngs
    return sorted(name for name in known if name.startswith(("philox", "threefry4")))


@pytest.mark.parametrize("name", other_generators())
def test_keys_of_generators_without_a_rule(name):
    def draws(seed, data):
        key = jax.random.key(seed, impl=name)
        keys = jax.random.split(key, (2, 3))
        return [
            jax.random.key_data(key),
            jax.random.key_data(keys),
            jax.random.key_data(jax.random.fold_in(key, data)),
            *(jax.random.bits(key, (7,), dtype) for dtype in ("uint8", "uint16", "uint32")),
            jax.vmap(jax.random.uniform)(keys.reshape(-1)),
        ]

    assert_same_bits(draws, np.int32(-3), np.uint32(9))


@pytest.mark.skipif(not hasattr(lax, "scaled_dot"), reason="this JAX has no such function")
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_scaled_products(dtype):
    random = np.random.default_rng(3)
    a, b = (random.standard_normal((2, n, 64)).astype(dtype) for n in (5, 7))
    scales = [2.0 ** random.integers(-2, 3, (2, n, 2)) for n in (5, 7)]
    s, t = (each.astype(jnp.float8_e8m0fnu) for each in scales)

    def products(a, b, s, t):
        right, scale = b.transpose(0, 2, 1), t.transpose(0, 2, 1)
        dims = (((2,), (1,)), ((0,), (0,)))
        return [
            jax.nn.scaled_matmul(a, b, s, t),
            lax.scaled_dot(
                a, right, lhs_scale=s, rhs_scale=scale, dimension_numbers=dims,
                preferred_element_type=jnp.bfloat16,
            ),
        ]  # fmt: skip

    (exact, wanted), (rounded, narrow) = both(products, a, b, s, t)
    np.testing.assert_allclose(exact, wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(*(each.astype(np.float32) for each in (rounded, narrow)), rtol=2**-7)


def test_what_a_custom_rule_solves_or_transposes():
    def solved(x):
        solve = functools.partial(lax.custom_linear_solve, lambda v: 3 * v)
        return solve(x, lambda _, b: b / 3, lambda _, b: b / 3)

    assert_within_ulps(lambda x: [solved(x), jax.grad(lambda x: solved(x).sum())(x)], X)


def test_special_functions_of_their_parameters():
    def slope(x):
        return jax.grad(lambda a: jax.scipy.special.gammainc(a, x).sum())(x + 1)

    assert_within_ulps(slope, np.abs(X) + 0.5, ulps=300)


def test_sparse_matrices():
    def products(x):
        matrix = sparse.BCOO.fromdense(x, nse=24)
        return [matrix @ x.T, matrix.T.todense(), sparse.BCSR.fromdense(x, nse=24) @ x.T]

    for actual, wanted in both(products, np.where(X > 0, X, 0)):
        np.testing.assert_allclose(actual, wanted, rtol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8"])
def test_what_is_passed_on(dtype):
    def passed(x):
        return [
            jax.checkpoint_name(x, "x") if hasattr(jax, "checkpoint_name") else named(x, "x"),
            jax.device_put(x),
            lax.composite(lambda x: x + x, "my.twice")(x),
            lax.stop_gradient(x),
        ]

    named = importlib.import_module("jax._src.ad_checkpoint").checkpoint_name
    assert_same_bits(passed, drawn(dtype, (3, 5)))


def test_programs_that_are_traced_already():
    """Called again, also where their gradient is their own."""

    @jax.custom_vjp
    def scaled(x, scale):
        return x * scale

    scaled.defvjp(lambda x, scale: (x * scale, scale), lambda scale, g: (g * scale, g.sum()))
    closed = jax.make_jaxpr(lambda x: (scaled(x, 3.0), x + 1))(X)
    assert_same_bits(jax.jit(jaxpr_as_fun(closed)), X)
    if "__call__" in vars(jax.stages.Traced):
        traced = jax.jit(lambda x, y: (x + y, scaled(x, 2.0))).trace(X, X)
        assert_same_bits(lambda x: traced(x, x), X)


@pytest.mark.skipif(not hasattr(OPERATIONS, "tie_p"), reason="this JAX has no such primitive")
def test_what_is_tied_to_another_value_or_kept():
    def tied(x, y):
        OPERATIONS.dce_sink(x + 1)
        return OPERATIONS.tie_p.bind(x, y)

    assert_same_bits(tied, X, X + 1)


@pytest.mark.skipif(not hasattr(pltpu, "einshape"), reason="this JAX has no such function")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_einshape(dtype):
    x = drawn(dtype, (4, 6))
    assert_same_bits(lambda x: pltpu.einshape("a(bc)->bac", x, b=2), x)


def test_a_tpu_is_what_is_simulated():
    def by_platform(x, **more):
        return lax.platform_dependent(x, cpu=lambda x: x, **more)

    tpu, default, host = simulate(
        lambda x: [
            by_platform(x, tpu=lambda x: 2 * x),
            by_platform(x, default=lambda x: 3 * x),
            by_platform(x, cuda=lambda x: 4 * x),
        ],
        X,
    ).values
    np.testing.assert_array_equal(tpu, 2 * X)
    np.testing.assert_array_equal(default, 3 * X)
    np.testing.assert_array_equal(host, X)


@pytest.mark.parametrize("ordered", [True, False])
def test_callbacks(ordered):
    """The host gets arrays of JAX, in the order of the program; batches come one by one."""
    seen = []

    def twice(x):
        seen.append(x)
        return np.asarray(x) * 2

    def asked(x):
        row = jax.ShapeDtypeStruct(x.shape[1:], x.dtype)
        first = jax.pure_callback(twice, x, x)
        second = io_callback(twice, x, first, ordered=ordered)
        rows = jax.vmap(lambda r: jax.pure_callback(twice, row, r, vmap_method="sequential"))(x)
        io_callback(seen.append, None, jnp.int32(7), ordered=ordered)
        return first, second, rows

    found = simulate(asked, X)
    assert not found.fallbacks
    for value, factor in zip(found.values, (2, 4, 2), strict=True):
        np.testing.assert_array_equal(value, X * factor)
    assert len(seen) == 7
    assert all(isinstance(each, jax.Array) for each in seen)
    assert seen[-1] == 7


@pytest.mark.parametrize("wrong", [lambda x: np.asarray(x)[:1], lambda x: np.float64(1)])
def test_a_callback_that_breaks_its_promise(wrong):
    with pytest.raises(SimulationError, match=r"a callback returns float.* instead of float32\["):
        simulate(lambda x: jax.pure_callback(wrong, x, x), X)


def test_what_is_for_a_profiler():
    if not hasattr(pltpu, "trace_value"):
        pytest.skip("this JAX has no such function")

    def body(x_ref, o_ref):
        pltpu.trace_value("first", x_ref[0, 0])
        o_ref[...] = x_ref[...] + 1

    def kernel(x):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    found = simulate(kernel, X)
    np.testing.assert_array_equal(found.values, X + 1)
    assert not found.fallbacks


def test_a_fusion_has_another_implementation_inside_of_kernels():
    fuser = importlib.import_module("jax._src.pallas.fuser")

    @fuser.custom_fusion
    def shifted(x):
        return x + 1

    shifted.def_eval_rule(lambda _, x: (shifted(x),))
    shifted.def_pull_block_spec(lambda _: ())
    inside = 1
    if hasattr(shifted, "def_pallas_impl"):
        shifted.def_pallas_impl(lambda x: x + 2)
        inside = 2

    def body(x_ref, o_ref):
        o_ref[...] = shifted(x_ref[...])

    def kernel(x):
        return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    found = simulate(lambda x: (shifted(x), kernel(x)), X)
    np.testing.assert_array_equal(found.values[0], X + 1)
    np.testing.assert_array_equal(found.values[1], X + inside)
    assert not found.fallbacks
