"""Ragged paged attention and the update of its pages: misuse, and what the specs cannot draw."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.attention import ragged_paged_attention, update_kv_pages
from reference_kernels.attention.ragged_paged_attention import reference

LISTS = {
    "kv_lens": i32(3),
    "page_indices": i32(3, 2),
    "cu_q_lens": i32(4),
    "num_seqs": i32(1),
}


def attend(**changed: Any) -> Callable[[], Any]:
    """A call that is right but for what is changed."""
    args = {"q": f32(7, 4, 16), "kv_pages": f32(5, 8, 4, 16), **LISTS}
    return lambda: ragged_paged_attention(**(args | changed))


def update(**changed: Any) -> Callable[[], Any]:
    """A call that is right but for what is changed."""
    args = {"kv_pages": f32(5, 8, 4, 16), "k": f32(7, 2, 16), "v": f32(7, 2, 16), **LISTS}
    return lambda: update_kv_pages(**(args | changed))


class TestMisuse:
    def test_ranks(self) -> None:
        refuses(attend(q=f32(4, 16)), "q must have the shape (tokens, num_q_heads, d)", "(4, 16)")
        wanted = "kv_pages must have the shape (num_pages, page_size, 2*num_kv_heads, d)"
        refuses(attend(kv_pages=f32(5, 8, 16)), wanted, "(5, 8, 16)")
        refuses(update(kv_pages=f32(5, 8, 16)), wanted, "(5, 8, 16)")
        refuses(update(k=f32(7, 16)), "k must have the shape (tokens, num_kv_heads, d)")

    def test_sizes(self) -> None:
        refuses(attend(q=f32(7, 4, 8)), "kv_pages must have the same d as q, 8", "is 16")
        refuses(attend(kv_pages=f32(5, 8, 3, 16)), "a key and a value for each head", "is 3")
        refuses(
            attend(q=f32(7, 5, 16)), "q must have a multiple of the num_kv_heads of kv_pages, 2"
        )
        refuses(attend(q=f32(0, 4, 16)), "q must not be empty")
        refuses(update(k=f32(7, 3, 16)), "k, twice, must have the same 2*num_kv_heads", "is 6")
        refuses(update(v=f32(6, 2, 16)), "v must have the shape of k, (7, 2, 16)", "(6, 2, 16)")

    @pytest.mark.parametrize("call", [attend, update])
    @pytest.mark.parametrize("name", sorted(LISTS))
    def test_lists(self, call: Any, name: str) -> None:
        shape = LISTS[name].shape
        refuses(call(**{name: f32(*shape)}), f"{name} must be int32 of shape {shape}", "float32")
        if name != "page_indices":
            refuses(call(**{name: i32(9)}), f"{name} must be int32 of shape {shape}", "(9,)")

    def test_dtypes(self) -> None:
        refuses(attend(q=i32(7, 4, 16)), "q must have a floating dtype", "int32")
        half = f32(5, 8, 4, 16).astype(np.float16)
        refuses(attend(kv_pages=half), "kv_pages must have the dtype of q, float32", "float16")
        refuses(update(kv_pages=half), "k must have the dtype of kv_pages, float16", "float32")

    def test_settings(self) -> None:
        refuses(attend(block_q=0), "block_q must be a positive integer")
        refuses(attend(pages_per_block=0), "pages_per_block must be a positive integer")
        refuses(attend(sliding_window=0), "sliding_window must be a positive integer")
        refuses(attend(soft_cap=-1.0), "soft_cap must be positive or None, but it is -1.0")


class TestPromises:
    @pytest.fixture(autouse=True)
    def simulated(self) -> Iterator[None]:
        with simulating():
            yield

    def drawn(self, tokens: int) -> tuple[Any, Any]:
        rng = np.random.default_rng(0)
        q = rng.normal(size=(tokens, 4, 16)).astype(np.float32)
        return q, rng.normal(size=(6, 8, 4, 16)).astype(np.float32)

    def test_what_a_sequence_does_not_have_may_be_anything(self) -> None:
        q, kv = self.drawn(20)
        lens = np.array([9, 8, -7], np.int32)
        table = np.array([[3, 0, -1], [5, 2**30, -9], [99, 99, 99]], np.int32)
        starts = np.array([0, 3, 11, -40], np.int32)
        two = np.array([2], np.int32)
        out = ragged_paged_attention(q, kv, lens, table, starts, two, pages_per_block=2)
        legal = np.where((table >= 0) & (table < 6), table, 0)
        wanted = reference(q, kv, lens, legal, starts, two)
        np.testing.assert_allclose(out, wanted, atol=1e-5)
        assert not np.any(np.asarray(out)[11:])

    def test_queries_before_the_keys_begin_see_nothing(self) -> None:
        q, kv = self.drawn(5)
        lists = (np.array([[1, 2]], np.int32), np.array([0, 5], np.int32), np.array([1], np.int32))
        out = np.asarray(ragged_paged_attention(q, kv, np.array([3], np.int32), *lists))
        assert not np.any(out[:2])
        np.testing.assert_allclose(out[2], np.repeat(kv[1, 0, 1::2], 2, axis=0), rtol=1e-6)

    def test_a_window_of_one_key_is_the_value_of_the_query_itself(self) -> None:
        q, kv = self.drawn(4)
        lists = (np.array([[1, 2]], np.int32), np.array([0, 4], np.int32), np.array([1], np.int32))
        lens = np.array([10], np.int32)
        out = ragged_paged_attention(q, kv, lens, *lists, sliding_window=1, pages_per_block=1)
        values = np.concatenate([kv[1], kv[2]])[6:10, 1::2]
        np.testing.assert_allclose(out, np.repeat(values, 2, axis=1), rtol=1e-6)

    def test_attention_sees_what_the_update_wrote(self) -> None:
        q, kv = self.drawn(6)
        k, v = (np.random.default_rng(seed).normal(size=(6, 2, 16)) for seed in (1, 2))
        k, v = k.astype(np.float32), v.astype(np.float32)
        lists = (
            np.array([9, 5], np.int32),
            np.array([[3, 0], [5, 1]], np.int32),
            np.array([0, 4, 6], np.int32),
            np.array([2], np.int32),
        )
        new = np.asarray(update_kv_pages(kv, k, v, *lists))
        # The last four of nine: rows 5 to 7 of page 3 and row 0 of page 0.
        np.testing.assert_array_equal(new[3, 5:, 0::2], k[:3])
        np.testing.assert_array_equal(new[0, 0, 1::2], v[3])
        np.testing.assert_array_equal(new[5, 3:5, 1::2], v[4:])
        changed = np.any(new != kv, axis=(2, 3))
        assert changed.sum() == 6
        out = ragged_paged_attention(q, new, *lists)
        np.testing.assert_allclose(out, reference(q, new, *lists), atol=1e-5)

    def test_tokens_without_a_place_are_not_written(self) -> None:
        _, kv = self.drawn(1)
        ones = np.ones((4, 2, 16), np.float32)
        table, starts = np.array([[1]], np.int32), np.array([0, 4], np.int32)
        for length, written in ((2, [0, 1]), (10, [6, 7])):
            lens, one = np.array([length], np.int32), np.array([1], np.int32)
            new = np.asarray(update_kv_pages(kv, ones, ones, lens, table, starts, one))
            rows = np.argwhere(np.all(new == 1, axis=(2, 3)))
            assert rows.tolist() == [[1, row] for row in written]
