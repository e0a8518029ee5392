"""What the grouped product for Hopper refuses, and promises beyond what its specs draw."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.mosaic_gpu import ragged_dot


def bf16(*shape: int) -> Any:
    return jnp.zeros(shape, jnp.bfloat16)


class TestMisuse:
    def test_operands(self) -> None:
        x, w, sizes = bf16(4, 3), bf16(2, 3, 5), i32(2)
        refuses(lambda: ragged_dot(bf16(4), w, sizes), "x must have the shape (m, k)")
        refuses(lambda: ragged_dot(x, bf16(3, 5), sizes), "w must have the shape (groups, k, n)")
        refuses(
            lambda: ragged_dot(x, w, sizes, transpose_rhs=True),
            "w must have the same k as x, 3",
            "is 5",
        )
        refuses(lambda: ragged_dot(f32(4, 3), w, sizes), "x must be bfloat16 or float16", "tf32")
        refuses(
            lambda: ragged_dot(x, w.astype("float16"), sizes),
            "w must have the dtype of x, bfloat16",
        )

    def test_group_sizes(self) -> None:
        x, w = bf16(4, 3), bf16(2, 3, 5)
        refuses(lambda: ragged_dot(x, w, i32(3)), "group_sizes must have the same groups as w, 2")
        refuses(lambda: ragged_dot(x, w, f32(2)), "group_sizes must be int32", "float32")

    @pytest.mark.parametrize(
        ("blocks", "message"),
        [
            ({"block_m": 192}, "block_m must be 64 or 128, but it is 192"),
            ({"block_n": 32}, "block_n must be a multiple of 64, but it is 32"),
            ({"stages": 1}, "stages must be at least 2, but it is 1"),
        ],
    )
    def test_blocks(self, blocks: dict[str, int], message: str) -> None:
        x, w = bf16(4, 3), bf16(2, 3, 5)
        refuses(lambda: ragged_dot(x, w, i32(2), **blocks), message)


@pytest.mark.parametrize("sizes", [(127, 0, 1), (1, 126, 2), (63, 65, 64), (0, 0, 0), (200, 0, 9)])
def test_rows_of_every_length_are_copied(sizes: tuple[int, ...]) -> None:
    """Lengths with all bits set, one of them, none; and more rows than there are."""
    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.integers(-4, 5, (192, 64)), jnp.bfloat16)
    w = jnp.asarray(rng.integers(-4, 5, (3, 64, 64)), jnp.bfloat16)
    with simulating("h100"):
        out = ragged_dot(x, w, jnp.asarray(sizes, jnp.int32), block_m=128, block_n=64, stages=2)
    group = np.repeat(np.arange(4), [*sizes, 192])[:192]
    wide = np.concatenate([np.asarray(w, np.float32), np.zeros((1, 64, 64), np.float32)])
    want = np.einsum("rk,rkn->rn", np.asarray(x, np.float32), wide[group])
    np.testing.assert_array_equal(np.asarray(out), want.astype(jnp.bfloat16))


@pytest.mark.parametrize("target", ["h100"])  # an h200 runs the same code
def test_the_defaults_neither_spill_nor_serialize(pallas_compile: Any, target: str) -> None:
    x, w = (jax.ShapeDtypeStruct(shape, "bfloat16") for shape in ((8192, 4096), (16, 4096, 4096)))
    report = pallas_compile(ragged_dot, x, w, jax.ShapeDtypeStruct((16,), "int32"), target=target)
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert report.warnings == ()  # such as that wgmma is serialized
