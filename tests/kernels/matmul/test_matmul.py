"""What the tiled product refuses, and what it promises beyond what its specs draw."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.operands import f32, normal, refuses
from pallas_test_support.simulating import simulating

from reference_kernels._tpu import divisor, fit_axis, vmem_limit
from reference_kernels.matmul import batched_matmul, matmul
from reference_kernels.matmul.matmul import default_blocks

#: With one core each: the numbers are those of a core.
CHIPS = {
    version.name: pltpu.get_tpu_info_for_chip(version, 1)
    for version in (
        pltpu.ChipVersion.TPU_V4,
        pltpu.ChipVersion.TPU_V5E,
        pltpu.ChipVersion.TPU_V5P,
        pltpu.ChipVersion.TPU_V6E,
        pltpu.ChipVersion.TPU_7X,
    )
}


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    """Simulate the kernels: what lies beyond an end is NaN."""
    with simulating():
        yield


class TestMisuse:
    def test_transposed_shape(self) -> None:
        refuses(
            lambda: matmul(f32(2, 3), f32(3), transpose_rhs=True),
            "y must have the shape (n, k)",
            "(3,)",
        )
        refuses(
            lambda: matmul(f32(2, 3), f32(3, 4), transpose_rhs=True),
            "y must have the same k as x, 3",
            "is 4",
        )

    def test_batch(self) -> None:
        refuses(lambda: batched_matmul(f32(2, 3), f32(3, 4)), "x must have the shape (b, m, k)")
        refuses(
            lambda: batched_matmul(f32(2, 3, 4), f32(3, 4, 5)),
            "y must have the same b as x, 2",
            "is 3",
        )
        refuses(
            lambda: batched_matmul(f32(2, 3, 4), f32(4, 5), transpose_rhs=True),
            "y must have the shape (b, n, k)",
        )

    @pytest.mark.parametrize("name", ["block_m", "block_n", "block_k"])
    def test_block(self, name: str) -> None:
        refuses(
            lambda: matmul(f32(2, 3), f32(3, 4), **{name: 0}),
            f"{name} must be a positive integer, but it is 0",
        )


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
class TestDefaults:
    def test_a_step_is_not_slower_to_copy_than_to_compute(self, chip: str, dtype: str) -> None:
        info, blocks = CHIPS[chip], default_blocks(dtype, CHIPS[chip])
        passes = 6 if dtype == "float32" else 1  # products of bfloat16 that make one of float32
        operations = 2 * blocks.rows * blocks.columns * blocks.length * passes
        copied = (blocks.rows + blocks.columns) * blocks.length * jnp.dtype(dtype).itemsize
        compute = operations / info.bf16_ops_per_second
        assert copied / info.mem_bw_bytes_per_second <= compute

    def test_they_fit_in_vmem(self, chip: str, dtype: str) -> None:
        rows, columns, length = default_blocks(dtype, CHIPS[chip])
        limit = vmem_limit(
            ((rows, length), dtype),
            ((length, columns), dtype),
            ((rows, columns), dtype),
            scratch=0 if dtype == "float32" else 4 * rows * columns,
        )
        # 16 MB is what a v4 has, and what every chip gives without being asked.
        assert limit is None or 2**24 < limit <= CHIPS[chip].vmem_capacity_bytes // 2


def test_blocks_are_whole_tiles_and_no_larger_than_the_operand_needs() -> None:
    assert fit_axis(100, 1000, last=True) == 128
    assert fit_axis(100, 1000, last=False) == 112
    assert fit_axis(512, 130, last=True) == 256
    assert fit_axis(512, 1, last=False) == 16


def test_a_default_block_of_k_leaves_no_rest_if_it_can() -> None:
    assert divisor(512, 1024) == 512
    assert divisor(512, 768) == 384
    assert divisor(512, 640) == 512  # 128 would do, but small blocks cost more than masking


def test_vmem_limit_counts_two_of_each_block_and_is_asked_for_only_beyond_the_default() -> None:
    assert vmem_limit(((1024, 1024), "bfloat16")) is None
    assert vmem_limit(((4096, 1024), "bfloat16"), scratch=2**22) == 25 * 2**20


def test_block_sizes_that_are_no_whole_tiles_are_rounded_up() -> None:
    x, y = normal(20, 300), normal(300, 150)
    out = matmul(x, y, block_m=5, block_n=100, block_k=100)
    np.testing.assert_allclose(out, np.asarray(x) @ np.asarray(y), atol=1e-4)


@pytest.mark.parametrize("round_each_step", [False, True])
def test_bfloat16_is_rounded_once_however_many_blocks_a_sum_has(round_each_step: bool) -> None:
    # 257 is no bfloat16: rounding the sum of the first block would lose the 1 that 255 takes up.
    x = jnp.ones((1, 512), jnp.bfloat16).at[0, 257:].set(-1)
    y = jnp.ones((512, 1), jnp.bfloat16).at[300:].set(0)
    settings: Any = {"block_k": 384, "round_each_step": round_each_step}
    assert matmul(x, y, **settings)[0, 0] == 257 - 43


def test_vmap_over_one_operand_or_both_with_gradients() -> None:
    x, y = normal(2, 17, 20), normal(20, 9)
    out, pullback = jax.vjp(jax.vmap(matmul, in_axes=(0, None)), x, y)
    np.testing.assert_allclose(out, np.asarray(x) @ np.asarray(y), atol=1e-4)
    dx, dy = pullback(jnp.ones_like(out))
    ones = np.ones(out.shape)
    np.testing.assert_allclose(dx, ones @ np.asarray(y).T, atol=1e-4)
    np.testing.assert_allclose(dy, np.einsum("bmk,bmn->kn", np.asarray(x), ones), atol=1e-4)
