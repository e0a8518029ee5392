"""What the split product for Hopper refuses, and what it costs."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from pallas_test_support.operands import f32, refuses

from reference_kernels.mosaic_gpu import split_k_matmul


def bf16(*shape: int) -> Any:
    return jnp.zeros(shape, jnp.bfloat16)


def test_misuse() -> None:
    x, y = bf16(2, 3), bf16(3, 4)
    refuses(lambda: split_k_matmul(x, bf16(4, 5)), "y must have the same k as x, 3", "is 4")
    refuses(lambda: split_k_matmul(f32(2, 3), f32(3, 4)), "x must be bfloat16 or float16", "tf32")
    refuses(lambda: split_k_matmul(x, y, splits=0), "splits must be a positive integer", "is 0")
    refuses(lambda: split_k_matmul(x, y, block_m=64), "block_m must be a multiple of 128")
    refuses(lambda: split_k_matmul(x, y, cluster=3), "cluster must be 1, 2 or 4, but it is 3")
    by: Any = "copy"
    refuses(lambda: split_k_matmul(x, y, by=by), "by must be one of", "but it is 'copy'")


@pytest.mark.parametrize("by", ["sum", "tma", "atomic"])
def test_the_defaults_neither_spill_nor_serialize(pallas_compile: Any, by: str) -> None:
    x, y = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((128, 65536), (65536, 512)))
    report = pallas_compile(functools.partial(split_k_matmul, by=by), x, y, target="h200")
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert report.warnings == ()  # such as that wgmma is serialized
