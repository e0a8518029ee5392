"""What the gathering product refuses, and what it promises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.sparse import fused_gather


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    """Simulate the kernels."""
    with simulating():
        yield


X, IDX, W = f32(5, 4), i32(3), f32(4, 6)


def test_operands() -> None:
    refuses(lambda: fused_gather(f32(5), IDX, W), "x must have the shape (rows, k)", "(5,)")
    refuses(lambda: fused_gather(X, i32(3, 1), W), "idx must have the shape (m,)", "(3, 1)")
    refuses(lambda: fused_gather(X, IDX, f32(5, 6)), "w must have the same k as x, 4", "is 5")
    refuses(lambda: fused_gather(X, i32(0), W), "idx must not be empty")


def test_dtypes() -> None:
    refuses(lambda: fused_gather(i32(5, 4), IDX, W), "x must be float32 or bfloat16", "int32")
    refuses(lambda: fused_gather(X, f32(3), W), "idx must be int32", "float32")
    half = jnp.zeros((4, 6), jnp.bfloat16)
    refuses(lambda: fused_gather(X, IDX, half), "w must have the dtype of x, float32", "bfloat16")


@pytest.mark.parametrize("name", ["block_m", "block_n"])
def test_blocks(name: str) -> None:
    refuses(
        lambda: fused_gather(X, IDX, W, **{name: 0}),
        f"{name} must be a positive integer, but it is 0",
    )


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_rows_beyond_the_ends_are_the_first_and_the_last(dtype: Any) -> None:
    x = jnp.arange(5.0).astype(dtype)[:, None]
    idx = jnp.array([-7, 4, 5, 99, 3], jnp.int32)
    out = fused_gather(x, idx, jnp.ones((1, 1), dtype))
    np.testing.assert_array_equal(out[:, 0], [0, 4, 4, 4, 3])


def test_a_row_of_bfloat16_is_not_touched_by_the_other_of_its_pair() -> None:
    x = jnp.array([[jnp.nan], [2.0], [3.0], [jnp.inf]], jnp.bfloat16)
    out = fused_gather(x, jnp.array([1, 2], jnp.int32), jnp.ones((1, 1), jnp.bfloat16))
    np.testing.assert_array_equal(out[:, 0], [2, 3])
