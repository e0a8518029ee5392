"""What the product for Ampere refuses, and what it costs."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from pallas_test_support.operands import f32, refuses

from reference_kernels.mosaic_gpu import ampere_matmul


def bf16(*shape: int) -> Any:
    return jnp.zeros(shape, jnp.bfloat16)


def test_operands() -> None:
    refuses(lambda: ampere_matmul(bf16(2, 3), bf16(4, 5)), "y must have the same k as x, 3", "is 4")
    refuses(lambda: ampere_matmul(f32(2, 3), f32(3, 4)), "x must be bfloat16 or float16", "tf32")


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        ({"block_m": 16}, "block_m must be a multiple of 64, but it is 16"),
        ({"block_n": 96}, "block_n must be a multiple of 64, but it is 96"),
        ({"block_k": 16}, "block_k must be 32 or 64, but it is 16"),
        ({"stages": 1}, "stages must be at least 2, but it is 1"),
    ],
)
def test_blocks(blocks: dict[str, int], message: str) -> None:
    refuses(lambda: ampere_matmul(bf16(2, 3), bf16(3, 4), **blocks), message)


def test_the_defaults_do_not_spill(pallas_compile: Any) -> None:
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    report = pallas_compile(ampere_matmul, x, x, target="a100")
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert 2 * (report.shared_bytes + 1024) <= 164 * 1024  # two blocks share a multiprocessor
