"""Products with an operand in tensor memory: what they refuse, and what they cost."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, refuses

from reference_kernels.mosaic_gpu import blackwell_mixed_matmul


def bf16(*shape: int) -> Any:
    return jnp.zeros(shape, jnp.bfloat16)


def i8(*shape: int) -> Any:
    return np.zeros(shape, np.int8)


def test_operands() -> None:
    multiply = blackwell_mixed_matmul
    refuses(lambda: multiply(bf16(2, 3), bf16(4, 5)), "y must have the same k as x, 3")
    refuses(lambda: multiply(i8(2, 3), bf16(3, 4)), "x must be bfloat16 without scales", "int8")
    refuses(
        lambda: multiply(bf16(2, 3), bf16(3, 4), f32(2)), "x must be int8 with scales", "bfloat16"
    )
    refuses(lambda: multiply(i8(2, 3), f32(3, 4), f32(2)), "y must be bfloat16", "float32")
    refuses(lambda: multiply(i8(2, 3), bf16(3, 4), f32(3)), "scales must have the same m as x, 2")
    refuses(lambda: multiply(i8(2, 3), bf16(3, 4), i8(2)), "scales must be float32", "int8")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"block_n": 96}, "block_n must be a multiple of 64"),
        ({"block_k": 192}, "block_k must be at most 128, but it is 192"),
        ({"stages": 1}, "stages must be at least 2"),
    ],
)
def test_settings(settings: dict[str, int], message: str) -> None:
    refuses(lambda: blackwell_mixed_matmul(bf16(2, 3), bf16(3, 4), **settings), message)


def test_the_defaults_do_not_spill(pallas_compile: Any) -> None:
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.int8)
    y = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    scales = jax.ShapeDtypeStruct((4096,), jnp.float32)
    report = pallas_compile(blackwell_mixed_matmul, x, y, scales, target="b200")
    assert report.spill_store_bytes == report.spill_load_bytes == 0
