"""What the slice by tiles refuses, and where it starts."""

from __future__ import annotations

from collections.abc import Iterator

import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.sparse import tile_dynamic_slice


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    """Simulate the kernels."""
    with simulating():
        yield


def test_starts() -> None:
    wanted = "starts must be int32 of shape (2,)"
    refuses(lambda: tile_dynamic_slice(f32(8, 128), i32(3), sizes=(8, 128)), wanted, "(3,)")
    refuses(lambda: tile_dynamic_slice(f32(8, 128), f32(2), sizes=(8, 128)), wanted, "float32")


def test_sizes() -> None:
    x = f32(16, 300)
    refuses(
        lambda: tile_dynamic_slice(x, i32(2), sizes=(24, 128)),
        "sizes must be at most the shape of x, (16, 300)",
    )
    refuses(
        lambda: tile_dynamic_slice(x, i32(2), sizes=(12, 128)),
        "sizes must be multiples of (8, 128), but they are (12, 128)",
    )


def test_dtype() -> None:
    x = np.zeros((8, 128), np.int8)
    refuses(lambda: tile_dynamic_slice(x, i32(2), sizes=(8, 128)), "16 or 32 bits", "int8")


@pytest.mark.parametrize(("start", "first"), [(-3, 0), (0, 0), (7, 0), (9, 8), (25, 16), (99, 16)])
def test_a_start_is_moved_back_to_a_tile_and_into_range(start: int, first: int) -> None:
    x = jnp.arange(33 * 128.0).reshape(33, 128)
    out = tile_dynamic_slice(x, jnp.array([start, 0], jnp.int32), sizes=(16, 128))
    np.testing.assert_array_equal(out, x[first : first + 16])
