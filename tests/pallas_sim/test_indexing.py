"""Gathers and scatters give the bits of JAX, out-of-bounds positions included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from pallas_test_support.drawn_arrays import drawn, special
from pallas_test_support.rules_of_jax import assert_same_bits

from pallas_sim import simulate

#: Inside, negative, and beyond the edges, and some twice.
POSITIONS = np.array([1, -1, 3, 9, -9, 0, 3, 4], np.int32)
OTHERS = np.array([2, -1, 0, 9, -9, 1, 0, 2], np.int32)
MODES = ["clip", "fill", "promise_in_bounds"]


@pytest.mark.parametrize("mode", MODES)
def test_numpy_indexing(mode: str) -> None:
    def function(x: Any, i: Any, j: Any) -> Any:
        return (
            x.at[i].get(mode=mode),
            x.at[:, i].get(mode=mode),
            x.at[i, j].get(mode=mode),
            x.at[i, :, j].get(mode=mode),
            x.at[:, i, j].get(mode=mode),
            x.at[i[:, None], j].get(mode=mode),
            x.at[i, i // 2, j].get(mode=mode),
            x.T.at[i].get(mode=mode),
            x[:1].at[i].get(mode=mode),
        )

    assert_same_bits(function, drawn((5, 6, 4), np.float32), POSITIONS, OTHERS)


@pytest.mark.parametrize(
    "dtype", [np.float32, jnp.bfloat16, np.int8, np.uint32, np.bool_, np.complex64, jnp.int4]
)
def test_windows_outside_are_filled(dtype: Any) -> None:
    def function(x: Any, i: Any) -> Any:
        filled = x.at[i].get(mode="fill", fill_value=1)
        return x.at[i].get(mode="fill"), x.at[:, i].get(mode="fill"), filled

    assert_same_bits(function, drawn((5, 6), dtype), POSITIONS)


def test_take_and_take_along_axis() -> None:
    def function(x: Any, k: Any) -> Any:
        return (
            jnp.take_along_axis(x, k, 0),
            jnp.take_along_axis(x, k, 1),
            jnp.take_along_axis(x, k[:1], 2),
            jnp.take(x, k, 1),
            jnp.take(x.T, k[0], 0),
        )

    rng = np.random.default_rng(0)
    assert_same_bits(function, drawn((5, 6, 4), np.int32), rng.integers(-8, 8, (5, 6, 4)))


@pytest.mark.parametrize("mode", MODES)
def test_windows_of_several_elements(mode: str) -> None:
    def function(x: Any, i: Any) -> Any:
        both = jnp.stack([i, i[::-1]], 1)
        narrow = lax.GatherDimensionNumbers((1, 2), (1,), (0, 2))
        wide = lax.GatherDimensionNumbers((0, 2, 3), (), (2, 0))
        short = lax.GatherDimensionNumbers((0,), (0, 1), (0, 1))
        return (
            lax.gather(x, both, narrow, (2, 1, 3), mode=mode),
            lax.gather(x, both, wide, (1, 2, 3), mode=mode),
            lax.gather(x, both, short, (1, 1, 3), mode=mode),
            lax.gather(x, both, narrow, (0, 1, 3), mode=mode),
        )

    assert_same_bits(function, drawn((5, 6, 4), np.int32), POSITIONS)


def test_positions_of_any_integer_dtype() -> None:
    x = drawn((5, 3), np.float32)
    for dtype in (np.int8, np.uint8, np.uint32, np.int32):
        positions = np.array([0, 4, 3, 100], dtype)
        assert_same_bits(
            lambda x, i: (x[i], x.at[i].get(mode="fill"), x.at[i].add(1)), x, positions
        )


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.int16])
def test_positions_narrower_than_the_array_is_large(dtype: Any) -> None:
    """The place of an element in memory exceeds the dtype of its position."""

    def function(x: Any, i: Any) -> Any:
        numbers = lax.GatherDimensionNumbers((), (0,), (0,), (1,), (1,))
        along = lax.gather(x, i[..., None], numbers, (1, 1), mode="clip")
        pairs = lax.GatherDimensionNumbers((), (0, 1), (0, 1))
        return along, lax.gather(x, jnp.stack([i, i + 90], -1), pairs, (1, 1), mode="clip")

    positions = np.random.default_rng(0).integers(0, 32, (6, 300)).astype(dtype)
    assert_same_bits(function, drawn((32, 300), np.int32), positions)


def test_batches() -> None:
    def function(x: Any, i: Any, u: Any) -> Any:
        def one(x: Any, i: Any, u: Any) -> Any:
            return (
                x[i],
                lax.dynamic_slice(x, (i, 0), (2, 3)),
                lax.dynamic_update_slice(x, u, (i, 1)),
                x.at[i].add(u[0, 0]),
                x.at[i, i].set(u[0, 0], mode="clip"),
            )

        return jax.vmap(one)(x, i, u), jax.vmap(one, (1, 0, 1))(x, i, u)

    x, u = drawn((5, 5, 4), np.float32), drawn((5, 5, 2), np.float32, seed=1)
    assert_same_bits(function, x, POSITIONS[:5], u)


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        *((name, mode) for name in ("set", "add") for mode in MODES),
        *(("subtract", "clip"), ("multiply", "fill"), ("min", "fill"), ("max", "clip")),
    ],
)
def test_scatters(name: str, mode: str) -> None:
    mode = "drop" if mode == "fill" else mode

    def function(x: Any, i: Any, j: Any, u: Any) -> Any:
        def at(place: Any, update: Any) -> Any:
            return getattr(place, name)(update, mode=mode)

        return (
            at(x.at[i], u),
            at(x.at[:, i], u.transpose(1, 0, 2)[:5]),
            at(x.at[i, j], u[:, 0]),
            at(x.at[i, :, j], u[:, :, 0]),
            at(x.at[i, i // 2, j], u[:, 0, 0]),
            at(x.at[i[:, None], j[::2]], u[:, :4]),
            at(x.at[2], u[0]),
            at(x.at[:1, :1, 0].at[i] if False else x[:, :1, :1].at[i], u[:, :1, :1]),
            x,
        )

    x, u = drawn((5, 6, 4), np.float32), drawn((8, 6, 4), np.float32, seed=1)
    # No zero: of -0.0 and 0.0, numpy's maximum is either.
    assert_same_bits(function, x + 0.5, POSITIONS, OTHERS, u + 0.25)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, np.float16, np.int8, np.int32, np.complex64])
def test_updates_are_rounded_one_by_one(dtype: Any) -> None:
    def function(x: Any, i: Any, u: Any) -> Any:
        return x.at[i].add(u), x.at[i, 0].add(u[:, 0]), x.at[i, 0].multiply(u[:, 0])

    rng = np.random.default_rng(0)
    u = rng.normal(size=(200, 3)).astype(dtype)
    assert_same_bits(function, drawn((4, 3), dtype), rng.integers(0, 4, 200), u)


@pytest.mark.parametrize("mode", MODES)
def test_windows_of_several_elements_are_scattered(mode: str) -> None:
    def function(x: Any, i: Any, u: Any) -> Any:
        numbers = lax.ScatterDimensionNumbers((1, 2), (1,), (0, 2))
        both = jnp.stack([i, i[::-1]], 1)
        return (
            lax.scatter(x, both, u, numbers, mode=mode),
            lax.scatter_add(x, both, u, numbers, mode=mode),
            lax.scatter_max(x, both, u, numbers, mode=mode),
            # A window that does not cover the last axis, which has no positions.
            lax.scatter(x, both, u[:, 0], lax.ScatterDimensionNumbers((1,), (0, 1), (0, 1))),
        )

    u = drawn((8, 2, 3), np.int32, seed=1)
    assert_same_bits(function, drawn((5, 6, 4), np.int32), POSITIONS, u)


def test_apply_and_positions_twice() -> None:
    def function(x: Any, i: Any) -> Any:
        return x.at[i].apply(lambda v: v * 3 - 1), x.at[i, 1].apply(lambda v: v * 3 - 1)

    assert_same_bits(function, drawn((5, 3), np.int32), POSITIONS)


def test_derivatives_of_indexing() -> None:
    def function(x: Any, i: Any) -> Any:
        def loss(take: Callable[[Any], Any]) -> Any:
            return jax.grad(lambda x: (take(x) ** 2).sum())(x)

        return (
            loss(lambda x: x[i]),
            loss(lambda x: jnp.take_along_axis(x, i[None, :6], 0)),
            loss(lambda x: x.at[i].set(2.0)),
            loss(lambda x: lax.dynamic_slice(x, (i[0], i[1]), (2, 2))),
        )

    assert_same_bits(function, drawn((5, 6), np.float32), POSITIONS)


def test_keys_are_gathered_and_scattered() -> None:
    keys = jax.random.split(jax.random.key(3), 6)
    numbers = lax.ScatterDimensionNumbers((), (0,), (0,))

    def function(keys: Any, i: Any) -> Any:
        moved = (
            keys[i],
            keys.reshape(3, 2)[i],
            keys.at[i].get(mode="fill"),
            lax.scatter(keys, i[:, None], keys[::-1][:4], numbers),
        )
        return jax.tree.map(jax.random.key_data, moved)

    assert_same_bits(function, keys, np.array([1, -1, 9, 1]))


def test_empty_gathers_and_scatters() -> None:
    def function(x: Any, i: Any) -> Any:
        return x[i[:0]], x[:, :0][i], x[:0].at[i].add(1.0), x.at[i[:0]].add(1.0)

    assert_same_bits(function, special((5, 3), np.float32), POSITIONS)


def test_a_scatter_leaves_its_operand() -> None:
    x = drawn((5, 3), np.float32)
    before = x.copy()
    simulate(lambda x: (x.at[1].add(1.0), x.at[jnp.array([1, 2])].set(7.0)), x)
    np.testing.assert_array_equal(x, before)
