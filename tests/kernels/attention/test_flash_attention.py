"""Flash attention: misuses, and promises that its specs cannot draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32
from pallas_test_support.simulating import simulating

from reference_kernels.attention import batched_mha, flash_attention
from reference_kernels.attention._flash_blocks import Blocks
from reference_kernels.attention._operands import reference


@pytest.fixture
def simulated() -> Iterator[None]:
    """Simulate the kernels: what lies beyond an end is NaN."""
    with simulating():
        yield


def normal(*shape: int, seed: int = 0) -> jax.Array:
    return jnp.asarray(np.random.default_rng((seed, *shape)).normal(size=shape), jnp.float32)


def refuses_ids(segment_ids: Any, *words: str) -> None:
    with pytest.raises(ValueError) as caught:
        flash_attention(f32(2, 4), f32(3, 4), f32(3, 4), segment_ids=segment_ids)
    for word in words:
        assert word in str(caught.value)


def test_segment_ids_are_a_pair() -> None:
    refuses_ids(i32(3), "segment_ids must be a tuple of two arrays")
    refuses_ids((i32(2),), "segment_ids must be a tuple of two arrays")


def test_segment_ids_have_a_rank_a_length_and_a_dtype() -> None:
    refuses_ids((i32(1, 2), i32(3)), "segment_ids[0] must have the shape (q_len,)", "(1, 2)")
    refuses_ids((i32(3), i32(3)), "segment_ids[0] must have the same q_len as q, 2", "is 3")
    refuses_ids((i32(2), i32(2)), "segment_ids[1] must have the same kv_len as k, 3", "is 2")
    refuses_ids((i32(2), f32(3)), "segment_ids[1] must be int32", "float32")


def test_segment_ids_of_batches() -> None:
    x = f32(2, 1, 3, 4)
    with pytest.raises(ValueError, match=r"segment_ids\[1\] must have the same b as k, 2"):
        batched_mha(x, x, x, segment_ids=(i32(2, 3), i32(1, 3)))


@pytest.mark.usefixtures("simulated")
def test_a_query_without_keys_has_output_zero_and_leaves_no_trace_in_the_gradients() -> None:
    q, k, v = normal(3, 8), normal(4, 8), normal(4, 8, seed=1)
    ids = (jnp.array([1, 9, 2], jnp.int32), jnp.array([1, 2, 2, 5], jnp.int32))

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(flash_attention(q, k, v, segment_ids=ids)))

    out = flash_attention(q, k, v, segment_ids=ids)
    np.testing.assert_array_equal(out[1], np.zeros(8))
    np.testing.assert_allclose(out[0], v[0], rtol=1e-6)
    dq, dk, dv = jax.grad(total, argnums=(0, 1, 2))(q, k, v)
    np.testing.assert_array_equal(dq[1], np.zeros(8))
    # Key 3 is seen by nobody.
    np.testing.assert_array_equal(dk[3], np.zeros(8))
    np.testing.assert_array_equal(dv[3], np.zeros(8))
    assert np.isfinite(np.concatenate([dq, dk, dv])).all()


@pytest.mark.usefixtures("simulated")
def test_nothing_visible_at_all() -> None:
    x = normal(3, 8)
    ids = (jnp.zeros(3, jnp.int32), jnp.ones(3, jnp.int32))
    out, pull = jax.vjp(lambda *args: flash_attention(*args, segment_ids=ids), x, x, x)
    for each in (out, *pull(jnp.ones_like(out))):
        np.testing.assert_array_equal(each, np.zeros((3, 8)))


@pytest.mark.usefixtures("simulated")
@pytest.mark.parametrize("scale", [0.0, -0.3])
def test_scales_that_are_not_positive(scale: float) -> None:
    q, k, v = normal(5, 8), normal(7, 8), normal(7, 8, seed=1)
    out = flash_attention(q, k, v, scale=scale)
    np.testing.assert_allclose(out, reference(q, k, v, scale=scale), atol=1e-6)


@pytest.mark.usefixtures("simulated")
def test_scores_far_from_zero_do_not_overflow() -> None:
    q, k = jnp.full((2, 8), 300.0), jnp.concatenate([jnp.full((1, 8), 300.0), jnp.zeros((1, 8))])
    v = jnp.array([[1.0], [2.0]])
    np.testing.assert_array_equal(flash_attention(q, k, v), [[1.0], [1.0]])
    np.testing.assert_array_equal(flash_attention(-q, k, v), [[2.0], [2.0]])


@pytest.mark.parametrize("sizes", [(5, 5, 2, 2), (7, 3, 2, 3), (3, 8, 2, 3), (4, 9, 3, 2)])
def test_blocks_know_what_is_visible_in_them(sizes: tuple[int, int, int, int]) -> None:
    blocks = Blocks(*sizes, causal=True)
    q_len, kv_len, block_q, block_kv = sizes
    padded = blocks.grid[0] * block_q, blocks.grid[1] * block_kv
    visible = np.tri(*padded, kv_len - q_len, dtype=bool)
    forward, backward = visible.copy(), visible.copy()
    forward[:, kv_len:] = False  # there, keys are the columns
    backward[q_len:] = False  # and there, queries are
    for i in range(blocks.grid[0]):
        for j in range(blocks.grid[1]):
            part = slice(i * block_q, (i + 1) * block_q), slice(j * block_kv, (j + 1) * block_kv)
            assert bool(blocks.whole(i, j)) == forward[part].all()
            assert bool(blocks.whole(i, j, keys=0)) == backward[part].all()
            # What is skipped is invisible; what is kept names its own block.
            if not blocks.seen(i, j):
                assert not (forward[part] & backward[part]).any()
            elif j * block_kv < kv_len:
                assert blocks.last_kv(i, j) == j
                assert blocks.first_q(i, j) == i


@pytest.mark.slow  # the compiler works on it for 12 s
def test_the_default_blocks_of_the_largest_heads_fit_in_vmem(pallas_compile: Any) -> None:
    x = jax.ShapeDtypeStruct((1024, 256), jnp.float32)

    def forward_and_keys(q: jax.Array, k: jax.Array, v: jax.Array) -> Any:
        out, pull = jax.vjp(lambda *args: flash_attention(*args, causal=True), q, k, v)
        # The kernel of q's gradient has an accumulator less than that of k's and v's, and the
        # compiler would work on it for 8 s.
        return pull(out)[1:]

    assert pallas_compile(forward_and_keys, x, x, x, target="v5e").vmem_bytes < 16 * 2**20
