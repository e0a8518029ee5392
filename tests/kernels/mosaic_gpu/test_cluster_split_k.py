"""Products whose sums are split in a cluster: what they refuse, what they cost, and their order."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from pallas_test_support.operands import f32, refuses

from pallas_sim import simulate
from reference_kernels import _gpu
from reference_kernels.mosaic_gpu import cluster_split_k

NEW = pytest.mark.skipif(not _gpu.has("barrier_arrive_and_wait"), reason="came with JAX 0.12")


def bf16(*shape: int) -> Any:
    return jnp.zeros(shape, jnp.bfloat16)


@NEW
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cluster": 3}, "cluster must be 1, 2, 4 or 8, but it is 3"),
        ({"by": "mail"}, "by must be one of ('push', 'pull'), but it is 'mail'"),
        ({"cluster": 8}, "block_n must be a multiple of 256, 32 columns for each block"),
        ({"block_m": 32}, "block_m must be a multiple of 64"),
        ({"stages": 1}, "stages must be at least 2"),
    ],
)
def test_settings(settings: dict[str, Any], message: str) -> None:
    refuses(lambda: cluster_split_k(bf16(2, 3), bf16(3, 4), **settings), message)


@NEW
def test_operands() -> None:
    refuses(lambda: cluster_split_k(bf16(2, 3), bf16(4, 5)), "y must have the same k as x, 3")
    refuses(lambda: cluster_split_k(f32(2, 3), f32(3, 4)), "x must be bfloat16 or float16", "tf32")


def test_it_needs_a_new_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(plgpu, "barrier_arrive_and_wait", raising=False)
    with pytest.raises(NotImplementedError, match=r"needs plgpu.barrier_arrive_and_wait"):
        cluster_split_k(bf16(2, 3), bf16(3, 4))


@NEW
def test_parts_are_added_in_the_same_order_in_every_run() -> None:
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.normal(size=size), jnp.float16) for size in ((64, 512), (512, 128)))
    multiply = functools.partial(cluster_split_k, cluster=4, by="pull")
    runs = [simulate(multiply, x, y, target="h100", seed=seed) for seed in range(3)]
    for run in runs:
        np.testing.assert_array_equal(run.values, runs[0].values)
        assert run.findings == ()


@NEW
@pytest.mark.parametrize("by", ["push", "pull"])
def test_a_large_cluster_neither_spills_nor_serializes(pallas_compile: Any, by: str) -> None:
    x, y = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((64, 8192), (8192, 2048)))
    multiply = functools.partial(cluster_split_k, cluster=8, block_n=256, by=by)
    report = pallas_compile(multiply, x, y, target="h100")
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert report.warnings == ()
