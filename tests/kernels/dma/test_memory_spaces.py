"""What the kernels of ``memory_spaces`` refuse, and which branch the compiler keeps."""

from __future__ import annotations

from typing import Any

import jax
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.operands import f32, refuses

from reference_kernels.dma import add_one_from, add_one_from_host, add_one_placed


@pytest.mark.parametrize("kernel", [add_one_from, add_one_placed, add_one_from_host])
def test_array_and_block(kernel: Any) -> None:
    refuses(lambda: kernel(f32(3)), "x must have the shape (m, n)", "(3,)")
    refuses(lambda: kernel(f32(0, 3)), "x must not be empty", "(0, 3)")
    refuses(lambda: kernel(f32(2, 3), block_rows=0), "block_rows must be a positive integer")


@pytest.mark.parametrize("space", [pl.HOST, pltpu.SMEM, "hbm"])
def test_space(space: Any) -> None:
    refuses(
        lambda: add_one_placed(f32(2, 3), space=space),
        "space must be pltpu.VMEM, pltpu.HBM or pl.ANY",
    )


@pytest.mark.skipif(
    not hasattr(pltpu, "has_memory_space"), reason="this JAX has no has_memory_space"
)
def test_the_branch_for_the_other_memory_is_dropped(pallas_compile: Any) -> None:
    x = jax.ShapeDtypeStruct((1024, 512), "float32")
    pipeline = pallas_compile(add_one_from, x, target="v5e")
    hbm = pallas_compile(add_one_placed, x, target="v5e", options={"space": pltpu.HBM})
    assert hbm.bundles == pipeline.bundles
    vmem = pallas_compile(add_one_placed, x, target="v5e", options={"space": pltpu.VMEM})
    assert vmem.loop_bundles < pipeline.loop_bundles, "the loop of the pipeline is still there"
