"""Products by emitted pipelines: what they refuse, what they cost, and chains of tiles."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, refuses

from pallas_sim import simulate
from reference_kernels.mosaic_gpu import hopper_matmul_pipelined


def bf16(*shape: int) -> Any:
    return jnp.zeros(shape, jnp.bfloat16)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"overlap": True}, "overlap must be False with specialize"),
        ({"block_m": 64}, "block_m must be a multiple of 128, 64 rows for each warpgroup"),
        ({"block_n": 320}, "block_n must be at most 256"),
        ({"programs": 0}, "programs must be a positive integer"),
        ({"stages": 1, "specialize": False}, "stages must be at least 2"),
    ],
)
def test_settings(settings: dict[str, Any], message: str) -> None:
    refuses(lambda: hopper_matmul_pipelined(bf16(2, 3), bf16(3, 4), **settings), message)


def test_operands() -> None:
    multiply = hopper_matmul_pipelined
    refuses(lambda: multiply(bf16(2, 3), bf16(4, 5)), "y must have the same k as x, 3")
    refuses(lambda: multiply(f32(2, 3), f32(3, 4)), "x must be bfloat16 or float16", "tf32")


@pytest.mark.parametrize("programs", [1, 2, 5])
def test_chained_pipelines_compute_every_tile(programs: int) -> None:
    """One, three and six tiles for a program: the chain starts, goes on, and ends."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(-4, 5, (300, 200)), jnp.bfloat16)
    y = jnp.asarray(rng.integers(-4, 5, (200, 128)), jnp.bfloat16)
    multiply = functools.partial(hopper_matmul_pipelined, block_n=64, stages=2, programs=programs)
    want = (x.astype("f4") @ y.astype("f4")).astype("bfloat16").astype("f4")
    for seed in range(3):
        found = simulate(multiply, x, y, target="h100", seed=seed)
        np.testing.assert_array_equal(np.asarray(found.values, np.float32), want)
        assert found.findings == ()


@pytest.mark.parametrize("specialize", [False, True])
def test_the_defaults_neither_spill_nor_serialize(pallas_compile: Any, specialize: bool) -> None:
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    multiply = functools.partial(hopper_matmul_pipelined, specialize=specialize)
    report = pallas_compile(multiply, x, x, target="h200")
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert report.warnings == ()  # such as that wgmma is serialized
