"""What the product for Hopper refuses, and what its defaults cost."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from pallas_test_support.operands import f32, refuses

from reference_kernels.mosaic_gpu import hopper_matmul

#: Of a multiprocessor of an H100 or H200, less what the system takes of each block.
SHARED, SYSTEM = 228 * 1024, 1024


def bf16(*shape: int) -> Any:
    return jnp.zeros(shape, jnp.bfloat16)


class TestMisuse:
    def test_operands(self) -> None:
        refuses(lambda: hopper_matmul(bf16(2), bf16(2, 3)), "x must have the shape (m, k)", "(2,)")
        refuses(
            lambda: hopper_matmul(bf16(2, 3), bf16(4, 5)), "y must have the same k as x, 3", "is 4"
        )
        refuses(
            lambda: hopper_matmul(bf16(2, 3), bf16(3, 4).astype("float16")),
            "y must have the dtype of x, bfloat16",
        )

    def test_float32_would_be_tf32(self) -> None:
        refuses(
            lambda: hopper_matmul(f32(2, 3), f32(3, 4)),
            "x must be bfloat16 or float16 or float8_e4m3fn, but its dtype is float32",
            "tf32",
        )

    def test_eight_bits_that_do_not_lie_along_k(self) -> None:
        x, y = (bf16(*shape).astype(jnp.float8_e4m3fn) for shape in ((2, 3), (3, 4)))
        refuses(lambda: hopper_matmul(x, y), "y must be transposed, (n, k), for float8_e4m3fn")

    def test_out_dtype(self) -> None:
        refuses(
            lambda: hopper_matmul(bf16(2, 3), bf16(3, 4), out_dtype=jnp.int8),
            "out_dtype must be bfloat16 or float16 or float32, but it is int8",
        )

    @pytest.mark.parametrize(
        ("blocks", "message"),
        [
            ({"block_m": 0}, "block_m must be a positive integer, but it is 0"),
            ({"block_m": 96}, "block_m must be a multiple of 64, but it is 96"),
            ({"block_n": 32}, "block_n must be a multiple of 64, but it is 32"),
            ({"block_n": 320}, "block_n must be at most 256, the widest wgmma, but it is 320"),
            ({"block_k": 32}, "block_k must be a multiple of 64, but it is 32"),
            ({"stages": 1}, "stages must be at least 2, but it is 1"),
        ],
    )
    def test_blocks(self, blocks: dict[str, int], message: str) -> None:
        refuses(lambda: hopper_matmul(bf16(2, 3), bf16(3, 4), **blocks), message)


def test_whole_tiles_are_not_copied() -> None:
    def around_the_kernel(m: int, k: int) -> int:
        jaxpr = jax.make_jaxpr(hopper_matmul)(bf16(m, k), bf16(k, 64))
        (call,) = jaxpr.eqns
        return len(call.params["call_jaxpr"].jaxpr.eqns) - 1

    assert around_the_kernel(8, 64) == 0
    assert around_the_kernel(9, 64) == 2  # x is padded, the output cut off
    assert around_the_kernel(8, 65) == 2  # both operands are padded


@pytest.mark.parametrize("target", ["h100"])  # an h200 runs the same code
@pytest.mark.parametrize("activation", [None, jax.nn.gelu])
def test_the_defaults_do_not_spill_and_two_blocks_share_a_multiprocessor(
    pallas_compile: Any, target: str, activation: Any
) -> None:
    x = jax.ShapeDtypeStruct((4096, 4096), jnp.bfloat16)
    kernel = functools.partial(hopper_matmul, activation=activation)
    report = pallas_compile(kernel, x, x, target=target)
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert report.warnings == ()  # such as that wgmma is serialized
    assert 2 * (report.shared_bytes + SYSTEM) <= SHARED
