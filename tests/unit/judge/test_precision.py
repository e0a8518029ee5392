"""References that compute in less than float64 for inputs in float64."""

import inspect

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from pytest_pallas.checks.transformations import Vjp
from pytest_pallas.judge.precision import precisions

SINGLE = np.ones((4, 8), np.float32)
HALF = SINGLE.astype(ml_dtypes.bfloat16)


def found(function, *args):
    """The dtypes that outputs are computed in, by the traces; None for float64."""
    baseline = jax.make_jaxpr(function)(*args)
    with jax.enable_x64(True):
        oracle = jax.make_jaxpr(function)(*(arg.astype(np.float64) for arg in args))
    return [each and each.dtype for each in precisions(oracle, baseline)]


def in_float32(x):
    return jax.nn.softmax(x.astype(jnp.float32))


def in_the_wider(x):
    return jax.nn.softmax(x.astype(jnp.promote_types(x.dtype, jnp.float32)))


def product_then_exp(x):
    return jnp.exp(jnp.dot(x, x.T, preferred_element_type=jnp.float32))


def scanned(x):
    def step(total, row):
        return total + row.astype(jnp.float32), total

    return jax.lax.scan(step, jnp.zeros(8, jnp.float32), x)[1]


def looped(x):
    zero = jnp.zeros(8, jnp.float32)
    return jax.lax.fori_loop(0, 4, lambda i, total: total + x[i].astype(jnp.float32), zero)


def in_a_branch(x):
    return jax.lax.cond(x[0, 0] > 0, lambda: in_float32(x), lambda: x.astype(jnp.float32))


@pytest.mark.parametrize(
    "function",
    [in_float32, product_then_exp, scanned, looped, in_a_branch, jax.jit(in_float32)],
)
@pytest.mark.parametrize("x", [SINGLE, HALF], ids=["float32", "bfloat16"])
def test_what_is_computed_in_float32(function, x):
    assert found(function, x) == ["float32"]


def test_a_number_that_is_rounded_on_the_way():
    assert found(lambda x: jnp.exp((x * 3).astype(jnp.float32).astype(x.dtype)), SINGLE) == [
        "float32"
    ]


def test_a_number_that_is_rounded_on_the_way_to_a_carry():
    """The rounding is that of the step before."""

    def function(x):
        def step(total, row):
            return (total * 2 + row).astype(jnp.float32).astype(x.dtype), ()

        return jax.lax.scan(step, x[0], x)[0]

    assert found(function, SINGLE) == ["float32"]


def test_a_hard_coded_dtype_of_the_inputs():
    assert found(lambda x: x.astype(jnp.bfloat16) * 3 + 1, HALF) == ["bfloat16"]


@pytest.mark.parametrize(
    ("function", "x"),
    [
        pytest.param(in_the_wider, SINGLE, id="promoted"),
        pytest.param(in_the_wider, HALF, id="promoted from bfloat16"),
        pytest.param(lambda x: jnp.exp(x).astype(jnp.float32), SINGLE, id="last rounding"),
        pytest.param(
            lambda x: jnp.dot(x, x.T, preferred_element_type=jnp.float32).T, HALF, id="last product"
        ),
        pytest.param(lambda x: jnp.sort(x.astype(jnp.float32)), SINGLE, id="moved"),
        pytest.param(lambda x: (x.astype(jnp.float32) > 0) * x, SINGLE, id="compared"),
        pytest.param(
            lambda x: jnp.exp(x.astype(jnp.bfloat16).astype(x.dtype)), SINGLE, id="meant: bfloat16"
        ),
        pytest.param(
            lambda x: jnp.exp((x * 3).astype(jnp.bfloat16)), SINGLE, id="meant: in bfloat16"
        ),
        pytest.param(
            lambda x: jnp.round(x * 16).astype(jnp.int8).astype(jnp.float32) * x, SINGLE, id="int8"
        ),
        pytest.param(lambda x: x + jnp.sin(jnp.arange(8, dtype=jnp.float32)), SINGLE, id="table"),
        pytest.param(lambda x: x * np.float32(3), SINGLE, id="number"),
        pytest.param(
            lambda x: x + jax.random.uniform(jax.random.key(0), x.shape, jnp.float32),
            SINGLE,
            id="random numbers",
        ),
        pytest.param(
            lambda x: x + jnp.exp(jnp.full(8, 0.1, float).astype(jnp.float32)),
            SINGLE,
            id="constant",
        ),
    ],
)
def test_what_is_computed_in_float64(function, x):
    assert found(function, x) == [None]


def test_each_output_is_told_apart():
    assert found(lambda x: (jnp.exp(x), in_float32(x)), SINGLE) == [None, "float32"]


def test_the_line_is_that_of_the_rounding():
    baseline = jax.make_jaxpr(in_float32)(SINGLE)
    with jax.enable_x64(True):
        oracle = jax.make_jaxpr(in_float32)(SINGLE.astype(np.float64))
    (place,) = precisions(oracle, baseline)
    line = inspect.getsourcelines(in_float32)[1] + 1
    assert str(place) == f"float32 ({__file__}:{line})"


def test_the_line_of_a_gradient_is_one_of_the_reference():
    """The cotangent is rounded by the check, which is no fault of the kernel."""
    pull = Vjp(lambda x: jnp.exp(x.astype(jnp.float32)), (0,))
    cotangent = (SINGLE, SINGLE)
    baseline = jax.make_jaxpr(pull)(*cotangent)
    with jax.enable_x64(True):
        oracle = jax.make_jaxpr(pull)(*(arg.astype(np.float64) for arg in cotangent))
    (place,) = precisions(oracle, baseline)
    assert place.dtype == "float32"
    assert place.line.file == __file__
