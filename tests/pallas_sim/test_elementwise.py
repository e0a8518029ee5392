"""Arithmetic, comparisons and choices of the simulator give what JAX gives, to the bit."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from pallas_test_support.rules_of_jax import assert_same_bits, assert_within_ulps, both, drawn

from pallas_sim import simulate

FLOATS = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2", "float4_e2m1fn"]
INTEGERS = ["int32", "uint32", "int16", "uint16", "int8", "uint8", "int4", "uint4"]
SHAPE = (13, 37)


def operands(dtypes, number, shape=SHAPE):
    return [[drawn(dtype, shape, seed) for seed in range(number)] for dtype in dtypes]


def assert_same_everywhere(function, dtypes, number, shape=SHAPE):
    """The simulator gives JAX's bits for all these dtypes (compiled at once)."""
    assert_same_bits(
        lambda draws: [function(*draw) for draw in draws], operands(dtypes, number, shape)
    )


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "rem", "max", "min"])
def test_arithmetic_of_two(name):
    assert_same_everywhere(getattr(lax, name), FLOATS + INTEGERS, 2)


@pytest.mark.parametrize("name", ["max", "min"])
def test_the_larger_and_the_smaller_of_bools(name):
    assert_same_everywhere(getattr(lax, name), ["bool"], 2)


