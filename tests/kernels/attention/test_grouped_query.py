"""Grouped-query attention: misuses, and promises that its specs cannot draw."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.attention import (
    grouped_query_attention,
    grouped_query_attention_by_vmap,
    mqa,
)
from reference_kernels.attention.grouped_query import reference

WAYS = [grouped_query_attention, grouped_query_attention_by_vmap]


@pytest.mark.parametrize("attention", WAYS)
class TestMisuse:
    def test_rank(self, attention: Any) -> None:
        refuses(
            lambda: attention(f32(4, 2, 8), f32(1, 1, 2, 8), f32(1, 1, 2, 8)),
            "q must have the shape (b, h, q_len, d)",
            "(4, 2, 8)",
        )

    def test_heads(self, attention: Any) -> None:
        refuses(
            lambda: attention(f32(1, 4, 2, 8), f32(1, 3, 2, 8), f32(1, 3, 2, 8)),
            "k must have a number of heads g that divides the h of q, 4",
            "its g is 3",
        )
        refuses(
            lambda: attention(f32(1, 4, 2, 8), f32(1, 2, 2, 8), f32(1, 1, 2, 8)),
            "v must have the same g as k, 2",
            "is 1",
        )

    def test_batch(self, attention: Any) -> None:
        refuses(
            lambda: attention(f32(2, 4, 2, 8), f32(1, 2, 2, 8), f32(1, 2, 2, 8)),
            "k must have the same b as q, 2",
        )

    def test_segment_ids(self, attention: Any) -> None:
        x, ids = f32(2, 4, 3, 8), np.zeros((1, 3), np.int32)
        refuses(
            lambda: attention(x, x, x, segment_ids=(ids, ids)),
            "segment_ids[0] must have the same b as q, 2",
        )

    def test_block(self, attention: Any) -> None:
        x = f32(1, 2, 3, 8)
        refuses(lambda: attention(x, x, x, block_kv=0), "block_kv must be a positive integer")


def test_mqa_has_one_head_of_keys() -> None:
    refuses(lambda: mqa(f32(4, 2, 8), f32(1, 2, 8), f32(2, 8)), "k must have the shape (kv_len, d)")


@pytest.mark.parametrize("attention", WAYS)
def test_segment_ids_belong_to_a_batch_and_not_to_a_head(attention: Any) -> None:
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(2, heads, 5, 8)), jnp.float32) for heads in (4, 2, 2))
    ids = jnp.array([[0, 0, 0, 1, 1], [0, 1, 1, 1, 2]], jnp.int32)
    wanted, wanted_pull = jax.vjp(lambda *args: reference(*args, segment_ids=(ids, ids)), q, k, v)
    with simulating():
        out, pull = jax.vjp(lambda *args: attention(*args, segment_ids=(ids, ids)), q, k, v)
        gradients = pull(out)
    np.testing.assert_allclose(out, wanted, atol=1e-5)
    for got, want in zip(gradients, wanted_pull(wanted), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5)
