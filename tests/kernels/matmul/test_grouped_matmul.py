"""What the grouped products refuse, and what they promise beyond what their specs draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pallas_test_support.operands import f32, normal, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.matmul import gmm, tgmm
from reference_kernels.matmul._group_schedule import group_schedule


@pytest.fixture(autouse=True, scope="module")
def simulated() -> Iterator[None]:
    """Simulate the kernels: what lies beyond an end is NaN."""
    with simulating():
        yield


def i32(*values: int) -> Any:
    return jnp.array(values, jnp.int32)


class TestMisuse:
    def test_shapes(self) -> None:
        two = i32(1, 1)
        refuses(lambda: gmm(f32(3), f32(2, 3, 4), two), "x must have the shape (m, k)")
        refuses(lambda: gmm(f32(2, 3), f32(3, 4), two), "w must have the shape (groups, k, n)")
        refuses(lambda: gmm(f32(2, 3), f32(2, 4, 3), two), "w must have the same k as x, 3", "is 4")
        refuses(
            lambda: gmm(f32(2, 3), f32(2, 3, 4), two, transpose_rhs=True),
            "w must have the same k as x, 3",
            "is 4",
        )
        refuses(
            lambda: gmm(f32(2, 3), f32(3, 3, 4), two),
            "group_sizes must have the same groups as w, 3",
            "is 2",
        )
        refuses(lambda: tgmm(f32(2, 3), f32(3, 4), two), "y must have the same m as x, 2", "is 3")
        refuses(lambda: tgmm(f32(2, 3), f32(2, 4), i32()), "group_sizes must not be empty")

    def test_dtypes(self) -> None:
        half = f32(2, 3, 4).astype(np.float16)
        refuses(lambda: gmm(f32(2, 3), half, i32(1, 1)), "w must have the dtype of x", "float16")
        refuses(lambda: tgmm(f32(2, 3), half[0, :2], i32(1)), "y must have the dtype of x")
        sizes = np.array([1.0, 1.0], np.float32)
        refuses(lambda: gmm(f32(2, 3), f32(2, 3, 4), sizes), "group_sizes must be int32", "float32")

    @pytest.mark.parametrize("name", ["block_m", "block_n", "block_k"])
    def test_block(self, name: str) -> None:
        wanted = f"{name} must be a positive integer, but it is 0"
        refuses(lambda: gmm(f32(2, 3), f32(1, 3, 4), i32(2), **{name: 0}), wanted)
        refuses(lambda: tgmm(f32(2, 3), f32(2, 4), i32(2), **{name: 0}), wanted)


@settings(deadline=None, max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6),
    tail=st.integers(0, 9),
    tile=st.sampled_from([1, 4, 8]),
    visit_empty=st.booleans(),
)
def test_the_visits_are_the_tiles_and_groups_with_rows_in_common(
    sizes: list[int], tail: int, tile: int, visit_empty: bool
) -> None:
    m = max(1, sum(sizes) + tail)
    schedule = group_schedule(i32(*sizes), m, tile, visit_empty=visit_empty)
    groups, tiles, starts, ends = (np.asarray(x)[: int(schedule.count)] for x in schedule[:4])
    of_row = np.repeat(np.arange(len(sizes)), sizes)
    wanted = sorted({(int(group), row // tile) for row, group in enumerate(of_row)})
    real = list(zip(groups.tolist(), tiles.tolist(), strict=True))
    if visit_empty:
        empty = [group for group, size in enumerate(sizes) if not size]
        assert [group for group, _ in real] == sorted([group for group, _ in wanted] + empty)
    elif wanted:
        assert real == wanted
    # Even a sum of zero rows has one visit, and it has no rows.
    for group, tile_of, start, end in zip(groups, tiles, starts, ends, strict=True):
        rows = np.flatnonzero(of_row == group) - tile_of * tile
        assert end - start == len(rows)
        assert not len(rows) or (start, end - 1) == (rows[0], rows[-1])
        assert 0 <= tile_of < -(-m // tile)


def test_rows_beyond_the_last_group_are_zero_and_are_not_read() -> None:
    x, w = normal(40, 20).at[25:].set(jnp.nan), normal(2, 20, 9)
    out = gmm(x, w, i32(20, 5), block_m=16)
    np.testing.assert_allclose(out[:20], x[:20] @ w[0], atol=1e-4)
    np.testing.assert_allclose(out[20:25], x[20:25] @ w[1], atol=1e-4)
    np.testing.assert_array_equal(out[25:], np.zeros((15, 9)))


def test_groups_without_any_row() -> None:
    x, w = normal(20, 8), normal(3, 8, 9)
    np.testing.assert_array_equal(gmm(x, w, i32(0, 0, 0)), np.zeros((20, 9)))
    np.testing.assert_array_equal(tgmm(x, x, i32(0, 0, 0)), np.zeros((3, 8, 8)))


def test_groups_that_are_longer_than_the_operand_end_with_it() -> None:
    x, w = normal(20, 8), normal(2, 8, 9)
    np.testing.assert_array_equal(gmm(x, w, i32(15, 99)), gmm(x, w, i32(15, 5)))


def test_a_nan_stays_in_its_group() -> None:
    x, y = normal(20, 8).at[3].set(jnp.nan), normal(20, 9).at[3].set(jnp.inf)
    out = np.asarray(tgmm(x, y, i32(5, 15)))
    assert np.isnan(out[0]).all()
    np.testing.assert_allclose(out[1], np.asarray(x[5:].T @ y[5:]), atol=1e-4)


def test_weights_of_an_empty_group_have_a_gradient_of_zero() -> None:
    x, w = normal(20, 8), normal(3, 8, 9)
    dx, dw = jax.grad(lambda x, w: gmm(x, w, i32(12, 0, 4)).sum(), (0, 1))(x, w)
    np.testing.assert_array_equal(dw[1], np.zeros((8, 9)))
    np.testing.assert_array_equal(dx[16:], np.zeros((4, 8)))
    np.testing.assert_allclose(dw[2], np.asarray(x[12:16]).sum(0)[:, None] * np.ones(9), atol=1e-4)


def test_second_derivatives() -> None:
    x, w = normal(10, 8), normal(2, 8, 9)

    def loss(w: jax.Array) -> jax.Array:
        """The sum of squares of a linear function has a constant second derivative."""
        return (gmm(x, w, i32(4, 6)) ** 2).sum() / 2

    _, tangent = jax.vjp(jax.grad(loss), w)
    np.testing.assert_allclose(tangent(w)[0], jax.grad(loss)(w), rtol=1e-4, atol=1e-4)
