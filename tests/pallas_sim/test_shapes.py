"""Rules that move elements around give the bits of JAX, and views where they can."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.drawn_arrays import drawn, special
from pallas_test_support.rules_of_jax import assert_same_bits

from pallas_sim import simulate

DTYPES = [np.float32, jnp.bfloat16, np.int8, jnp.int4, jnp.float8_e4m3fn, np.bool_]


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_moves(dtype: Any) -> None:
    def function(x: Any, y: Any) -> Any:
        return (
            lax.broadcast_in_dim(x, (2, 3, 5, 4), (1, 3)),
            lax.broadcast_in_dim(x, (3, 1, 4), (0, 2)),
            x.reshape(2, 6),
            x.T[::-1],
            lax.concatenate([x, y[:1], x], 0),
            jnp.stack([x, y, y], 1),
            lax.slice(x, (0, 1), (3, 4), (2, 2)),
            lax.pad(x, y[0, 0], ((1, -1, 2), (-1, 2, 0))),
        )

    assert_same_bits(function, special((3, 4), dtype), special((3, 4), dtype, seed=1))


@pytest.mark.parametrize(
    ("given", "dims", "shape"),
    [
        ((), (), (3, 4)),
        ((4,), (1,), (3, 4)),
        ((3,), (0,), (3, 4)),
        ((1, 4), (0, 2), (2, 3, 4)),
        ((3, 1), (0, 1), (3, 4)),
        ((2, 3), (0, 2), (2, 4, 3)),
        ((3, 1, 2), (1, 2, 3), (2, 3, 1, 2)),
        ((0, 2), (0, 2), (0, 3, 2)),
        ((2,), (0,), (2, 0)),
    ],
)
def test_broadcasts(given: Any, dims: Any, shape: Any) -> None:
    x = drawn(given, np.float32)
    assert_same_bits(lambda x: lax.broadcast_in_dim(x, shape, dims), x)
    # An operand that is not contiguous takes another way.
    turned = drawn(given[::-1], np.float32)
    assert_same_bits(lambda x: lax.broadcast_in_dim(x.T, shape, dims), turned)


def test_state_broadcast_aligns_the_last_axes() -> None:
    assert_same_bits(lambda x: pl.broadcast_to(x, (2, 3, 4)), drawn((3, 1), np.int32))


def test_constants_are_made_once_a_program() -> None:
    def body(i: Any, x: Any) -> Any:
        return x + jnp.full((2, 3), 1.5) * lax.broadcasted_iota(jnp.float32, (2, 3), 1)

    assert_same_bits(lambda x: lax.fori_loop(0, 3, body, x), drawn((2, 3), np.float32))


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float32, jnp.bfloat16, jnp.float16])
def test_iota_counts_along_its_dimension(dtype: Any) -> None:
    assert_same_bits(
        lambda: (lax.broadcasted_iota(dtype, (300, 2), 0), lax.broadcasted_iota(dtype, (2, 7), 1))
    )


def test_reshape_reorders_first() -> None:
    def function(x: Any) -> Any:
        reordered = lax.reshape(x, (4, 6), (2, 0, 1))
        return reordered, lax.squeeze(x[:, :1], (1,)), lax.expand_dims(x, (0, 2)), x.T.reshape(-1)

    assert_same_bits(function, drawn((2, 3, 4), np.int32))


def test_transpose_rev_and_tile() -> None:
    def function(x: Any) -> Any:
        return (
            x.transpose(2, 0, 1),
            lax.rev(x, (0, 2)),
            lax.rev(x, (1,)),
            lax.tile(x, (2, 1, 3)),
            lax.tile(x.T, (1, 2, 1)),
        )

    assert_same_bits(function, drawn((2, 3, 4), np.int32))


@pytest.mark.parametrize("stride", [None, 0, 2])
def test_rolls(stride: int | None) -> None:
    def function(x: Any, shift: Any) -> Any:
        # The second stride_axis is before the axis, the first one behind it.
        strides = {} if stride is None else {"stride": stride, "stride_axis": 2}
        before = {} if stride is None else {"stride": stride, "stride_axis": 0}
        return pltpu.roll(x, shift, 1, **strides), pltpu.roll(x, shift, 2, **before)

    for shift in (0, 1, 7, 123, -2):
        assert_same_bits(function, drawn((2, 5, 3), np.float32), np.int32(shift))


def test_dynamic_slices_stay_inside() -> None:
    def function(x: Any, i: Any, j: Any) -> Any:
        return (
            lax.dynamic_slice(x, (i, j), (2, 3)),
            lax.dynamic_slice(x, (i, 0), (5, 1)),
            lax.dynamic_update_slice(x, x[:2, 1:], (i, j)),
            lax.dynamic_update_slice(x, x[:, :1], (0, i)),
            x[i],
            x[:, j],
        )

    x = drawn((5, 4), np.int32)
    for i, j in [(0, 0), (1, 1), (3, 2), (4, 3), (9, 9), (-1, -2), (-9, -9)]:
        assert_same_bits(function, x, np.int32(i), np.int32(j))


def test_an_update_leaves_its_operand() -> None:
    x = drawn((5,), np.int32)
    before = x.copy()
    assert_same_bits(lambda x: (lax.dynamic_update_slice(x, x[:2] + 7, (1,)), x), x)
    np.testing.assert_array_equal(x, before)


def test_splits_and_stacks() -> None:
    def function(x: Any) -> Any:
        return (
            lax.split(x, (1, 3, 2), 1),
            jnp.split(x, 2, 0),
            jnp.unstack(x, axis=1),
            jnp.unstack(x[0], axis=0),
            lax.concatenate([x], 1),
            lax.concatenate([x, x[:, :2], x], 1),
            jnp.stack([x, x + 1], -1),
            jnp.stack([x[0, 0], x[0, 1]], 0),
        )

    assert_same_bits(function, drawn((4, 6), np.int32))


@pytest.mark.parametrize("seed", range(12))
def test_pads(seed: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(0, 5, 2))
    config = []
    for size in shape:
        between = int(rng.integers(0, 3))
        full = size + max(0, size - 1) * between
        low = int(rng.integers(-full, 4))
        high = int(rng.integers(-(full + low), 4))
        config.append((low, high, between))
    x = drawn(shape, np.float32, seed)
    assert_same_bits(lambda x: lax.pad(x, np.float32(9), config), x)


def test_a_pad_that_only_cuts() -> None:
    assert_same_bits(
        lambda x: lax.pad(x, np.int32(9), ((-1, -2, 0), (0, -1, 0))), drawn((5, 4), np.int32)
    )


def test_typed_keys_move() -> None:
    keys = jax.random.split(jax.random.key(3), 6)

    def function(keys: Any, i: Any) -> Any:
        table = keys.reshape(2, 3)
        moved = (
            table.T,
            table[::-1, 1:],
            table[0],
            jnp.broadcast_to(keys[:, None], (2, 6, 3)),
            jnp.broadcast_to(keys[0], (2, 2)),
            jnp.concatenate([keys, keys[:2]]),
            jnp.stack([keys, keys[::-1]], 1),
            jnp.unstack(table, axis=1),
            jnp.split(keys, 3),
            jnp.tile(table, (2, 2)),
            lax.dynamic_slice(keys, (i,), (2,)),
            lax.dynamic_update_slice(keys, keys[:2], (i,)),
            keys[i],
            keys[jnp.array([4, -1, 0])],
            table[jnp.array([1, 0]), jnp.array([2, -1])],
        )
        return jax.tree.map(jax.random.key_data, moved)

    assert_same_bits(function, keys, np.int32(3))
    assert_same_bits(function, keys, np.int32(30))


def test_results_are_views() -> None:
    x = drawn((4, 6), np.float32)
    for function in (
        lambda x: x.T,
        lambda x: x[1:, ::2],
        lambda x: lax.rev(x, (0,)),
        lambda x: x.reshape(3, 8),
        lambda x: lax.broadcast_in_dim(x, (5, 4, 6), (1, 2)),
        lambda x: lax.dynamic_slice(x, (1, 2), (2, 2)),
        lambda x: jnp.split(x, 2)[1],
    ):
        assert np.shares_memory(simulate(function, x).values, x)
    wide = simulate(lambda x: lax.broadcast_in_dim(x, (5, 4, 6), (1, 2)), x).values
    assert not wide.flags.writeable


def test_empty_memory_was_never_written() -> None:
    empty = simulate(lambda: (lax.empty((2, 3), jnp.float32), lax.empty((2,), jnp.int32))).values
    assert np.isnan(empty[0]).all()
    assert (empty[1] == np.iinfo(np.int32).min).all()


def test_constraints_pass_values_on() -> None:
    x = drawn((4, 6), np.float32)
    device = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    assert_same_bits(lambda x: lax.with_sharding_constraint(x, device) + 1, x)
    placed = simulate(lambda x: pltpu.with_memory_space_constraint(x, pl.ANY), x)
    np.testing.assert_array_equal(placed.values, x)
    assert not placed.fallbacks
