"""Splash attention: misuse, masks at the edges, and what is visited."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.attention._splash_mask import EMPTY, FIRST, LAST, PARTIAL, plan
from reference_kernels.attention.splash_attention import ArrayMask, Mask, splash_attention


def call(**changed: Any) -> Callable[[], Any]:
    """A call that is right but for what is changed."""
    args = {"q": f32(4, 5, 8), "k": f32(2, 7, 8), "v": f32(2, 7, 3)}
    return lambda: splash_attention(**(args | changed))


@pytest.fixture
def simulated() -> Iterator[None]:
    with simulating():
        yield


class TestMisuse:
    def test_ranks(self) -> None:
        refuses(call(q=f32(5, 8)), "q must have the shape (h, q_len, d)", "(5, 8)")
        refuses(call(k=f32(7, 8)), "k must have the shape (h/g, kv_len, d)", "(7, 8)")
        refuses(call(q=f32(4, 0, 8)), "q must not be empty", "(4, 0, 8)")

    def test_sizes(self) -> None:
        refuses(call(k=f32(2, 7, 4)), "k must have the same d as q, 8", "is 4")
        refuses(call(v=f32(2, 6, 3)), "v must have the same kv_len as k, 7", "is 6")
        refuses(call(v=f32(1, 7, 3)), "v must have the same number of heads as k, 2", "is 1")
        refuses(call(q=f32(3, 5, 8)), "q must have a multiple of the 2 heads of k", "has 3")

    def test_dtypes(self) -> None:
        refuses(call(q=i32(4, 5, 8)), "q must have a floating dtype", "int32")
        refuses(call(v=f32(2, 7, 3).astype(np.float16)), "v must have the dtype of q", "float16")

    @pytest.mark.parametrize("name", ["block_q", "block_kv"])
    def test_blocks(self, name: str) -> None:
        refuses(call(**{name: 0}), f"{name} must be a positive integer, but it is 0")

    @pytest.mark.parametrize("soft_cap", [0, -1.0, float("nan")])
    def test_soft_cap(self, soft_cap: float) -> None:
        refuses(call(soft_cap=soft_cap), "soft_cap must be None or above zero", repr(soft_cap))

    def test_segments(self) -> None:
        refuses(call(q_segments=i32(5)), "kv_segments must be given too")
        refuses(call(kv_segments=i32(7)), "q_segments must be given too")
        both = {"q_segments": i32(5), "kv_segments": i32(6)}
        refuses(call(**both), "kv_segments must be int32 of shape (7,)", "(6,)")
        both = {"q_segments": f32(5), "kv_segments": i32(7)}
        refuses(call(**both), "q_segments must be int32 of shape (5,)", "float32")

    def test_masks(self) -> None:
        refuses(call(mask=np.ones((5, 7), bool)), "mask must be a Mask or an ArrayMask", "ndarray")
        other = ArrayMask(np.ones((7, 5), bool))
        refuses(call(mask=other), "mask must have the shape (q_len, kv_len), (5, 7)", "(7, 5)")
        refuses(lambda: ArrayMask(f32(5, 7)), "seen of an ArrayMask must be a bool array", "float")
        refuses(lambda: Mask(left=-1), "left of a Mask", "not below 0", "-1")
        refuses(lambda: Mask(right=1.5), "right of a Mask", "1.5")  # pyright: ignore[reportArgumentType]
        refuses(lambda: Mask(chunk=0), "chunk of a Mask", "not below 1")


class TestVisits:
    def test_hidden_blocks_are_not_visited(self) -> None:
        visits = plan(Mask(right=0), (64, 64), (16, 16))
        pairs = list(zip(visits.row.tolist(), visits.column.tolist(), strict=True))
        assert pairs == [(i, j) for i in range(4) for j in range(i + 1)]
        assert (visits.flags & PARTIAL != 0).tolist() == [i == j for i, j in pairs]

    def test_a_window_costs_as_much_for_any_length(self) -> None:
        counts = [plan(Mask(31, 0), (n, n), (16, 16)).steps for n in (256, 272)]
        assert counts[1] - counts[0] == 3

    def test_a_row_that_sees_nothing_is_visited_once(self) -> None:
        visits = plan(Mask(right=0, offset=-16), (48, 48), (16, 16))
        assert visits.flags[0] == EMPTY | FIRST | LAST
        assert visits.row.tolist() == [0, 1, 2, 2]

    def test_equal_blocks_of_an_array_are_kept_once(self) -> None:
        causal = ArrayMask(np.tri(128, dtype=bool))
        blocks = plan(causal, (128, 128), (16, 16)).blocks
        assert blocks is not None
        assert blocks.shape == (1, 16, 16)

    @pytest.mark.parametrize("by_keys", [False, True])
    def test_a_rule_and_its_array_are_visited_alike(self, by_keys: bool) -> None:
        for mask in (
            Mask(),
            Mask(right=0),
            Mask(9, 3),
            Mask(right=0, chunk=24),
            Mask(0, 0, None, 70),
        ):
            lengths = (50, 90)
            array = ArrayMask(mask.array(*lengths))
            rule, other = (plan(m, lengths, (16, 32), by_keys=by_keys) for m in (mask, array))
            assert rule.row.tolist() == other.row.tolist()
            assert rule.column.tolist() == other.column.tolist()
            assert (rule.flags & 15).tolist() == (other.flags & 15).tolist()


def test_a_chunk_that_is_no_power_of_two(simulated: None) -> None:
    q = k = jnp.zeros((1, 7, 2))
    v = jnp.arange(1.0, 8.0)[None, :, None]
    out = splash_attention(q, k, v, mask=Mask(right=0, chunk=3))
    np.testing.assert_allclose(out[0, :, 0], [1, 1.5, 2, 4, 4.5, 5, 7], rtol=1e-6)


def test_the_cap_comes_before_the_mask(simulated: None) -> None:
    # A cap after the mask would turn the score of a hidden key into a finite one.
    q, k = jnp.full((1, 2, 1), 100.0), jnp.full((1, 2, 1), -100.0)
    v = jnp.array([[[1.0], [2.0]]])
    out = splash_attention(q, k, v, mask=Mask(right=0), soft_cap=1.0)
    np.testing.assert_allclose(out[0, :, 0], [1.0, 1.5], rtol=1e-6)


def test_queries_that_see_nothing_give_zero_and_no_gradient(simulated: None) -> None:
    seen = np.ones((40, 40), bool)
    seen[:17] = False  # a whole block of queries, and one more
    rng = np.random.default_rng(0)
    q, k, v = (jnp.asarray(rng.normal(size=(1, 40, 8)), jnp.float32) for _ in range(3))

    def total(q: Any) -> Any:
        settings = {"mask": ArrayMask(seen), "block_q": 16, "block_kv": 16}
        out = splash_attention(q, k, v, **settings)
        return jnp.sum(out**2), out

    gradient, out = jax.grad(total, has_aux=True)(q)
    assert not np.any(out[:, :17])
    assert not np.any(gradient[:, :17])
    assert np.all(np.any(np.asarray(gradient[:, 17:]), axis=-1))


def test_an_array_mask_is_a_static_argument() -> None:
    ones = np.ones((2, 3), bool)
    assert ArrayMask(ones) == ArrayMask(ones.copy())
    assert hash(ArrayMask(ones)) == hash(ArrayMask(ones.copy()))
    assert ArrayMask(ones) != ArrayMask(np.zeros((2, 3), bool))
    changed = ArrayMask(ones)
    ones[0, 0] = False
    assert changed.array(2, 3).all()
