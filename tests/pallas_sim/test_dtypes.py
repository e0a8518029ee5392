"""The simulator converts arrays between dtypes as JAX does."""

from __future__ import annotations

import jax
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from pallas_test_support.rules_of_jax import assert_same_bits, bits, drawn

from pallas_sim.dtypes import (
    bit_width,
    codes_of,
    compute_dtype,
    convert,
    from_codes,
    is_float,
    is_integer,
    is_unsigned,
    widen,
)

FLOATS = [
    *("float32", "bfloat16", "float16", "float4_e2m1fn"),
    *("float8_e3m4", "float8_e4m3", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e4m3b11fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"),
]
INTEGERS = [
    *("int32", "int16", "int8", "int4", "int2"),
    *("uint32", "uint16", "uint8", "uint4", "uint2"),
]
DTYPES = [*FLOATS, *INTEGERS, "bool", "complex64"]


def values(name: str) -> np.ndarray:
    """All bit patterns of a dtype of 8 bits or fewer; else drawn ones and many magnitudes."""
    dtype = np.dtype(name)
    if bit_width(dtype) <= 8 and dtype != np.bool_:
        return from_codes(np.arange(1 << bit_width(dtype), dtype=np.uint8), dtype)
    found = drawn(dtype, (2048,))
    if not is_float(dtype):
        return found
    with np.errstate(all="ignore"):
        random = np.random.default_rng(1)
        scale = np.exp2(random.uniform(-14 if dtype.itemsize == 2 else -60, 70, 1024))
        found[::2] = (random.normal(0, 1, 1024) * scale).astype(dtype)
        # XLA's CPU backend flushes subnormal numbers.
        found[np.abs(found.astype(np.float32)) < np.finfo(np.float32).tiny] = 0
        edges = [127.5, 128, -128.5, -129, 255.5, 256, 7.5, 8, -8.5, -9, 448, 464, 465, 480, 496]
        edges += [57344, 61440, 61441, 2.0**31, -(2.0**31), 2.0**32, 6, 5, 0.25, 0.125, 0.1]
        found[: len(edges)] = np.array(edges).astype(dtype)
    return found


@pytest.mark.parametrize("source", [name for name in DTYPES if name != "complex64"])
def test_every_pair_of_dtypes_converts_as_in_jax(source):
    array = values(source)
    if source == "float4_e2m1fn":
        # XLA's CPU backend makes the largest integer of 6.0, the largest float4.
        array = array[np.abs(array.astype(np.float32)) < 6]
    targets = [np.dtype(name) for name in DTYPES if name != source]
    assert_same_bits(lambda x: [lax.convert_element_type(x, dtype) for dtype in targets], array)


def test_float4_keeps_its_largest_value_as_an_integer():
    array = np.array([6, -6], ml_dtypes.float4_e2m1fn)
    assert convert(array, np.dtype(np.int32)).tolist() == [6, -6]


@pytest.mark.parametrize("source", ["float64", "int64", "uint64", "complex128"])
def test_double_precision_converts_as_in_jax(source):
    with jax.enable_x64(True):
        array = drawn(source, (2048,))
        if source == "float64":
            array *= np.exp2(np.arange(2048) % 140 - 70)
        names = [*DTYPES, "float64", "complex128", "int64", "uint64"]
        names = ["complex64"] if source == "complex128" else [n for n in names if n != source]
        assert_same_bits(lambda x: [lax.convert_element_type(x, name) for name in names], array)


def test_complex_numbers_lose_their_imaginary_part():
    array = np.array([1.5 - 2j, 3j, -3.25 + 1j], np.complex64)
    assert convert(array, np.dtype(np.float32)).tolist() == [1.5, 0, -3.25]
    assert convert(array, np.dtype(np.int8)).tolist() == [1, 0, -3]
    assert convert(array, np.dtype(np.bool_)).tolist() == [True, False, True]


@pytest.mark.parametrize("name", [name for name in FLOATS if name != "float32"])
def test_large_arrays_round_as_ml_dtypes_rounds_one_number(name):
    random = np.random.default_rng(2)
    words = random.integers(0, 1 << 32, 1 << 15, np.uint64).astype(np.uint32)
    # Ties, and their neighbours, for as many bits as any dtype here keeps.
    words[: 1 << 14] &= np.uint32(0xFFFF8000)
    words[: 1 << 13] += random.integers(-1, 2, 1 << 13).astype(np.uint32)
    array = words.view(np.float32)
    with np.errstate(all="ignore"):
        wanted = array.astype(name)
        found = convert(array, np.dtype(name))
        different = bits(found) != bits(wanted)
        different &= ~(np.isnan(array) if name == "float4_e2m1fn" else wanted != wanted)
    assert not different.any(), (array[different][:5], found[different][:5], wanted[different][:5])
    if name != "float4_e2m1fn":
        assert (np.isnan(found) == np.isnan(wanted)).all()


def test_a_nan_stays_one_in_bfloat16_whatever_its_payload():
    words = np.full(1 << 14, 0x7F800001, np.uint32)
    words[::2] = 0xFFFFFFFF
    found = convert(words.view(np.float32), np.dtype(ml_dtypes.bfloat16))
    assert np.isnan(found).all()


@pytest.mark.parametrize("name", DTYPES)
def test_scalars_convert_as_arrays_do(name):
    array = values(name)[3:9]
    for target in DTYPES:
        with np.errstate(all="ignore"):
            wanted = convert(array, np.dtype(target))
            for value, one in zip(array, wanted, strict=True):
                found = convert(value, np.dtype(target))
                assert found.dtype == np.dtype(target)
                assert found.shape == ()
                assert bits(found) == bits(one)
            assert convert(array[:0].reshape(0, 3), np.dtype(target)).shape == (0, 3)


def test_nothing_is_copied_where_nothing_changes():
    array = drawn("bfloat16", (4, 4))
    assert convert(array, array.dtype) is array
    wide = drawn("float32", (4, 4))
    assert widen(wide) is wide


def test_strided_and_broadcast_arrays_convert():
    array = drawn("float32", (128, 256))
    for view in (array.T, array[::2, ::-1], np.broadcast_to(array[:1], (128, 256))):
        for name in ("bfloat16", "float8_e4m3fn", "int8", "float16"):
            found = convert(view, np.dtype(name))
            with np.errstate(all="ignore"):
                wanted = convert(np.ascontiguousarray(view), np.dtype(name))
            assert (bits(found) == bits(wanted)).all()
    narrow = convert(array, np.dtype("float8_e4m3fn"))
    back = convert(narrow.T, np.dtype(np.float32))
    assert (bits(back) == bits(np.ascontiguousarray(narrow.T).astype(np.float32))).all()


@pytest.mark.parametrize("name", DTYPES)
def test_dtypes_are_what_they_are_said_to_be(name):
    dtype = np.dtype(name)
    assert is_integer(dtype) == (name in INTEGERS)
    assert is_unsigned(dtype) == (name in INTEGERS and name[0] == "u")
    assert is_float(dtype) == (name in FLOATS)
    if name in FLOATS:
        assert compute_dtype(dtype) == np.float32
        assert bit_width(dtype) == ml_dtypes.finfo(dtype).bits
    elif name in INTEGERS:
        limits = ml_dtypes.iinfo(dtype)
        assert bit_width(dtype) == limits.bits
        assert compute_dtype(dtype).itemsize * 8 == max(8, limits.bits)
        assert compute_dtype(dtype).kind == ("u" if name[0] == "u" else "i")
    else:
        assert compute_dtype(dtype) == dtype


@pytest.mark.parametrize("name", [name for name in DTYPES if name not in ("bool", "complex64")])
def test_codes_are_the_bits_of_each_element(name):
    array = values(name)
    codes = codes_of(array)
    assert codes.dtype.kind == "u"
    assert int(codes.max()) < 1 << bit_width(array.dtype)
    assert (bits(from_codes(codes, array.dtype)) == bits(array)).all()
    if name in INTEGERS:
        wanted = array.astype(np.int64) % (1 << bit_width(array.dtype))
        assert codes.astype(np.int64).tolist() == wanted.tolist()


def test_codes_have_no_bits_beyond_the_width():
    array = np.array([0xFF, 0x3A], np.uint8).view(ml_dtypes.int4)
    assert codes_of(array).tolist() == [0x0F, 0x0A]
