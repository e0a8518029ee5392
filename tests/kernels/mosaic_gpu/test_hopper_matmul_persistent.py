"""What the persistent product for Hopper refuses, what it costs, and a GPU's worth of its tiles."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.mosaic_gpu import hopper_matmul_persistent


def bf16(*shape: int) -> Any:
    return jnp.zeros(shape, jnp.bfloat16)


class TestMisuse:
    def test_operands(self) -> None:
        refuses(
            lambda: hopper_matmul_persistent(bf16(2, 3), bf16(4, 5)),
            "y must have the same k as x, 3",
            "is 4",
        )
        refuses(
            lambda: hopper_matmul_persistent(f32(2, 3), f32(3, 4)),
            "x must be bfloat16 or float16, but its dtype is float32",
            "tf32",
        )

    @pytest.mark.parametrize(
        ("blocks", "message"),
        [
            ({"block_m": 64}, "block_m must be a multiple of 128, 64 rows for each warpgroup"),
            ({"block_n": 512}, "block_n must be at most 256"),
            ({"block_k": 96}, "block_k must be a multiple of 64, but it is 96"),
            ({"stages": 1}, "stages must be at least 2, but it is 1"),
            ({"cluster": 3}, "cluster must be 1, 2 or 4, but it is 3"),
            ({"width": 0}, "width must be a positive integer, but it is 0"),
            ({"clusters": -1}, "clusters must be a positive integer, but it is -1"),
        ],
    )
    def test_blocks(self, blocks: dict[str, int], message: str) -> None:
        refuses(lambda: hopper_matmul_persistent(bf16(2, 3), bf16(3, 4), **blocks), message)


@pytest.mark.parametrize("cluster", [1, 4])
def test_every_tile_is_computed_whatever_the_number_of_clusters(cluster: int) -> None:
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(-4, 5, (cluster * 256 + 8, 64)), jnp.bfloat16)
    y = jnp.asarray(rng.integers(-4, 5, (64, 192)), jnp.bfloat16)
    with simulating("h100"):
        out = hopper_matmul_persistent(
            x, y, block_n=64, stages=2, cluster=cluster, width=2, clusters=5
        )
    np.testing.assert_array_equal(
        np.asarray(out, np.float32),
        np.asarray((x.astype("f4") @ y.astype("f4")).astype("bfloat16"), np.float32),
    )


@pytest.mark.parametrize("target", ["h100"])  # an h200 runs the same code
def test_the_defaults_neither_spill_nor_serialize(pallas_compile: Any, target: str) -> None:
    x = jax.ShapeDtypeStruct((8192, 8192), jnp.bfloat16)
    report = pallas_compile(hopper_matmul_persistent, x, x, target=target)
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert report.warnings == ()  # such as that wgmma is serialized
    assert report.registers == 168  # of all three warpgroups together: 65536 / 384
