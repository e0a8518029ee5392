"""Sorting, extrema and cumulative sums give the bits of JAX, for NaN and -0.0 too."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from pallas_test_support.drawn_arrays import drawn, special
from pallas_test_support.rules_of_jax import assert_same_bits, assert_within_ulps, both

DTYPES = [np.float32, jnp.bfloat16, jnp.float8_e5m2, np.int32, np.int8, np.uint32, np.bool_]
NUMBERS = [dtype for dtype in DTYPES if dtype is not np.bool_]


def negative_nan(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """The array, half of its NaNs negative."""
    if not jnp.issubdtype(array.dtype, jnp.floating):
        return array
    odd = np.indices(array.shape).sum(0) % 2 == 1
    return np.where(odd & np.isnan(array), -np.abs(array), array).astype(array.dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, np.complex64])
def test_sorts(dtype: Any) -> None:
    def function(x: Any, i: Any) -> Any:
        return (
            lax.sort(x, dimension=0),
            lax.sort(x, dimension=1),
            lax.sort((x, i), dimension=0, num_keys=1),
            lax.sort((x, i), dimension=1, num_keys=1),
            lax.sort((i % 3, x, i), dimension=1, num_keys=2),
            lax.sort((x, i % 3, i), dimension=0, num_keys=2),
            lax.sort((x[0], i[0]), num_keys=1),
        )

    x = negative_nan(special((9, 11), np.float32 if dtype is np.complex64 else dtype))
    if dtype is np.complex64:
        x = x.astype(dtype)
        x.imag = special((9, 11), np.float32, seed=1)
    assert_same_bits(function, x, np.arange(99, dtype=np.int32).reshape(9, 11))


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k(dtype: Any) -> None:
    def function(x: Any) -> Any:
        return lax.top_k(x, 11), lax.top_k(x, 3, axis=0), lax.top_k(x, 0), lax.top_k(x[1], 4)

    assert_same_bits(function, negative_nan(special((9, 11), dtype)))


def test_approximate_top_k_is_exact() -> None:
    def function(x: Any) -> Any:
        return (
            lax.approx_max_k(x, 11),
            lax.approx_max_k(x, 3, reduction_dimension=0),
            lax.approx_min_k(x, 11),
            lax.approx_min_k(x, 3, reduction_dimension=0),
        )

    # Which NaN comes first is not specified, nor whether all of them do.
    x = special((9, 11), np.float32)
    assert_same_bits(function, np.where(np.isnan(x), np.float32(-0.0), x))


@pytest.mark.parametrize("dtype", [*DTYPES, jnp.int4])
def test_where_the_extrema_are(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        return [
            (lax.argmax(z, axis, index), lax.argmin(z, axis, index))
            for z in (x, y)
            for axis in (0, 1)
            for index in (np.int32, np.uint8)
        ]

    assert_same_bits(function, special((9, 11), dtype), drawn((9, 11), dtype))


def test_positions_wrap_in_their_dtype() -> None:
    assert_same_bits(lambda x: lax.argmax(x, 0, np.int8), np.arange(300.0, dtype=np.float32))


@pytest.mark.parametrize("dtype", NUMBERS)
def test_cumulative_extrema(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        return [
            (lax.cummax(z, axis, reverse), lax.cummin(z, axis, reverse))
            for z in (x, y)
            for axis in (0, 1)
            for reverse in (False, True)
        ]

    zeros = np.random.default_rng(0).choice([0.0, -0.0], (9, 11)).astype(dtype)
    assert_same_bits(function, special((9, 11), dtype), zeros)


@pytest.mark.parametrize("dtype", [np.float32, np.int32, np.int8, np.uint32, np.complex64])
def test_exact_cumulative_sums_and_products(dtype: Any) -> None:
    def function(x: Any) -> Any:
        return [
            (lax.cumsum(x, axis, reverse), lax.cumprod(jnp.abs(x[:3, :4]), axis, reverse))
            for axis in (0, 1)
            for reverse in (False, True)
        ]

    assert_same_bits(function, drawn((9, 11), dtype))


def test_cumulative_sums_of_special_numbers() -> None:
    zeros = np.full((3, 5), -0.0, np.float32)
    assert_same_bits(
        lambda x, z: (lax.cumsum(x, 1), lax.cumsum(z, 1), lax.cumsum(z[:, :1], 1)),
        special((9, 5), np.float32),
        zeros,
    )


@pytest.mark.parametrize("reverse", [False, True])
def test_rounded_cumulative_sums(reverse: bool) -> None:
    x = np.random.default_rng(0).normal(size=(3, 200)).astype(np.float32)
    magnitude = np.cumsum(np.abs(x[:, ::-1] if reverse else x), 1)
    magnitude = magnitude[:, ::-1] if reverse else magnitude
    ((mine, theirs),) = both(lambda x: lax.cumsum(x, 1, reverse), x)
    assert (np.abs(mine - theirs) <= 4 * np.finfo(np.float32).eps * magnitude).all()
    assert_within_ulps(
        lambda x: (lax.cumprod(x, 1, reverse), lax.cumlogsumexp(x, 1, reverse)), 1 + x / 9, ulps=60
    )


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float8_e4m3fn])
def test_narrow_sums_are_rounded_once(dtype: Any) -> None:
    x = (np.random.default_rng(0).normal(size=(3, 60)) / 4).astype(dtype)
    ((mine, _),) = both(lambda x: lax.cumsum(x, 1), x)
    exact = np.cumsum(x.astype(np.float64), 1).astype(np.float32).astype(dtype)
    assert (mine == exact).mean() > 0.99
    factors = (1 + x.astype(np.float32) / 8).astype(dtype)
    ((mine, _),) = both(lambda x: lax.cumprod(x, 1), factors)
    exact = np.cumprod(factors.astype(np.float64), 1).astype(np.float32).astype(dtype)
    assert (mine == exact).mean() > 0.99


def test_sums_of_exponentials_keep_infinities() -> None:
    x = np.array([-np.inf, -np.inf, 1, 2, 2, np.inf, 3, np.nan, 0], np.float32)
    assert_within_ulps(lambda x: (lax.cumlogsumexp(x), lax.cumlogsumexp(x[:5], 0, True)), x, ulps=4)
