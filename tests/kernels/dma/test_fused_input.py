"""What ``multiply_add_one`` refuses, and that its product is fused."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from pallas_test_support.operands import f32, refuses

from reference_kernels.dma import multiply_add_one


def test_rank() -> None:
    refuses(lambda: multiply_add_one(f32(3), f32(3)), "x must have the shape (m, n)", "(3,)")
    refuses(lambda: multiply_add_one(f32(3, 4), f32(3)), "y must have the shape (m, n)", "(3,)")


def test_sizes() -> None:
    refuses(lambda: multiply_add_one(f32(3, 4), f32(2, 4)), "y must have the same m as x, 3")
    refuses(lambda: multiply_add_one(f32(3, 4), f32(3, 5)), "y must have the same n as x, 4")


def test_dtype() -> None:
    x = f32(3, 4)
    refuses(lambda: multiply_add_one(x.astype(int), x), "x must have a floating dtype", "int")
    refuses(lambda: multiply_add_one(x, x.astype(np.float16)), "y must have the dtype of x")


def test_block() -> None:
    x = f32(3, 4)
    refuses(lambda: multiply_add_one(x, x, block=(8, 0)), "block[1] must be a positive integer")
    refuses(lambda: multiply_add_one(x, x, block=(8,)), "block must be two sizes")


def test_fused_blocks_of_both_factors_are_in_vmem(pallas_compile: Any) -> None:
    x = jax.ShapeDtypeStruct((1024, 1024), "float32")
    fused = pallas_compile(multiply_add_one, x, x, target="v6e")
    apart = pallas_compile(multiply_add_one, x, x, target="v6e", options={"fused": False})
    block = 256 * 512 * 4
    assert fused.vmem_bytes >= apart.vmem_bytes + 2 * block
