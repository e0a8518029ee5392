"""Misuse of the kernels of bits and layouts, and what their specs cannot draw."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from pallas_test_support.simulating import simulating

from reference_kernels import basics
from reference_kernels.basics.fp6 import dequantize_reference, split_reference
from reference_kernels.basics.stochastic_round import reference as rounded


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    with simulating():
        yield


def zeros(*shape: int, dtype: Any = np.float32) -> Any:
    return np.zeros(shape, dtype)


F32 = zeros(3, 4)
WORDS = zeros(8, 128, dtype=np.uint32)
BYTES = zeros(8, 128, dtype=np.int8)
ONE = np.int32(1)

MISUSE: list[tuple[Callable[[], Any], str]] = [
    (lambda: basics.roll(F32[0], ONE, axis=0), "x must have the shape (m, n)"),
    (lambda: basics.roll(F32, ONE, axis=2), "axis must be 0 or 1, but it is 2"),
    (lambda: basics.roll(F32, np.float32(1), axis=0), "shift must be a scalar of int32"),
    (lambda: basics.roll(F32, ONE[None], axis=0), "shift must be a scalar of int32"),
    (lambda: basics.roll(F32, ONE, axis=0, block=0), "block must be a positive integer"),
    (lambda: basics.skew(zeros(3, 100)), "x must have a multiple of 128 columns, but it has 100"),
    (lambda: basics.skew(BYTES), "x must have a dtype of 32 bits, but its dtype is int8"),
    (
        lambda: basics.split_heads(zeros(4, 128), heads=3),
        "heads must divide the columns of x, 128, but it is 3",
    ),
    (lambda: basics.split_heads(zeros(4), heads=1), "x must have the shape (s, heads*d)"),
    (lambda: basics.merge_heads(F32), "x must have the shape (heads, s, d)"),
    (lambda: basics.transpose(F32[0]), "x must have the shape (m, n)"),
    (lambda: basics.transpose(F32[:0]), "x must not be empty"),
    (lambda: basics.as_words(BYTES[:6]), "x must have a multiple of 4 rows, but it has 6"),
    (lambda: basics.as_words(F32), "x must have a dtype of 8 or 16 bits, but it is float32"),
    (lambda: basics.from_words(F32, dtype="int8"), "words must be of uint32"),
    (lambda: basics.from_words(WORDS, dtype="float32"), "dtype must have a dtype of 8 or 16 bits"),
    (lambda: basics.sort_keys(BYTES), "x must be of float32, but its dtype is int8"),
    (lambda: basics.reciprocal(BYTES), "x must be of float32 or bfloat16, but its dtype is int8"),
    (lambda: basics.argmax(BYTES), "x must be of float32, bfloat16 or int32"),
    (lambda: basics.argmax(F32[:0]), "x must not be empty"),
    (
        lambda: basics.load_where(F32, zeros(4, 3, dtype=bool)),
        "mask must be of bool and have the shape of x, (3, 4), but it is bool[4,3]",
    ),
    (lambda: basics.load_where(F32, F32), "but it is float32[3,4]"),
    (
        lambda: basics.pack(zeros(2, 8, 128), packed="int16"),
        "x must be 2 matrices of int32 to be packed as int16, but it is float32[2,8,128]",
    ),
    (
        lambda: basics.pack(zeros(2, 8, 128, dtype=np.int32), packed="int8"),
        "x must be 4 matrices of int32",
    ),
    (lambda: basics.pack(zeros(1, 8, 128), packed="float32"), "packed must be one of bfloat16"),
    (lambda: basics.unpack(BYTES, packed="int8"), "words must be of uint32"),
    (lambda: basics.unpack(WORDS, packed="int2"), "packed must be one of bfloat16"),
    (lambda: basics.split_fp6(BYTES[:6]), "codes must have a multiple of 4 rows, but it has 6"),
    (lambda: basics.split_fp6(WORDS), "codes must be of int8, but its dtype is uint32"),
    (lambda: basics.dequantize_fp6(BYTES, WORDS), "four must be of int8, but its dtype is uint32"),
    (
        lambda: basics.dequantize_fp6(BYTES, BYTES),
        "four must have the shape (16, 128), but it is (8, 128)",
    ),
    (lambda: basics.stochastic_round(BYTES, WORDS), "x must be of float32, but its dtype is int8"),
    (
        lambda: basics.stochastic_round_by_hand(zeros(8, 128), BYTES),
        "bits must be of uint32 and (8, 128), but it is int8[8,128]",
    ),
]


@pytest.mark.parametrize(("call", "words"), MISUSE, ids=[words for _, words in MISUSE])
def test_misuse(call: Callable[[], Any], words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        call()


def test_sort_keys_order_special_numbers() -> None:
    numbers = [-np.inf, -1e30, -1e-45, -0.0, 0.0, 1e-45, 2.0, np.inf, np.nan]
    keys = np.asarray(basics.sort_keys(np.array([numbers], np.float32)))[0]
    assert (np.diff(keys.astype(np.int64)) > 0).all()


def test_argmax_of_columns_of_minus_infinity_is_their_first_row() -> None:
    x = np.full((9, 3), -np.inf, np.float32)
    x[8, 1] = 1
    np.testing.assert_array_equal(basics.argmax(x), [0, 8, 0])


def test_newton_keeps_22_bits_in_the_whole_range() -> None:
    x = np.geomspace(2.0**-125, 2.0**125, 1280, dtype=np.float32).reshape(10, 128)
    error = np.asarray(basics.reciprocal(x, newton=True), np.float64) * x - 1
    assert np.abs(error).max() < 2.0**-22


class TestStochasticRounding:
    def test_it_is_right_on_average(self) -> None:
        x = np.full((16, 4096), 1 + 2.0**-7 / 4, np.float32)
        bits = np.random.default_rng(0).integers(0, 2**32, x.shape, np.uint32)
        out = np.asarray(basics.stochastic_round_by_hand(x, bits), np.float32)
        assert set(np.unique(out)) == {1.0, 1 + 2.0**-7}
        # Four standard deviations of a mean of 65,536 choices.
        assert abs((out > 1).mean() - 0.25) < 4 * (0.25 * 0.75 / x.size) ** 0.5

    def test_numbers_of_bfloat16_infinities_and_nan_stay(self) -> None:
        x = np.array([[1.5, -2.0, 0.0, np.inf, -np.inf, np.nan]], np.float32)
        bits = np.full(x.shape, 2**32 - 1, np.uint32)
        out = np.asarray(basics.stochastic_round_by_hand(x, bits), np.float32)
        np.testing.assert_array_equal(out, x)

    def test_the_reference_says_the_same_of_every_bit(self) -> None:
        bits = np.arange(2**16, dtype=np.uint32).reshape(16, 4096)
        x = np.full(bits.shape, -np.pi, np.float32)
        out = basics.stochastic_round_by_hand(x, bits)
        np.testing.assert_array_equal(out, rounded(jnp.asarray(x), jnp.asarray(bits)))


def test_fp6_survives_the_planes() -> None:
    """By the references: nothing without a TPU executes the kernels."""
    values = np.arange(64, dtype=np.uint8).view(ml_dtypes.float6_e2m3fn).astype(np.float32)
    codes = jnp.arange(64, dtype=jnp.int8).reshape(16, 4)
    two, four = split_reference(codes)
    np.testing.assert_array_equal(dequantize_reference(two, four), values.reshape(16, 4))
