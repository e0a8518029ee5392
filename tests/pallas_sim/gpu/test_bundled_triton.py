"""The Triton-route kernels that come with JAX, as they are, forward and backward."""

from __future__ import annotations

import functools
import importlib
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pallas_sim import simulate
from pallas_sim.errors import BoundsError


def bundled(name: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the Triton route as a whole
        return importlib.import_module(f"jax.experimental.pallas.ops.gpu.{name}")


def normal(*shape: int, seed: int = 0, dtype: Any = np.float32) -> Any:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(dtype)


def simulated(function: Any, *args: Any, seed: int = 0) -> Any:
    # Compared with float32, of which the tensor core keeps 10 bits.
    found = simulate(function, *args, target="h100", seed=seed, arithmetic="float32")
    assert not found.fallbacks
    assert found.findings == ()
    return found.values


def assert_near(found: Any, wanted: Any, atol: float = 2e-5) -> None:
    for actual, expected in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(
            np.asarray(actual, np.float32), np.asarray(expected, np.float32), atol=atol, rtol=1e-4
        )


def expected(function: Any, *args: Any) -> Any:
    """The value and the gradients of a reference, compiled at once."""
    return jax.jit(functools.partial(with_gradients, function))(*args)


def with_gradients(function: Any, *args: Any) -> Any:
    value, pullback = jax.vjp(function, *args)
    return value, pullback(jnp.cos(jnp.arange(value.size, dtype=value.dtype).reshape(value.shape)))


@pytest.mark.parametrize(
    ("shape", "seed"), [((1,), 0), ((3, 5), 1), ((2, 3, 127), 2), ((2, 257), 0)]
)
def test_softmax(shape, seed):
    x = normal(*shape) * 3
    assert_near(simulated(bundled("softmax").softmax, x, seed=seed), jax.nn.softmax(x))


@pytest.mark.parametrize(("rows", "n", "seed"), [(1, 1, 0), (3, 5, 1), (17, 127, 2), (2, 300, 0)])
@pytest.mark.parametrize("kind", ["layer_norm", "rms_norm"])
def test_norms(kind, rows, n, seed):
    module = bundled(kind)
    x, w, b = normal(2, rows, n) + 0.5, normal(n, seed=1), normal(n, seed=2)

    def reference(x, w, b):
        mean = x.mean(-1, keepdims=True) if kind == "layer_norm" else 0
        centered = x - mean
        variance = (centered * centered).mean(-1, keepdims=True)
        return centered * jax.lax.rsqrt(variance + 1e-5) * w + b

    kernel = getattr(module, kind)
    found = simulated(functools.partial(with_gradients, kernel), x, w, b, seed=seed)
    assert_near(found, expected(reference, x, w, b), atol=3e-4)


def attention(q, k, v, segments, scale, causal):
    scores = jnp.einsum("bqhc,bkhc->bhqk", q, k, precision="highest") * scale
    seen = jnp.ones(scores.shape, bool)
    if segments is not None:
        seen &= (segments[:, :, None] == segments[:, None, :])[:, None]
    if causal:
        seen &= jnp.tri(*scores.shape[2:], dtype=bool)
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e30), axis=-1)
    return jnp.einsum("bhqk,bkhc->bqhc", weights, v, precision="highest")


@pytest.mark.parametrize(
    ("length", "dim", "segmented", "causal", "seed"),
    [
        (64, 32, False, False, 0),
        (64, 24, True, True, 1),
        (96, 24, False, True, 2),
        (32, 64, True, False, 1),
        (128, 72, False, True, 0),
    ],
)
def test_attention_and_its_gradient(length, dim, segmented, causal, seed):
    module = bundled("attention")
    q, k, v = (normal(2, length, 2, dim, seed=s) * 0.5 for s in range(3))
    segments = np.repeat(np.arange(2, dtype=np.int32), length // 2)[None].repeat(2, 0)
    segments = segments if segmented else None
    sizes = module.BlockSizes(
        block_q=32, block_k=16, block_q_dkv=16, block_kv_dkv=32, block_q_dq=32, block_kv_dq=16
    )

    def kernel(q, k, v):
        return module.mha(q, k, v, segments, 0.3, causal, sizes)

    def reference(q, k, v):
        return attention(q, k, v, segments, 0.3, causal)

    found = simulated(functools.partial(with_gradients, kernel), q, k, v, seed=seed)
    assert_near(found, expected(reference, q, k, v), atol=1e-4)


def test_causal_attention_with_more_queries_than_keys_reads_beyond_the_keys():
    """A mistake of JAX's kernel: ``upper_bound`` of its loop over the keys counts queries only.

    ``attention.py``, ``mha_forward_kernel``: ``lax.div(block_q * (start_q + 1) + block_k - 1,
    block_k)`` is more than the keys have blocks.
    """
    module = bundled("attention")
    q, k, v = (normal(1, length, 1, 32, seed=length) for length in (64, 32, 32))
    sizes = module.BlockSizes(block_q=16, block_k=16)
    with pytest.raises(BoundsError, match=r"load from k_ref .* beyond its edge.*attention\.py"):
        simulate(
            lambda q, k, v: module.mha(q, k, v, None, 1.0, True, sizes), q, k, v, target="h100"
        )


@pytest.mark.parametrize(
    ("heads", "groups", "keys", "dim", "splits", "ranged", "seed"),
    [
        (1, 1, 64, 32, 2, False, 0),
        (5, 1, 128, 16, 4, True, 1),
        (17, 1, 96, 64, 3, True, 2),
        (6, 2, 128, 32, 2, True, 0),
        (40, 2, 64, 16, 2, False, 1),
    ],
)
def test_decode_attention(heads, groups, keys, dim, splits, ranged, seed):
    module = bundled("decode_attention")
    q, k, v = normal(3, heads, dim), normal(3, keys, groups, dim), normal(3, keys, groups, dim)
    first = np.array([0, 5, keys // 2], np.int32) if ranged else None
    last = np.array([keys, keys - 3, keys // 2 + 1], np.int32) if ranged else None

    def kernel(q, k, v):
        return module.gqa(q, k, v, first, last, block_h=16, block_k=32, k_splits=splits)

    wanted = module.gqa_reference(q, k, v, first, last)
    assert_near(simulated(kernel, q, k, v, seed=seed), wanted)


@pytest.mark.parametrize(
    ("heads", "groups", "page", "pages", "splits", "block", "seed"),
    [(4, 2, 16, 4, 2, 2, 0), (5, 1, 8, 6, 1, 2, 1), (20, 1, 16, 8, 4, 2, 2)],
)
def test_paged_attention(heads, groups, page, pages, splits, block, seed):
    module = bundled("paged_attention")
    total, dim, batch = 3 * pages + 2, 32, 3
    random = np.random.default_rng(seed)
    tables = random.permutation(total)[: batch * pages].reshape(batch, pages).astype(np.int32)
    lengths = np.array([1, page * pages, page * pages // 2 + 3], np.int32)
    q = normal(batch, heads, dim) * dim**-0.5
    k, v = normal(groups, total, page, dim, seed=1), normal(groups, total, page, dim, seed=2)

    def kernel(q, k, v, tables, lengths):
        return module.paged_attention(
            q, k, v, tables, lengths, pages_per_compute_block=block, k_splits=splits
        )

    def gathered(pool):
        return pool[:, tables].reshape(groups, batch, page * pages, dim).transpose(1, 2, 0, 3)

    wanted = module.paged_attention_reference(q, gathered(k), gathered(v), lengths)
    assert_near(simulated(kernel, q, k, v, tables, lengths, seed=seed), wanted)
