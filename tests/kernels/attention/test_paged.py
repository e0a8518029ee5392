"""Paged decoding: misuse, and what its spec cannot draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.attention import paged_attention
from reference_kernels.attention.paged_attention import reference


def int8(*shape: int) -> Any:
    return np.zeros(shape, np.int8)


def call(**changed: Any) -> Callable[[], Any]:
    """A call that is right but for what is changed."""
    names = ("q", "k_pages", "v_pages", "lengths", "page_indices")
    pages = f32(2, 5, 8, 16)
    args = dict(zip(names, (f32(3, 4, 16), pages, pages, i32(3), i32(3, 2)), strict=True))
    return lambda: paged_attention(**(args | changed))


class TestMisuse:
    def test_ranks(self) -> None:
        refuses(call(q=f32(4, 16)), "q must have the shape (batch, num_q_heads, d)", "(4, 16)")
        wanted = "k_pages must have the shape (num_kv_heads, num_pages, page_size, d)"
        refuses(call(k_pages=f32(5, 8, 16)), wanted, "(5, 8, 16)")
        refuses(call(page_indices=i32(3)), "page_indices must have the shape")

    def test_sizes(self) -> None:
        refuses(
            call(v_pages=f32(2, 6, 8, 16)), "v_pages must have the same num_pages as k_pages, 5"
        )
        refuses(call(q=f32(3, 4, 8)), "k_pages must have the same d as q, 8", "is 16")
        refuses(call(q=f32(3, 5, 16)), "q must have a multiple of the num_kv_heads of k_pages, 2")
        refuses(call(lengths=i32(2)), "lengths must be int32 of shape (3,)", "(2,)")
        refuses(call(page_indices=i32(2, 2)), "page_indices must be int32 of shape (3, 2)")
        refuses(call(q=f32(0, 4, 16)), "q must not be empty")

    def test_dtypes(self) -> None:
        refuses(call(q=i32(3, 4, 16)), "q must have a floating dtype", "int32")
        refuses(call(k_pages=int8(2, 5, 8, 16)), "k_pages must have the dtype of q", "int8")
        refuses(call(lengths=f32(3)), "lengths must be int32", "float32")

    def test_scales(self) -> None:
        scales = f32(5, 2, 8)
        refuses(call(k_scales=scales), "k_scales and v_scales must be given both or not at all")
        both = {"k_scales": scales, "v_scales": scales}
        refuses(call(**both), "k_pages must be int8", "float32")
        pages = {"k_pages": int8(2, 5, 8, 16), "v_pages": int8(2, 5, 8, 16)}
        wrong = call(**pages, k_scales=f32(2, 5, 8), v_scales=scales)
        refuses(wrong, "k_scales must be float32 of shape (5, 2, 8)", "(2, 5, 8)")

    def test_settings(self) -> None:
        refuses(call(pages_per_block=0), "pages_per_block must be a positive integer")
        refuses(call(heads_per_block=-1), "heads_per_block must be a positive integer")
        refuses(call(heads_per_block=3), "heads_per_block must divide num_kv_heads, 2", "is 3")
        refuses(call(soft_cap=0.0), "soft_cap must be positive or None, but it is 0.0")


class TestPromises:
    @pytest.fixture(autouse=True)
    def simulated(self) -> Iterator[None]:
        with simulating():
            yield

    def drawn(self, lengths: list[int], table: Any) -> tuple[Any, ...]:
        rng = np.random.default_rng(0)
        q = rng.normal(size=(len(lengths), 4, 16)).astype(np.float32)
        k, v = (rng.normal(size=(2, 5, 8, 16)).astype(np.float32) for _ in range(2))
        return q, k, v, np.array(lengths, np.int32), np.array(table, np.int32)

    def test_entries_that_no_key_needs_may_be_anything(self) -> None:
        q, k, v, lengths, table = self.drawn([8, 0, 9], [[4, -1, 2**30], [-5, 99, 7], [2, 0, -1]])
        out = paged_attention(q, k, v, lengths, table, pages_per_block=2)
        legal = np.where((table >= 0) & (table < 5), table, 0)
        np.testing.assert_allclose(out, reference(q, k, v, lengths, legal), atol=1e-5)
        assert not np.any(np.asarray(out)[1])

    def test_batches_of_nothing_but_empty_sequences_are_zero(self) -> None:
        args = self.drawn([0, 0], [[-1, -1], [-1, -1]])
        np.testing.assert_array_equal(paged_attention(*args), np.zeros((2, 4, 16)))

    def test_lengths_beyond_the_pages_count_as_their_end(self) -> None:
        q, k, v, lengths, table = self.drawn([100, -3], [[4, 1], [2, 0]])
        out = paged_attention(q, k, v, lengths, table)
        np.testing.assert_array_equal(
            out, paged_attention(q, k, v, np.array([16, 0], np.int32), table)
        )

    def test_scales_are_those_of_the_key(self) -> None:
        # One key a sequence, so that the output is its value times its scale.
        q, k, v, lengths, table = self.drawn([1], [[3]])
        whole = np.arange(2 * 5 * 8 * 16).reshape(2, 5, 8, 16).astype(np.int8)
        scales = np.arange(5 * 2 * 8, dtype=np.float32).reshape(5, 2, 8)
        out = paged_attention(q, whole, whole, lengths, table, scales, scales)
        wanted = whole[:, 3, 0] * scales[3, :, 0][:, None]
        np.testing.assert_allclose(out, jnp.repeat(wanted, 2, axis=0)[None], rtol=1e-6)
        del k, v
