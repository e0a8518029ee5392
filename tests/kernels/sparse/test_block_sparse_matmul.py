"""What the block-sparse products refuse, and what they promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, normal, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.sparse import dsd, sdd


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    """Simulate the kernels."""
    with simulating():
        yield


VALUES, LIST, COUNT, Y = f32(3, 16, 16), i32(3), i32(1), f32(20, 5)
X = f32(7, 20)


def test_operands_of_dsd() -> None:
    refuses(
        lambda: dsd(f32(16, 16), LIST, LIST, COUNT, Y, m=20),
        "values must have the shape (blocks, p, q)",
        "(16, 16)",
    )
    refuses(lambda: dsd(VALUES, LIST, LIST, COUNT, f32(20), m=20), "y must have the shape (k, n)")
    refuses(
        lambda: dsd(VALUES, LIST, LIST, COUNT, Y.astype(np.float16), m=20),
        "y must have the dtype of values, float32",
    )
    refuses(lambda: dsd(i32(3, 16, 16), LIST, LIST, COUNT, i32(20, 5), m=20), "values", "floating")
    refuses(lambda: dsd(VALUES, LIST, LIST, COUNT, Y, m=0), "m must be a positive integer")
    refuses(lambda: dsd(VALUES, LIST, LIST, COUNT, Y, m=9, block_n=0), "block_n", "positive")


def test_operands_of_sdd() -> None:
    refuses(lambda: sdd(X, f32(21, 5), LIST, LIST, COUNT), "y must have the same k as x, 20")
    refuses(lambda: sdd(X, Y, LIST, LIST, COUNT, block=(16,)), "block must be two sizes")
    refuses(lambda: sdd(X, Y, LIST, LIST, COUNT, block_k=-1), "block_k must be a positive integer")
    refuses(lambda: sdd(X, Y.astype(np.float16), LIST, LIST, COUNT), "y must have the dtype of x")


@pytest.mark.parametrize(
    "product",
    [
        lambda rows, columns, count: dsd(VALUES, rows, columns, count, Y, m=20),
        lambda rows, columns, count: sdd(X, Y, rows, columns, count),
    ],
)
def test_lists(product: Any) -> None:
    refuses(lambda: product(LIST, i32(2), COUNT), "columns must have the same blocks as", "is 2")
    refuses(lambda: product(f32(3), LIST, COUNT), "rows must be int32", "float32")
    refuses(lambda: product(LIST, LIST, i32()), "count must have the shape (1,)", "()")


def test_a_sampled_product_times_a_matrix_is_the_masked_product_times_it() -> None:
    x, y, z = normal(40, 24), normal(24, 40), normal(40, 7)
    rows, columns = jnp.array([2, 0, 2, 1], jnp.int32), jnp.array([1, 0, 2, 2], jnp.int32)
    lists = rows, columns, jnp.array([3], jnp.int32)
    out = dsd(sdd(x, y, *lists, block=(16, 16)), *lists, z, m=40)
    mask = np.zeros((3, 3), np.float32)
    mask[rows[:3], columns[:3]] = 1
    dense = (x @ y) * np.kron(mask, np.ones((16, 16), np.float32))[:40, :40]
    np.testing.assert_allclose(out, dense @ z, atol=1e-3)
    np.testing.assert_array_equal(out[16:32], 0)


def test_an_empty_list_is_the_zero_matrix() -> None:
    none = jnp.array([0], jnp.int32)
    np.testing.assert_array_equal(dsd(jnp.nan * VALUES, LIST, LIST, none, Y, m=20), 0)
    np.testing.assert_array_equal(sdd(X, Y, LIST, LIST, none, block=(16, 16)), 0)


def test_blocks_at_the_same_place_are_added_and_share_a_gradient() -> None:
    values, y = normal(2, 16, 16), normal(16, 3)
    lists = i32(2), i32(2), jnp.array([2], jnp.int32)
    total = dsd(values, *lists, y, m=16)
    np.testing.assert_allclose(total, values.sum(0) @ y, atol=1e-4)
    gradient = jax.grad(lambda values: dsd(values, *lists, y, m=16).sum())(values)
    np.testing.assert_array_equal(gradient[0], gradient[1])
    np.testing.assert_allclose(gradient[0], np.broadcast_to(y.sum(1), (16, 16)), atol=1e-4)
