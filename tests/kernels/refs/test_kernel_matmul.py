"""What ``kernel_matmul`` refuses."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.operands import f32, refuses

from reference_kernels.refs import kernel_matmul


def test_operands() -> None:
    refuses(lambda: kernel_matmul(f32(3), f32(3, 4)), "x must have the shape (m, k)", "(3,)")
    refuses(lambda: kernel_matmul(f32(2, 3), f32(4, 5)), "y must have the same k as x, 3", "is 4")
    refuses(lambda: kernel_matmul(f32(2, 3), f32(3, 0)), "y must not be empty", "(3, 0)")
    integers = np.zeros((2, 2), np.int32)
    refuses(lambda: kernel_matmul(integers, integers), "x must have a floating dtype", "int32")


@pytest.mark.parametrize("name", ["block_m", "block_n", "block_k"])
def test_blocks(name: str) -> None:
    refuses(
        lambda: kernel_matmul(f32(2, 3), f32(3, 4), **{name: 0}),
        f"{name} must be a positive integer, but it is 0",
    )


def test_mesh() -> None:
    subcores = SimpleNamespace(core_type=pltpu.CoreType.SC_SCALAR_SUBCORE)
    for mesh in (subcores, "core"):
        refuses(
            lambda mesh=mesh: kernel_matmul(f32(2, 3), f32(3, 4), mesh=mesh),
            "mesh must be a pltpu.TensorCoreMesh",
        )
