"""Shifts, reinterpreted bits, total order and rounding to formats are those of JAX."""

from __future__ import annotations

import importlib
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.rules_of_jax import assert_same_bits, assert_within_ulps, drawn

from pallas_sim import simulate
from pallas_sim.dtypes import rounded_to_bits

FLOATS = ["float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2"]
INTEGERS = ["int32", "uint32", "int16", "uint16", "int8", "uint8", "int4", "uint4"]
SHAPE = (8, 24)

# Older JAX has it in Pallas' own namespace.
reciprocal = (
    getattr(pltpu, "reciprocal", None)
    or importlib.import_module("jax.experimental.pallas").reciprocal
)


@pytest.mark.parametrize("name", ["shift_left", "shift_right_logical", "shift_right_arithmetic"])
def test_shifts_by_anything(name):
    shift = getattr(lax, name)
    draws = []
    for dtype in INTEGERS:
        amount = np.random.default_rng(1).integers(-1 if dtype[0] == "i" else 0, 8, SHAPE)
        draws.append((drawn(dtype, SHAPE), amount.astype(dtype), drawn(dtype, SHAPE, 2)))
    assert_same_bits(lambda draws: [(shift(x, y), shift(x, z)) for x, y, z in draws], draws)
    with jax.enable_x64(True):
        for dtype in ("int64", "uint64"):
            amount = np.random.default_rng(1).integers(0, 70, SHAPE).astype(dtype)
            assert_same_bits(shift, drawn(dtype, SHAPE), amount)


@pytest.mark.skipif(not hasattr(lax, "mulhi"), reason="this JAX has no such function")
def test_upper_halves_of_products():
    draws = [(drawn(d, SHAPE), drawn(d, SHAPE, 1)) for d in INTEGERS if d[-1] != "4"]
    assert_same_bits(lambda draws: [lax.mulhi(x, y) for x, y in draws], draws)
    with jax.enable_x64(True):
        for dtype in ("int64", "uint64"):
            assert_same_bits(lax.mulhi, drawn(dtype, SHAPE), drawn(dtype, SHAPE, 1))


@pytest.mark.parametrize("name", ["eq_to", "le_to", "lt_to"])
def test_total_order(name):
    primitive = getattr(lax, f"{name}_p")
    draws = [(drawn(d, SHAPE), drawn(d, SHAPE, 1)) for d in [*FLOATS[:3], *INTEGERS[:6]]]
    assert_same_bits(lambda draws: [primitive.bind(x, y) for x, y in draws], draws)


def test_total_order_of_special_values():
    order = np.array([-np.nan, -np.inf, -1, -0.0, 0.0, 1, np.inf, np.nan], np.float32)
    order[0], order[-1] = -np.abs(order[0]), np.abs(order[-1])
    x, y = (part.copy() for part in np.meshgrid(order, order))
    position = np.arange(8)
    less = simulate(lambda x, y: lax.lt_to_p.bind(x, y), y, x).values
    assert (less == (position[:, None] < position[None])).all()
    same = simulate(lambda x, y: lax.eq_to_p.bind(x, y), y, x).values
    assert (same == np.eye(8, dtype=bool)).all()


@pytest.mark.parametrize("dtype", FLOATS[:3])
def test_the_next_number(dtype):
    x, y = drawn(dtype, SHAPE), drawn(dtype, SHAPE, 1)
    assert_same_bits(lax.nextafter, x, y)
    assert_same_bits(lax.nextafter, x, x)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_rounding_to_smaller_formats(dtype):
    x = drawn(dtype, (64, 32))
    with np.errstate(all="ignore"):
        x[::2] *= np.exp2(np.linspace(-12, 12, 32)).astype(dtype)
    formats = [(8, 7), (5, 10), (4, 3), (5, 2), (8, 23), (2, 1), (3, 0), (6, 30), (11, 4)]
    assert_same_bits(lambda x: [lax.reduce_precision(x, *each) for each in formats], x)


WIDTHS = {
    8: ["int8", "uint8", "float8_e4m3fn", "float8_e5m2"],
    16: ["int16", "uint16", "bfloat16", "float16"],
    32: ["int32", "uint32", "float32"],
    4: ["int4", "uint4"],
}