@pytest.mark.parametrize("name", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_comparisons(name):
    assert_same_everywhere(getattr(lax, name), [*FLOATS, *INTEGERS, "bool"], 2)


@pytest.mark.parametrize("name", ["neg", "square", "sign"])
def test_arithmetic_of_one(name):
    assert_same_everywhere(getattr(lax, name), FLOATS + INTEGERS, 1)


@pytest.mark.parametrize("name", ["floor", "ceil", "sqrt", "is_finite", "abs"])
def test_functions_of_floats(name):
    assert_same_everywhere(getattr(lax, name), FLOATS, 1)


def test_absolute_values_of_integers():
    assert_same_everywhere(lax.abs, ["int32", "int16", "int8"], 1)


@pytest.mark.parametrize("method", list(lax.RoundingMethod))
def test_both_ways_to_round(method):
    assert_same_everywhere(lambda x: lax.round(x, method), FLOATS, 1)
    halves = np.array([0.5, -0.5, 1.5, 2.5, -2.5, -0.3, 0.3], np.float32)
    nearly = np.nextafter(np.float32(0.5), np.float32([0, 0, 0, 0, 0, 0, 0]))
    assert_same_bits(lambda x: lax.round(x, method), np.stack([halves, nearly, -nearly]))


def test_rsqrt():
    draws = operands(["float32", "bfloat16", "float16"], 1)
    assert_within_ulps(lambda x: lax.rsqrt(x), draws[0][0], ulps=1)
    assert_same_bits(lambda x, y: (lax.rsqrt(x), lax.rsqrt(y)), *draws[1], *draws[2])


@pytest.mark.parametrize("exponent", [-3, -1, 0, 1, 2, 5, 7])
def test_integer_powers_round_each_product(exponent):
    dtypes = FLOATS if exponent < 0 else FLOATS + INTEGERS
    assert_same_everywhere(lambda x: lax.integer_pow(x, exponent), dtypes, 1)


@pytest.mark.skipif(not hasattr(lax, "one_minus_square"), reason="this JAX has no such function")
def test_one_minus_square():
    assert_same_everywhere(lambda x: lax.one_minus_square(x), FLOATS + INTEGERS, 1)


@pytest.mark.parametrize("terms", [1, 2, 5, 12])
@pytest.mark.skipif(not hasattr(lax, "polynomial"), reason="this JAX has no such function")
def test_polynomials(terms):
    assert_same_everywhere(
        lambda x, *rest: lax.polynomial(x, [c[:, :1] for c in rest]),
        ["bfloat16", "float16", "int32"],
        terms + 1,
    )


@pytest.mark.parametrize(
    "name", ["bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "population_count", "clz"]
)
def test_logic(name):
    two = name in ("bitwise_and", "bitwise_or", "bitwise_xor")
    bools = ["bool"] if name.startswith("bitwise") else []
    dtypes = INTEGERS + bools
    if name == "population_count":
        # XLA's CPU backend counts the sign of an int4 five times.
        dtypes = [dtype for dtype in dtypes if dtype != "int4"]
    assert_same_everywhere(getattr(lax, name), dtypes, 2 if two else 1)


def test_bits_of_int4_are_counted():
    array = np.arange(-8, 8).astype("int4")
    wanted = [bin(i % 16).count("1") for i in range(-8, 8)]
    assert simulate(lax.population_count, array).values.astype(int).tolist() == wanted


def test_clamp():
    assert_same_everywhere(lax.clamp, FLOATS + INTEGERS, 3)


def test_clamp_between_scalars():
    draws = operands(FLOATS + INTEGERS, 1)
    assert_same_bits(
        lambda draws: [lax.clamp(x.dtype.type(1), x, x.dtype.type(5)) for (x,) in draws], draws
    )


def test_choices():
    which = drawn("bool", SHAPE)
    assert_same_everywhere(
        lambda x, y: [lax.select_n(jnp.asarray(each), x, y) for each in (which, True, False)],
        [*FLOATS, *INTEGERS, "bool", "complex64"],
        2,
    )


@pytest.mark.parametrize("shape", [(), SHAPE])
def test_choices_of_many(shape):
    which = np.random.default_rng(0).integers(0, 4, shape).astype(np.int32)
    assert_same_everywhere(
        lambda *cases: lax.select_n(jnp.asarray(which), *cases), [*FLOATS, *INTEGERS, "bool"], 4
    )


def test_large_choices():
    which = drawn("bool", (200, 300))
    for dtype in ("float32", "bfloat16", "int8", "bool", "float16", "complex64"):
        draws = [drawn(dtype, (200, 300), seed) for seed in range(2)]
        assert_same_bits(lax.select, which, *draws)
        assert_same_bits(lax.select, which.T.copy().T, *draws)


def test_literals_are_scalars_beside_arrays():
    for dtype in ("float32", "bfloat16", "int32", "int8"):
        array = drawn(dtype, SHAPE)
        one = np.dtype(dtype).type(3)
        assert_same_bits(
            lambda x, one=one: (x + one, one - x, x * one, lax.max(x, one), x > one), array
        )
        # XLA multiplies by the reciprocal of a scalar.
        check = assert_within_ulps if dtype == "float32" else assert_same_bits
        check(lambda x, one=one: (lax.div(x, one), lax.rem(x, one)), array)
        assert_same_bits(
            lambda x: (lax.max(x, x.dtype.type(0)), lax.min(x, x.dtype.type(0))), array
        )


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div", "rem", "max", "min", "eq", "lt"])
def test_scalars(name):
    for seed in range(12):
        draws = [
            [drawn(d, (), 2 * seed + i) for i in range(2)] for d in ("int32", "uint32", "int8")
        ]
        draws += [[drawn("float32", (), 2 * seed + i) for i in range(2)]]
        for draw in draws:
            found = simulate(getattr(lax, name), *draw).values
            wanted = np.asarray(getattr(lax, name)(*draw))
            np.testing.assert_array_equal(found, wanted)
            assert found.dtype == wanted.dtype


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int8", "uint8", "int16"])
def test_division_at_the_limits(dtype):
    limits = np.iinfo(dtype)
    edges = np.array([limits.min, limits.max, 0, 1, 2, 7, 100, limits.max - 1], dtype)
    edges = np.concatenate([edges, -edges]) if limits.min else edges
    x, y = (part.copy() for part in np.meshgrid(edges, edges))
    assert_same_bits(lambda x, y: (lax.div(x, y), lax.rem(x, y)), x, y)
    for one, other in zip(x.ravel(), y.ravel(), strict=True):
        found = simulate(lambda x, y: (lax.div(x, y), lax.rem(x, y)), one, other).values
        whole = simulate(lambda x, y: (lax.div(x, y), lax.rem(x, y)), *np.array([[one], [other]]))
        assert [int(v) for v in found] == [int(v[0]) for v in whole.values]


def test_double_precision():
    with jax.enable_x64(True):
        names = ["add", "sub", "mul", "div", "rem", "max", "min", "eq", "lt"]
        assert_same_everywhere(
            lambda x, y: [getattr(lax, name)(x, y) for name in names],
            ["float64", "int64", "uint64"],
            2,
        )
        assert_same_everywhere(
            lambda x: [lax.neg(x), lax.square(x), lax.sign(x), lax.integer_pow(x, 3)],
            ["float64", "int64", "uint64"],
            1,
        )
        assert_same_everywhere(
            lambda x: [lax.population_count(x), lax.clz(x)], ["int64", "uint64"], 1
        )


def test_complex_arithmetic():
    x, y = operands(["complex64"], 2)[0]
    exact = (lax.add, lax.sub, lax.eq, lax.ne, lax.complex)
    parts = (x.real.copy(), y.real.copy())
    assert_same_bits(lambda x, y: [f(x, y) for f in exact[:4]], x, y)
    assert_same_bits(lambda x: [lax.real(x), lax.imag(x), lax.conj(x), lax.neg(x)], x)
    assert_same_bits(lambda x, y: [lax.complex(x, y), lax.conj(x)], *parts)
    special = drawn("float32", SHAPE), drawn("float32", SHAPE, 1)
    assert_same_bits(lambda x, y: lax.imag(lax.complex(x, y)), *special)
    assert_same_bits(lambda x, y: lax.real(lax.complex(x, y)), *special)
    assert_within_ulps(lambda x, y: [lax.mul(x, y), lax.div(x, y), lax.abs(x)], x, y, ulps=3)
    assert_within_ulps(lambda x: [lax.square(x), lax.sqrt(x), lax.sign(x)], x, ulps=3)
    assert_within_ulps(lambda x: [lax.rsqrt(x), lax.integer_pow(x, 3)], x, ulps=4)


def test_keys_are_compared_and_chosen():
    keys = jax.random.split(jax.random.key(0), 4)
    others = keys[np.array([0, 2, 1, 3])]
    which = np.array([True, False, True, False])

    def choose(keys, others, which):
        return jax.random.key_data(jnp.where(which, keys, others)), keys == others, keys != others

    for found, wanted in zip(
        simulate(choose, keys, others, which).values, choose(keys, others, which), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)


def test_results_have_the_shape_and_dtype_of_jax_for_empty_arrays():
    empty = np.empty((0, 3), np.float32)
    found = both(
        lambda x: (x + x, lax.max(x, x), x > x, lax.div(x, x), lax.select(x > x, x, x)), empty
    )
    assert all(mine.shape == (0, 3) for mine, _ in found)
    assert_same_bits(lambda x: lax.div(x, x), np.empty((0,), np.int32))
