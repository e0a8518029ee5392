"""The kernels that come with JAX, as they are, forward and backward."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import flash_attention as flash
from jax.experimental.pallas.ops.tpu import matmul as bundled_matmul
from jax.experimental.pallas.ops.tpu import megablox
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as splash
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from pallas_sim import simulate


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def simulated(function: Any, *args: Any) -> Any:
    found = simulate(function, *args)
    assert not found.fallbacks
    return found.values


def attention(q: Any, k: Any, v: Any, seen: Any) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, precision="highest")
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v, precision="highest")


def with_gradients(function: Any, q: Any, k: Any, v: Any) -> Any:
    value, pullback = jax.vjp(function, q, k, v)
    return value, pullback(jnp.ones_like(value))


@pytest.mark.parametrize("causal", [False, True])
def test_flash_attention_with_segments(causal):
    q, k, v = (normal(1, 2, 256, 128, seed=seed) * 0.3 for seed in range(3))
    ids = np.repeat(np.arange(2, dtype=np.int32), 128)[None]
    segments = flash.SegmentIds(q=ids, kv=ids)
    seen = ids[:, None, :, None] == ids[:, None, None, :]
    if causal:
        seen = seen & np.tri(256, dtype=bool)

    def kernel(q, k, v):
        return flash.flash_attention(q, k, v, segment_ids=segments, causal=causal)

    found = simulated(functools.partial(with_gradients, kernel), q, k, v)
    wanted = with_gradients(lambda q, k, v: attention(q, k, v, seen), q, k, v)
    for actual, expected in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-4)


def test_splash_attention():
    heads, length = 2, 256
    q, k, v = (normal(heads, length, 128, seed=seed) * 0.3 for seed in range(3))
    mask = masks.MultiHeadMask([masks.CausalMask((length, length)) for _ in range(heads)])
    sizes = {
        f"block_{name}": 128
        for name in ("q", "kv", "kv_compute", "q_dkv", "kv_dkv", "kv_dkv_compute", "q_dq", "kv_dq")
    }

    def kernel(q, k, v):
        made = splash.make_splash_mha(
            mask, head_shards=1, q_seq_shards=1, block_sizes=splash.BlockSizes(**sizes)
        )
        return made(q, k, v)

    def reference(q, k, v):
        return attention(q[None], k[None], v[None], np.tri(length, dtype=bool))[0]

    found = simulated(functools.partial(with_gradients, kernel), q, k, v)
    wanted = with_gradients(reference, q, k, v)
    for actual, expected in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(actual, expected, atol=2e-4)


def test_megablox_forward_and_backward():
    x, w = normal(256, 128), normal(3, 128, 256, seed=1)
    sizes = np.array([100, 0, 156], np.int32)
    group = np.repeat(np.arange(3), sizes)

    def kernel(x, w):
        return megablox.gmm(x, w, sizes, jnp.float32, (128, 128, 128))

    def both(function):
        def run(x, w):
            value, pullback = jax.vjp(function, x, w)
            return value, pullback(jnp.ones_like(value))

        return run

    found = simulated(both(kernel), x, w)
    wanted = both(lambda x, w: jnp.einsum("mk,mkn->mn", x, w[group], precision="highest"))(x, w)
    for actual, expected in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        np.testing.assert_allclose(actual, expected, atol=1e-3)


def test_matmul():
    x, y = normal(256, 256), normal(256, 128, seed=1)
    blocks = {"block_shape": (128, 128), "block_k": 128}
    found = simulated(lambda x, y: bundled_matmul.matmul(x, y, **blocks), x, y)
    np.testing.assert_allclose(found, x @ y, atol=1e-4)
