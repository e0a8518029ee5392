"""Reductions give the bits of JAX, or a sum that is as near to the exact one."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from pallas_test_support.drawn_arrays import drawn, special
from pallas_test_support.rules_of_jax import assert_same_bits, both

DTYPES = [
    *(np.float32, jnp.bfloat16, np.float16, jnp.float8_e5m2, jnp.float8_e4m3fn, jnp.float4_e2m1fn),
    *(np.int32, np.int8, np.uint16, jnp.int4, jnp.uint4, np.bool_),
]
AXES = [(0,), (1,), (0, 2), (0, 1, 2), ()]


@pytest.mark.parametrize("dtype", DTYPES)
def test_extrema(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        asked = [*((x, axes) for axes in AXES), (y, (1,))]
        return [(lax.reduce_max(z, axes), lax.reduce_min(z, axes)) for z, axes in asked]

    x = special((3, 5, 4), dtype)
    zeros = np.random.default_rng(1).choice([0.0, -0.0], (3, 5, 4)).astype(dtype)
    assert_same_bits(function, x, zeros)


@pytest.mark.parametrize("dtype", [each for each in DTYPES if each is not np.bool_])
def test_exact_sums_and_products(dtype: Any) -> None:
    def function(x: Any) -> Any:
        small = x[:1, :2, :1]
        return [(lax.reduce_sum(x, axes), lax.reduce_prod(small, axes)) for axes in AXES]

    rng = np.random.default_rng(0)
    # So few and small that nothing is rounded, but in int4, where sums wrap.
    x = rng.integers(-1, 3, (3, 5, 4)) * (rng.random((3, 5, 4)) < 0.1)
    x[:1, :2, :1] = [[[2], [-1]]]
    assert_same_bits(function, np.abs(x).astype(dtype) if dtype is np.uint16 else x.astype(dtype))


@pytest.mark.parametrize("dtype", [np.int32, np.int8, np.uint16, np.uint32, np.int16])
def test_integers_wrap(dtype: Any) -> None:
    x = np.random.default_rng(0).integers(0, 2**16, (3, 5, 4)).astype(dtype)
    assert_same_bits(lambda x: [(lax.reduce_sum(x, a), lax.reduce_prod(x, a)) for a in AXES], x)


@pytest.mark.parametrize("dtype", [np.bool_, np.int8, np.uint32])
def test_logical_reductions(dtype: Any) -> None:
    def function(x: Any) -> Any:
        return [
            (lax.reduce_and(x, axes), lax.reduce_or(x, axes), lax.reduce_xor(x, axes))
            for axes in AXES
        ]

    rng = np.random.default_rng(0)
    x = rng.integers(0, 2, (3, 5, 4)) if dtype is np.bool_ else rng.integers(0, 127, (3, 5, 4))
    assert_same_bits(function, x.astype(dtype))


@pytest.mark.parametrize("dtype", [*DTYPES, np.complex64])
def test_nothing_gives_the_identity(dtype: Any) -> None:
    reductions = [lax.reduce_max, lax.reduce_min]
    if dtype is not np.bool_:
        reductions += [lax.reduce_sum, lax.reduce_prod]
    if np.dtype(dtype).kind in "biu":
        reductions += [lax.reduce_and, lax.reduce_or, lax.reduce_xor]
    if dtype is np.complex64:
        reductions = [lax.reduce_sum, lax.reduce_prod]
    assert_same_bits(lambda x: [each(x, (1,)) for each in reductions], drawn((2, 0, 3), dtype))


def test_sums_of_special_numbers() -> None:
    def function(x: Any, z: Any) -> Any:
        return [
            (lax.reduce_sum(y, axes), lax.reduce_prod(y, axes)) for y in (x, z) for axes in AXES
        ]

    z = np.full((3, 5, 4), -0.0, np.float32)
    assert_same_bits(function, np.round(special((3, 5, 4), np.float32)), z)


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_rounded_sums(axes: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(size=(70, 300)).astype(np.float32)
    ((mine, theirs),) = both(lambda x: lax.reduce_sum(x, axes), x)
    epsilon = np.finfo(np.float32).eps
    assert (np.abs(mine - theirs) <= 4 * epsilon * np.abs(x).sum(axes)).all()
    ((mine, theirs),) = both(lambda x: lax.reduce_prod(x, axes), np.float32(1) + x / 99)
    assert (np.abs(mine / theirs - 1) <= epsilon * 400).all()


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, jnp.float8_e4m3fn])
def test_narrow_sums_are_rounded_once(dtype: Any) -> None:
    # XLA's CPU backend rounds partial sums of them, so the exact sum is the measure.
    x = (np.random.default_rng(0).normal(size=(40, 300)) / 8).astype(dtype)
    ((mine, _),) = both(lambda x: lax.reduce_sum(x, (1,)), x)
    exact = x.astype(np.float64).sum(1).astype(np.float32).astype(dtype)
    assert (mine == exact).mean() >= 0.95


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int32])
def test_any_computation_reduces(dtype: Any) -> None:
    one = np.ones((), dtype)

    def one_value(a: Any, b: Any) -> Any:
        return a * 2 - b

    def pair(a: Any, b: Any) -> Any:
        return a[0] * 2 - b[0], lax.select(b[0] > a[1], b[1], a[1])

    def function(x: Any) -> Any:
        return [
            found
            for axes in ((1,), (0, 1))
            for found in (
                lax.reduce(x, one * 3, one_value, axes),
                lax.reduce((x, x * 2), (one, one * 0), pair, axes),
                lax.reduce(x, one * 3, lax.max, axes),
            )
        ]

    assert_same_bits(function, drawn((3, 4), dtype))


WINDOWS = [
    {"window_dimensions": (3, 2), "window_strides": (2, 1), "padding": ((1, 2), (0, -1))},
    {"window_dimensions": (2, 3), "window_strides": (1, 2), "padding": ((0, 0), (2, 1))}
    | {"base_dilation": (1, 2), "window_dilation": (2, 1)},
]


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int32])
@pytest.mark.parametrize("window", WINDOWS)
def test_windows(dtype: Any, window: Any) -> None:
    limits = [-np.inf, np.inf]
    if dtype is np.int32:
        limits = [np.iinfo(np.int32).min, np.iinfo(np.int32).max]
    low, high = (np.array(limit, dtype) for limit in limits)
    one = np.ones((), dtype)

    def function(x: Any, y: Any) -> Any:
        return (
            lax.reduce_window(y, one * 0, lax.add, **window),
            lax.reduce_window(x, low, lax.max, **window),
            lax.reduce_window(x, high, lax.min, **window),
            lax.reduce_window(y, one * 5, lax.add, **window),
            # The order within a window is not specified, so that this must not depend on it.
            lax.reduce_window(y, one, lambda a, b: a + b * 2, **window),
            lax.reduce_window(
                (x, y),
                (one, one * 0),
                lambda a, b: (lax.max(a[0], b[1]), a[1] - b[1] * 2),
                **window,
            ),
        )

    assert_same_bits(function, special((6, 7), dtype), drawn((6, 7), dtype))


@pytest.mark.parametrize(
    ("padding", "largest"),
    [("SAME", True), ("SAME", False), ("VALID", False), (((0, 1), (2, 1)), True)],
)
def test_derivatives_of_pooling(padding: Any, largest: bool) -> None:
    start, operation = (-np.inf, lax.max) if largest else (np.inf, lax.min)

    def pool(x: Any) -> Any:
        return lax.reduce_window(x, np.array(start, x.dtype), operation, (2, 3), (1, 2), padding)

    def function(x: Any, direction: Any) -> Any:
        out, back = jax.vjp(pool, x)
        weights = (jnp.arange(out.size) + 1).reshape(out.shape).astype(x.dtype)
        return back(weights), jax.jvp(pool, (x,), (direction,))

    for dtype in (np.float32, jnp.bfloat16):
        direction = np.arange(42).reshape(6, 7).astype(dtype)
        assert_same_bits(function, drawn((6, 7), dtype), direction)
        assert_same_bits(function, special((6, 7), dtype), direction)