@pytest.mark.parametrize("source", [name for names in WIDTHS.values() for name in names])
def test_reinterpreted_bits(source):
    width = next(width for width, names in WIDTHS.items() if source in names)
    for other, names in WIDTHS.items():
        shape = SHAPE if other <= width else (*SHAPE, other // width)
        array = drawn(source, shape)
        assert_same_bits(
            lambda x, names=names: [lax.bitcast_convert_type(x, name) for name in names], array
        )
    assert_same_bits(
        lambda x: lax.bitcast_convert_type(x.T, WIDTHS[width][0]), drawn(source, SHAPE)
    )


@pytest.mark.parametrize("source", ["float32", "bfloat16", "int8", "uint32", "int16"])
def test_bitcast_of_the_tpu_scales_an_axis(source):
    array = drawn(source, (16, 128))
    names = ["int32", "bfloat16", "uint8", "float32", "int16"]
    assert_same_bits(lambda x: [pltpu.bitcast(x, name) for name in names], array)
    assert_same_bits(lambda x: [pltpu.bitcast(x, name) for name in names], drawn(source, (2, 4, 8)))


def test_bitcast_puts_the_first_row_into_the_lowest_bits():
    array = np.arange(16, dtype=np.uint8).reshape(8, 2)
    found = simulate(lambda x: pltpu.bitcast(x, jnp.uint32), array).values
    assert found.tolist() == [[0x06040200, 0x07050301], [0x0E0C0A08, 0x0F0D0B09]]


def test_packing_and_unpacking_floats():
    x, y = drawn("float32", (8, 128)), drawn("float32", (8, 128), 1)
    packed = simulate(lambda *xs: pltpu.pack_elementwise(xs, packed_dtype=jnp.bfloat16), x, y)
    assert packed.values.dtype == np.uint32
    halves = packed.values.view(np.uint16).reshape(8, 128, 2)
    for number, value in enumerate((x, y)):
        narrow = value.astype("bfloat16")
        same = halves[..., number] == narrow.view(np.uint16)
        assert (same | np.isnan(narrow)).all()
        found = simulate(
            lambda word, number=number: pltpu.unpack_elementwise(
                word, index=number, packed_dtype=jnp.bfloat16, unpacked_dtype=jnp.float32
            ),
            packed.values,
        ).values
        np.testing.assert_array_equal(found, narrow.astype(np.float32))


@pytest.mark.parametrize("packed", ["int8", "uint8", "int4", "uint4", "int16"])
@pytest.mark.parametrize("unpacked", ["int32", "int16", "uint32"])
def test_packing_and_unpacking_integers(packed, unpacked):
    width = {"8": 8, "4": 4, "6": 16}[packed[-1]]
    factor = np.dtype(unpacked).itemsize * 8 // width
    if factor == 1:
        return
    values = [drawn(unpacked, (8, 16), seed) for seed in range(factor)]
    word = simulate(
        lambda *xs: pltpu.pack_elementwise(xs, packed_dtype=jnp.dtype(packed)), *values
    ).values
    wanted = sum((v.astype(np.int64) % (1 << width)) << (width * i) for i, v in enumerate(values))
    np.testing.assert_array_equal(word.astype(np.int64), wanted)
    for number, value in enumerate(values):
        found = simulate(
            lambda word, number=number: pltpu.unpack_elementwise(
                word,
                index=number,
                packed_dtype=jnp.dtype(packed),
                unpacked_dtype=jnp.dtype(unpacked),
            ),
            word,
        ).values
        low = value.astype(np.int64) % (1 << width)
        if packed[0] == "i":
            low = np.where(low >= 1 << (width - 1), low - (1 << width), low)
        np.testing.assert_array_equal(found, low.astype(unpacked))


def test_reciprocal_of_pallas():
    assert_same_bits(reciprocal, drawn("float32", (8, 128)))
    assert_within_ulps(reciprocal, drawn("bfloat16", (8, 128)), ulps=0)


def test_approximate_reciprocals_are_as_precise_as_tests_of_tpus_expect():
    """JAX's ``test_reciprocal``, and no more: one bit less would fail it."""
    x = np.arange(8192, dtype=np.float32).reshape(32, 256)
    found = simulate(lambda x: reciprocal(x, approx=True), x).values
    with np.errstate(divide="ignore"):
        np.testing.assert_allclose(found, 1 / x, rtol=2e-5, atol=2e-5)
    error = np.abs(found.reshape(-1)[1:].astype(np.float64) * np.arange(1, 8192) - 1)
    assert 2**-14 < error.max() <= 2**-13
    with pytest.raises(AssertionError):
        np.testing.assert_allclose(rounded_to_bits(1 / x[:, 1:], 12), 1 / x[:, 1:], 2e-5, 2e-5)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_approximate_reciprocals_of_special_values(dtype):
    x = np.array([0, -0.0, np.inf, -np.inf, np.nan, 2, -4, 2.0**126, 2.0**-126]).astype(dtype)
    found = simulate(lambda x: reciprocal(x, approx=True), x).values
    assert found.dtype == x.dtype
    exact = [np.inf, -np.inf, 0, -0.0, np.nan, 0.5, -0.25, 2**-126, 2.0**126]
    np.testing.assert_array_equal(found.astype(np.float64), exact)


@pytest.mark.skipif(
    "full_range" not in inspect.signature(reciprocal).parameters, reason="not in this JAX"
)
def test_reciprocals_of_less_than_the_full_range():
    """JAX says of which values an approximate one may be wrong then; an exact one is not."""
    x = np.array([0, -0.0, np.inf, np.nan, 2.0**126, 2, -4, 2.0**-126], np.float32)
    exact, approximate = simulate(
        lambda x: [reciprocal(x, approx=each, full_range=False) for each in (False, True)], x
    ).values
    with np.errstate(divide="ignore"):
        np.testing.assert_array_equal(exact, 1 / x)
    np.testing.assert_array_equal(approximate, [np.nan] * 5 + [0.5, -0.25, 2.0**126])


def test_rounding_to_bits():
    x = drawn("float32", (64, 128))
    found = rounded_to_bits(x, 8)
    np.testing.assert_array_equal(found, x.astype(jnp.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(rounded_to_bits(x, 23)[x == 1], 1)
