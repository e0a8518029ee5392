"""Every misuse of a reference kernel is a ValueError that names the operand and what is wanted.

The checks come before any tracing, so nothing here runs a kernel.
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses

from reference_kernels.attention import batched_mha, flash_attention, mha
from reference_kernels.basics import add_blocks, add_vectors, iota
from reference_kernels.dma import dma_copy, double_buffer
from reference_kernels.matmul import matmul, matmul_naive
from reference_kernels.mosaic_gpu import tma_copy_add
from reference_kernels.reductions import softmax
from reference_kernels.refs import add_one_aliased, add_one_by_ref
from reference_kernels.sparse import block_dynamic_slice

VECTORS = [add_vectors, add_blocks]
PRODUCTS = [matmul, matmul_naive]
MATRICES = [dma_copy, double_buffer, add_one_aliased, add_one_by_ref, tma_copy_add]


@pytest.mark.parametrize("add", VECTORS)
class TestVectors:
    def test_rank(self, add: Any) -> None:
        refuses(lambda: add(f32(2, 3), f32(6)), "x must have the shape (n,)", "(2, 3)")

    def test_length(self, add: Any) -> None:
        refuses(lambda: add(f32(3), f32(4)), "y must have the same length as x, 3", "is 4")

    def test_dtype(self, add: Any) -> None:
        refuses(lambda: add(f32(3), i32(3)), "y must have the dtype of x, float32", "int32")

    def test_empty(self, add: Any) -> None:
        refuses(lambda: add(f32(0), f32(0)), "x must not be empty", "(0,)")


@pytest.mark.parametrize("product", PRODUCTS)
class TestProducts:
    def test_rank(self, product: Any) -> None:
        refuses(lambda: product(f32(3), f32(3, 4)), "x must have the shape (m, k)", "(3,)")
        refuses(lambda: product(f32(2, 3), f32(3)), "y must have the shape (k, n)", "(3,)")

    def test_inner_size(self, product: Any) -> None:
        refuses(lambda: product(f32(2, 3), f32(4, 5)), "y must have the same k as x, 3", "is 4")

    def test_dtype(self, product: Any) -> None:
        refuses(lambda: product(i32(2, 3), i32(3, 4)), "x must have a floating dtype", "int32")
        half = f32(3, 4).astype(np.float16)
        refuses(lambda: product(f32(2, 3), half), "y must have the dtype of x", "float16")

    def test_empty(self, product: Any) -> None:
        refuses(lambda: product(f32(2, 0), f32(0, 4)), "x must not be empty", "(2, 0)")

    @pytest.mark.parametrize("size", [0, -1, 2.0, True])
    def test_block(self, product: Any, size: Any) -> None:
        refuses(
            lambda: product(f32(2, 3), f32(3, 4), block_n=size),
            f"block_n must be a positive integer, but it is {size!r}",
        )


@pytest.mark.parametrize("kernel", MATRICES)
class TestMatrices:
    def test_rank(self, kernel: Any) -> None:
        refuses(lambda: kernel(f32(128)), "x must have the shape (m, n)", "(128,)")

    def test_empty(self, kernel: Any) -> None:
        refuses(lambda: kernel(f32(0, 128)), "x must not be empty", "(0, 128)")


@pytest.mark.parametrize(
    ("kernel", "keyword"),
    [
        (dma_copy, "chunk"),
        (double_buffer, "chunk"),
        (add_one_aliased, "block_rows"),
        (tma_copy_add, "block_rows"),
        (softmax, "block_rows"),
    ],
)
def test_size_of_a_chunk(kernel: Any, keyword: str) -> None:
    refuses(
        lambda: kernel(f32(2, 128), **{keyword: 0}),
        f"{keyword} must be a positive integer, but it is 0",
    )


def test_size_of_a_block_of_vectors() -> None:
    refuses(lambda: add_blocks(f32(3), f32(3), block=0), "block must be a positive integer")


@pytest.mark.parametrize("name", ["rows", "columns", "block_rows", "block_columns"])
def test_sizes_of_iota(name: str) -> None:
    sizes = {"rows": 2, "columns": 3} | {name: 0}
    refuses(lambda: iota(**sizes), f"{name} must be a positive integer, but it is 0")


def test_what_softmax_takes() -> None:
    refuses(lambda: softmax(f32()), "x must have the shape (..., n)", "scalar")
    refuses(lambda: softmax(i32(2, 3)), "x must have a floating dtype", "int32")
    refuses(lambda: softmax(f32(2, 0)), "x must not be empty", "(2, 0)")


class TestAttention:
    def test_rank(self) -> None:
        refuses(
            lambda: flash_attention(f32(1, 2, 4), f32(3, 4), f32(3, 4)),
            "q must have the shape (q_len, d)",
            "(1, 2, 4)",
        )

    def test_sizes(self) -> None:
        refuses(
            lambda: flash_attention(f32(2, 4), f32(3, 5), f32(3, 4)),
            "k must have the same d as q, 4",
        )
        refuses(
            lambda: flash_attention(f32(2, 4), f32(3, 4), f32(2, 4)),
            "v must have the same kv_len as k, 3",
        )

    def test_dtype(self) -> None:
        refuses(
            lambda: flash_attention(i32(2, 4), i32(3, 4), i32(3, 4)),
            "q must have a floating dtype",
        )
        refuses(
            lambda: flash_attention(f32(2, 4), f32(3, 4), i32(3, 4)),
            "v must have the dtype of q",
        )

    @pytest.mark.parametrize("name", ["block_q", "block_kv"])
    def test_block(self, name: str) -> None:
        refuses(
            lambda: flash_attention(f32(2, 4), f32(3, 4), f32(3, 4), **{name: 0}),
            f"{name} must be a positive integer",
        )

    def test_heads(self) -> None:
        refuses(
            lambda: mha(f32(2, 5, 4), f32(3, 5, 4), f32(2, 5, 4)),
            "k must have the same h as q, 2",
            "is 3",
        )
        refuses(
            lambda: mha(f32(5, 4), f32(5, 4), f32(5, 4)),
            "q must have the shape (h, q_len, d)",
        )

    def test_batch(self) -> None:
        refuses(
            lambda: batched_mha(f32(2, 1, 5, 4), f32(2, 1, 5, 4), f32(3, 1, 5, 4)),
            "v must have the same b as q, 2",
            "is 3",
        )


class TestBlockDynamicSlice:
    def test_starts(self) -> None:
        wanted = "starts must be int32 of shape (2,)"
        refuses(lambda: block_dynamic_slice(f32(8, 8), i32(3), sizes=(1, 1)), wanted, "(3,)")
        refuses(lambda: block_dynamic_slice(f32(8, 8), f32(2), sizes=(1, 1)), wanted, "float32")

    def test_sizes(self) -> None:
        refuses(
            lambda: block_dynamic_slice(f32(8, 8), i32(2), sizes=(9, 1)),
            "sizes must be at most the shape of x, (8, 8)",
        )
        refuses(
            lambda: block_dynamic_slice(f32(8, 8), i32(2), sizes=(1, 1, 1)),
            "sizes must be two sizes",
        )
        refuses(
            lambda: block_dynamic_slice(f32(8, 8), i32(2), sizes=(1, 0)),
            "sizes[1] must be a positive integer",
        )

    def test_block(self) -> None:
        refuses(
            lambda: block_dynamic_slice(f32(8, 8), i32(2), sizes=(1, 1), block=(0, 8)),
            "block[0] must be a positive integer",
        )


def test_limits_of_tma_copy_add() -> None:
    refuses(lambda: tma_copy_add(f32(2, 100)), "multiple of 128", "n is 100")
    refuses(lambda: tma_copy_add(f32(2, 128), block_rows=257), "at most 256", "it is 257")


def test_messages_show_the_shape_wanted_and_given() -> None:
    with pytest.raises(ValueError, match=re.escape("(m, k), but its shape is (3,)")):
        matmul(f32(3), f32(3, 4))
