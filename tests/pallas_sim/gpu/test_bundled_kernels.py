"""Kernels that JAX bundles, as they are."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from pallas_sim import simulate

pytest.importorskip("absl")  # the modules of these kernels need it

RANDOM = np.random.default_rng(0)


def halves(*shape: int) -> np.ndarray:
    return RANDOM.normal(size=shape).astype(np.float16)


def close(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.astype(np.float64), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("cluster", [None, 0])
def test_a_matmul(seed, cluster):
    from jax.experimental.pallas.ops.gpu import hopper_matmul_mgpu as bundled

    dimension = None if cluster is None else bundled.MatmulDimension(cluster)
    config = bundled.TuningConfig(
        tile_m=64, tile_n=64, tile_k=64, max_concurrent_steps=2, cluster_dimension=dimension
    )
    a, b = halves(256, 128), halves(128, 128)

    def matmul(a, b):
        more = (None,) if "c" in bundled.matmul.__code__.co_varnames[:3] else ()
        return bundled.matmul(a, b, *more, config)

    found = simulate(matmul, a, b, target="h100", seed=seed)
    close(found.values, a.astype(np.float64) @ b.astype(np.float64))
    assert found.findings == ()


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("causal", [True, False])
def test_attention(monkeypatch, seed, causal):
    from jax.experimental.pallas.ops.gpu import attention_mgpu as bundled

    # It asks which CUDA is installed, and here there may be none.
    cuda = SimpleNamespace(cuda_runtime_get_version=lambda: 13_000)
    monkeypatch.setattr(bundled, "cuda_versions", cuda, raising=False)
    config = bundled.TuningConfig(block_q=64, block_kv=64, max_concurrent_steps=2, causal=causal)
    q, k, v = (halves(1, 256, 1, 64) for _ in range(3))
    scores = np.einsum("bqhd,bkhd->bhqk", q.astype(np.float64), k.astype(np.float64))
    if causal:
        scores = np.where(np.tri(256, dtype=bool), scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    found = simulate(
        lambda q, k, v: bundled.attention(q, k, v, config), q, k, v, target="h100", seed=seed
    )
    close(found.values, np.einsum("bhqk,bkhd->bqhd", weights, v.astype(np.float64)))
    assert found.findings == ()


@pytest.mark.parametrize("seed", [0, 1])
def test_a_ragged_product(seed):
    from jax.experimental.pallas.ops.gpu import ragged_dot_mgpu as bundled

    lhs, rhs = halves(256, 64), halves(3, 64, 64)
    sizes = np.array([100, 28, 128], np.int32)
    blocks = {"block_m": 64, "block_n": 64, "block_k": 64}

    def product(lhs, rhs, sizes):
        return bundled.ragged_dot(
            lhs, rhs, group_sizes=sizes, max_concurrent_steps=2, grid_block_n=1, **blocks
        )

    found = simulate(product, lhs, rhs, sizes, target="h100", seed=seed)
    parts = np.split(lhs.astype(np.float64), np.cumsum(sizes)[:-1])
    expected = [part @ each for part, each in zip(parts, rhs.astype(np.float64), strict=True)]
    close(found.values, np.concatenate(expected))
    assert found.findings == ()
