"""What the kernels that gather and scatter by lists of indices refuse, and what they promise."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, normal, refuses

from reference_kernels.sparsecore import gather, gather_pipelined, gather_sum, scatter_add

X, IDX = f32(5, 8), i32(3)
ON_SUBCORES = pytest.mark.pallas(backends=["tpu-sim"])


@pytest.mark.parametrize("kernel", [gather, gather_pipelined])
class TestGather:
    def test_operands(self, kernel: Any) -> None:
        refuses(lambda: kernel(f32(5), IDX), "x must have the shape (rows, d)", "(5,)")
        refuses(lambda: kernel(f32(0, 8), IDX), "x must not be empty")
        refuses(lambda: kernel(X, i32(3, 1)), "idx must have the shape (m,)", "(3, 1)")
        refuses(lambda: kernel(X, f32(3)), "idx must be int32", "float32")

    def test_chunk(self, kernel: Any) -> None:
        refuses(lambda: kernel(X, IDX, chunk=0), "chunk must be a positive integer, but it is 0")


def test_what_a_row_may_hold() -> None:
    byte = np.zeros((5, 8), np.int8)
    refuses(lambda: gather(byte, IDX), "x must have a dtype of 16 or 32 bits", "int8")
    half = jnp.zeros((5, 8), jnp.bfloat16)
    refuses(lambda: gather_pipelined(half, IDX), "x must be float32 or int32", "bfloat16")


@ON_SUBCORES
def test_rows_beyond_the_ends_are_the_first_and_the_last(pallas_run: Any) -> None:
    x = np.arange(5, dtype=np.float32)[:, None]
    idx = np.array([-7, 4, 5, 99, 3], np.int32)
    out = pallas_run(gather, x, idx, cores=1, subcores=2)
    np.testing.assert_array_equal(out[:, 0], [0, 4, 4, 4, 3])


class TestScatterAdd:
    def test_operands(self) -> None:
        refuses(lambda: scatter_add(f32(3), IDX, rows=4), "x must have the shape (m, d)")
        refuses(lambda: scatter_add(X, IDX, rows=4), "idx must have the same m as x, 5", "is 3")
        refuses(lambda: scatter_add(X, f32(5), rows=4), "idx must be int32")
        half = jnp.zeros((5, 8), jnp.bfloat16)
        refuses(lambda: scatter_add(half, i32(5), rows=4), "x must be float32 or int32")

    def test_sizes(self) -> None:
        refuses(lambda: scatter_add(X, i32(5), rows=0), "rows must be a positive integer")
        refuses(lambda: scatter_add(X, i32(5), rows=4, chunk=-1), "chunk must be a positive")
        other: Any = "wrapped"
        refuses(lambda: scatter_add(X, i32(5), rows=4, beyond=other), "beyond must be", "wrapped")

    @ON_SUBCORES
    def test_sums_of_any_numbers(self, pallas_run: Any) -> None:
        x, idx = normal(40, 3), np.arange(40, dtype=np.int32) % 3
        out = pallas_run(scatter_add, x, idx, rows=4, chunk=8, cores=1, subcores=2)
        expected = np.zeros((4, 3))
        np.add.at(expected, idx, np.asarray(x, np.float64))
        np.testing.assert_allclose(out, expected, atol=1e-5)
        np.testing.assert_array_equal(out[3], 0)


class TestGatherSum:
    def test_operands(self) -> None:
        refuses(lambda: gather_sum(f32(5), IDX, IDX, count=2), "x must have the shape (rows, d)")
        refuses(
            lambda: gather_sum(X, IDX, i32(4), count=2), "segments must have the same m as idx, 3"
        )
        refuses(lambda: gather_sum(X, IDX, f32(3), count=2), "segments must be int32", "float32")
        refuses(lambda: gather_sum(X, f32(3), IDX, count=2), "idx must be int32", "float32")

    def test_sizes(self) -> None:
        refuses(lambda: gather_sum(X, IDX, IDX, count=0), "count must be a positive integer")
        refuses(lambda: gather_sum(X, IDX, IDX, count=1, chunk=0), "chunk must be a positive")

    @ON_SUBCORES
    def test_empty_segments_are_zero(self, pallas_run: Any) -> None:
        x = np.ones((5, 3), np.int32)
        idx, segments = np.array([4, 4, 0], np.int32), np.array([3, 3, 1], np.int32)
        out = pallas_run(gather_sum, x, idx, segments, count=5, chunk=8, cores=2, subcores=2)
        np.testing.assert_array_equal(out[:, 0], [0, 1, 0, 2, 0])
