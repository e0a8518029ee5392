"""What the product for Blackwell refuses, what its defaults cost, and what its spec cannot draw."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, normal, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.mosaic_gpu import blackwell_matmul
from reference_kernels.mosaic_gpu.blackwell_matmul import reference

#: What a block can ask for on a B200.
SHARED = 227 * 1024


def bf16(*shape: int) -> Any:
    return jnp.zeros(shape, jnp.bfloat16)


class TestMisuse:
    def test_operands(self) -> None:
        refuses(
            lambda: blackwell_matmul(bf16(2), bf16(2, 3)), "x must have the shape (m, k)", "(2,)"
        )
        refuses(
            lambda: blackwell_matmul(bf16(2, 3), bf16(4, 5)),
            "y must have the same k as x, 3",
            "is 4",
        )
        refuses(
            lambda: blackwell_matmul(bf16(2, 3), bf16(3, 4).astype("float16")),
            "y must have the dtype of x, bfloat16",
        )
        refuses(lambda: blackwell_matmul(f32(2, 3), f32(3, 4)), "x must be bfloat16", "tf32")

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"block_n": 64}, "block_n must be a multiple of 128, but it is 64"),
            ({"block_n": 96, "pair": False}, "block_n must be a multiple of 64, but it is 96"),
            ({"block_n": 512}, "block_n must be at most 256, as two tiles share tensor memory"),
            ({"block_k": 32}, "block_k must be a multiple of 64, but it is 32"),
            ({"stages": 1}, "stages must be at least 2, but it is 1"),
            ({"band": 0}, "band must be a positive integer, but it is 0"),
            ({"schedule": "random"}, "schedule must be one of ('static', 'dynamic')"),
            ({"schedule": "static", "programs": 0}, "programs must be a positive integer"),
        ],
    )
    def test_settings(self, settings: dict[str, Any], message: str) -> None:
        refuses(lambda: blackwell_matmul(bf16(2, 3), bf16(3, 4), **settings), message)

    def test_eight_bits_need_wider_blocks(self) -> None:
        x, y = (bf16(*shape).astype(jnp.float8_e4m3fn) for shape in ((2, 3), (3, 4)))
        refuses(lambda: blackwell_matmul(x, y, block_n=128), "block_n must be a multiple of 256")


def test_tiles_use_both_halves_of_tensor_memory_again() -> None:
    x, y = normal(300, 70).astype(jnp.bfloat16), normal(70, 130).astype(jnp.bfloat16)
    kernel = functools.partial(  # six tiles, one after another
        blackwell_matmul, pair=False, schedule="static", programs=1, block_n=64, stages=2, band=2
    )
    with simulating("b200"):
        found = np.asarray(kernel(x, y))
    np.testing.assert_allclose(
        found.astype(np.float32), reference(x, y).astype(jnp.float32), rtol=2**-7, atol=2**-7
    )


@pytest.mark.parametrize("schedule", ["static", "dynamic"])
@pytest.mark.parametrize("pair", [True, False])
def test_the_defaults_fit_and_do_not_spill(pallas_compile: Any, pair: bool, schedule: str) -> None:
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    kernel = functools.partial(blackwell_matmul, pair=pair, schedule=schedule)
    report = pallas_compile(kernel, x, x, target="b200")
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert report.warnings == ()
    assert report.registers <= 168  # three warpgroups share 65536
    # As many stages as fit: another one would not.
    assert SHARED - (32 if pair else 48) * 1024 < report.shared_bytes <= SHARED
