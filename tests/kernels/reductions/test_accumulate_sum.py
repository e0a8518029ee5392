"""What the sums over rows refuse, and what they promise beyond what their specs draw."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import refuses
from pallas_test_support.simulating import simulating

from reference_kernels.reductions import accumulate_sum, accumulate_sum_by_rows

SUMS = [accumulate_sum, accumulate_sum_by_rows]


@pytest.mark.parametrize("total", SUMS)
class TestMisuse:
    def test_rank(self, total: Any) -> None:
        refuses(lambda: total(np.zeros(3, np.float32)), "x must have the shape (m, n)", "(3,)")

    def test_empty(self, total: Any) -> None:
        refuses(lambda: total(np.zeros((0, 3), np.float32)), "x must not be empty", "(0, 3)")

    def test_dtype(self, total: Any) -> None:
        refuses(lambda: total(np.zeros((2, 3), np.int8)), "x must have a floating dtype", "int8")

    @pytest.mark.parametrize("name", ["block_m", "block_n"])
    def test_block(self, total: Any, name: str) -> None:
        x = np.zeros((2, 3), np.float32)
        refuses(lambda: total(x, **{name: 0}), f"{name} must be a positive integer")


@pytest.mark.parametrize("total", SUMS)
def test_sums_are_wider_than_bfloat16_and_int32_wraps_around(total: Any) -> None:
    with simulating():
        # In bfloat16, 256 + 1 is 256.
        ones = jnp.ones((300, 2), jnp.bfloat16)
        np.testing.assert_array_equal(total(ones, block_m=16), [300.0, 300.0])
        large = jnp.full((2, 1), 2**31 - 1, jnp.int32)
        np.testing.assert_array_equal(total(large), [-2])


def test_the_gradient_of_a_sum_is_its_cotangent_in_every_row() -> None:
    with simulating():
        do = jnp.array([1.0, 2.0, 3.0])
        dx = jax.grad(lambda x: accumulate_sum(x) @ do)(jnp.zeros((5, 3)))
    np.testing.assert_array_equal(dx, np.tile(do, (5, 1)))
