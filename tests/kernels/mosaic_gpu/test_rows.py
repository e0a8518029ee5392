"""Row kernels on a GPU: misuses, machine code, and promises that their specs cannot draw."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import f32, i32, refuses
from pallas_test_support.simulating import simulating

from pallas_sim import simulate
from reference_kernels.mosaic_gpu import row_layer_norm, row_rms_norm, row_softmax
from reference_kernels.mosaic_gpu._rows import LONGEST, Plan
from reference_kernels.reductions.layer_norm import reference as layer_norm
from reference_kernels.reductions.rms_norm import reference as rms_norm
from reference_kernels.reductions.softmax import reference as softmax

HOPPER = ("h100",)  # an h200 runs the same code


def shaped(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))


def test_what_all_refuse() -> None:
    for name, call in (
        ("softmax", row_softmax),
        ("rms_norm", lambda x: row_rms_norm(x, f32(*np.shape(x)[-1:]))),
        ("layer_norm", lambda x: row_layer_norm(x, *[f32(*np.shape(x)[-1:])] * 2)),
    ):
        refuses(lambda call=call: call(np.float32(1)), "x must have the shape (..., n)", "scalar")
        refuses(lambda call=call: call(f32(0, 3)), "x must not be empty", "(0, 3)")
        refuses(
            lambda call=call: call(i32(2, 3)), "x must be float32, bfloat16 or float16", "int32"
        )
        refuses(
            lambda call=call: call(f32(2, LONGEST + 1)), "n at most 16384", str(LONGEST + 1), "x"
        )
        assert name


def test_number_of_rows() -> None:
    refuses(lambda: row_softmax(f32(2, 3), block_rows=0), "block_rows must be a positive integer")
    refuses(lambda: row_rms_norm(f32(2, 3), f32(3), block_rows=-1), "block_rows must be", "-1")
    refuses(lambda: row_rms_norm(f32(2, 3), f32(3), blocks=0), "blocks must be a positive integer")


def test_vector() -> None:
    refuses(lambda: row_rms_norm(f32(2, 3), f32(1, 3)), "w must have the shape (n,)", "(1, 3)")
    refuses(lambda: row_rms_norm(f32(2, 3), f32(4)), "w must have the same n as x, 3", "is 4")
    refuses(lambda: row_rms_norm(f32(2, 3), i32(3)), "w must be float32", "int32")
    refuses(lambda: row_rms_norm(f32(2, 3), f32(3), eps=0.0), "eps must be positive", "0.0")
    refuses(lambda: row_layer_norm(f32(2, 3), f32(3), f32(4)), "b must have the same n as x, 3")
    refuses(lambda: row_layer_norm(f32(2, 3), f32(3), i32(3)), "b must be float32", "int32")


@pytest.mark.parametrize("n", [200, 256])
def test_a_large_mean_leaves_layer_norm_its_bits(n: int) -> None:
    """One pass, ``mean x^2 - mean^2``, would have none left."""
    x = (np.random.default_rng(0).normal(size=(5, n)) + 4096).astype(np.float32)
    w, b = np.ones(n, np.float32), np.zeros(n, np.float32)
    found = simulate(row_layer_norm, x, w, b, target="h100")
    np.testing.assert_allclose(found.values, layer_norm(x, w, b), atol=2e-3)


def test_rows_of_a_block_follow_the_registers() -> None:
    assert Plan.of(128, 2).rows == 64  # 4 warps of 16 rows of 4 elements each
    assert Plan.of(2048, 2).rows == 4
    assert Plan.of(2176, 2).rows == 3  # of all four warps
    assert Plan.of(LONGEST, 4).rows == 1
    for n in (128, 384, 2048, 2176, 4096, LONGEST):
        plan = Plan.of(n, 2)
        assert plan.rows * n <= 128 * 128


def test_leading_axes_and_infinities() -> None:
    x = np.array(np.random.default_rng(0).normal(size=(2, 3, 40)), np.float32)
    x[0, 1] = -np.inf
    x[1, 2, ::2] = -np.inf
    w = np.linspace(-1.0, 1.0, 40, dtype=np.float32)
    with simulating("h100"):
        weights, normed = map(np.asarray, (row_softmax(x), row_rms_norm(x[1, :2], w)))
    np.testing.assert_allclose(weights, softmax(x), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(weights[0, 1], np.zeros(40))
    np.testing.assert_allclose(normed, rms_norm(x[1, :2], w), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("target", HOPPER)
def test_nothing_spills(pallas_compile: Any, target: str) -> None:
    def gradients(x: jax.Array, w: jax.Array, do: jax.Array) -> Any:
        return jax.vjp(row_rms_norm, x, w)[1](do)

    x, w = shaped(8192, 4096), shaped(4096, dtype="float32")
    for report in (
        pallas_compile(row_softmax, x, target=target),
        pallas_compile(gradients, x, w, x, target=target),
        pallas_compile(row_layer_norm, x, w, w, target=target),
    ):
        assert report.spill_store_bytes == report.spill_load_bytes == 0
        # Three blocks an SM at least, so that there are enough loads under way.
        assert report.registers <= 168
        assert report.warnings == ()
