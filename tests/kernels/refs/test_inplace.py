"""What the kernels that work in place refuse, and what they promise."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.refs import (
    add_one_by_ref,
    add_one_to_empty,
    add_one_to_first,
    add_steps,
    copy_in_flight,
    exp_in_place,
    route_rows,
)


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    """Simulate the kernels."""
    with simulating():
        yield


@pytest.mark.parametrize(
    "kernel", [add_one_by_ref, add_one_to_empty, lambda x: add_steps(x, steps=1)]
)
def test_matrices(kernel: Any) -> None:
    refuses(lambda: kernel(f32(128)), "x must have the shape (m, n)", "(128,)")
    refuses(lambda: kernel(f32(0, 128)), "x must not be empty", "(0, 128)")


def test_steps() -> None:
    refuses(lambda: add_steps(f32(2, 3), steps=0), "steps must be a positive integer, but it is 0")


def test_rounds_of_the_same_memory_leave_the_operand_as_it_is() -> None:
    x = jnp.arange(6.0).reshape(2, 3)
    out = jax.jit(lambda x: (add_steps(x, steps=5), x))(x)
    np.testing.assert_array_equal(out[0], x + 5)
    np.testing.assert_array_equal(out[1], x)


def test_rounds_in_bfloat16_stop_where_one_is_too_little() -> None:
    x = jnp.full((1, 1), 254, jnp.bfloat16)
    assert add_steps(x, steps=5)[0, 0] == 256


def test_operands_of_add_one_to_first() -> None:
    count = i32(1)
    refuses(lambda: add_one_to_first(f32(3), count), "x must have the shape (m, n)")
    half = jnp.zeros((2, 3), jnp.bfloat16)
    refuses(lambda: add_one_to_first(half, count), "x must have a dtype of 32 bits", "bfloat16")
    refuses(lambda: add_one_to_first(f32(2, 3), i32()), "count must be int32 of shape (1,)", "()")


@pytest.mark.parametrize(("count", "changed"), [(-5, 0), (0, 0), (2, 2), (3, 3), (9, 3)])
def test_any_count_is_a_number_of_rows(count: int, changed: int) -> None:
    out = add_one_to_first(i32(3, 2), jnp.array([count], jnp.int32))
    np.testing.assert_array_equal(out[:, 0], np.arange(3) < changed)


def test_operands_of_route_rows() -> None:
    x, which = f32(20, 3), i32(3)
    refuses(lambda: route_rows(x, i32(2), x, x), "which must have the same blocks as x, 3", "is 2")
    refuses(lambda: route_rows(x, f32(3), x, x), "which must be int32", "float32")
    refuses(lambda: route_rows(x, which, x, i32(20, 3)), "b must have the dtype of x", "int32")
    refuses(lambda: route_rows(x, which, f32(19, 3), x), "a must have the shape of x", "(19, 3)")
    refuses(lambda: route_rows(x, which, x, x, block_rows=12), "multiple of 8", "12")
    byte = x.astype(np.int8)
    refuses(lambda: route_rows(byte, which, byte, byte), "16 or 32 bits", "int8")


def test_operands_of_copy_in_flight() -> None:
    refuses(lambda: copy_in_flight(f32(3), f32(3)), "x must have the shape (m, n)")
    refuses(lambda: copy_in_flight(f32(2, 3), i32(3)), "y must have a floating dtype", "int32")
    refuses(lambda: copy_in_flight(np.zeros((2, 3), np.int8), f32(3)), "16 or 32 bits", "int8")


def test_operands_of_exp_in_place() -> None:
    refuses(lambda: exp_in_place(f32(3)), "x must have the shape (m, n)")
    refuses(lambda: exp_in_place(i32(2, 3)), "x must be float32", "int32")
    refuses(lambda: exp_in_place(f32(2, 3), block_rows=12), "multiple of 8", "12")
    refuses(lambda: exp_in_place(f32(2, 3), block_rows=0), "block_rows must be a positive integer")
