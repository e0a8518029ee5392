"""What the convolution for Hopper refuses, which patches it multiplies, and what it costs."""

from __future__ import annotations

import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import mosaic_gpu as plgpu
from pallas_test_support.operands import f32, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.matmul.conv2d import reference
from reference_kernels.mosaic_gpu import hopper_conv2d

#: The module, whose name in the package is that of the function.
MODULE = sys.modules[hopper_conv2d.__module__]

#: Of a multiprocessor of an H100 or H200, less what the system takes of each block.
SHARED, SYSTEM = 228 * 1024, 1024


def f16(*shape: int) -> Any:
    return np.zeros(shape, np.float16)


X, W = f16(1, 5, 6, 3), f16(3, 3, 3, 4)


class TestMisuse:
    def test_operands(self) -> None:
        refuses(lambda: hopper_conv2d(X[0], W), "x must have the shape (b, h, w, c)", "(5, 6, 3)")
        refuses(lambda: hopper_conv2d(X, W[0]), "w must have the shape (kh, kw, c, d)", "(3, 3, 4)")
        refuses(lambda: hopper_conv2d(X, f16(3, 3, 2, 4)), "w must have the same c as x, 3", "is 2")
        refuses(lambda: hopper_conv2d(X, W.astype("bfloat16")), "w must have the dtype of x")
        refuses(lambda: hopper_conv2d(f32(1, 5, 6, 3), W), "x must be bfloat16 or float16", "tf32")
        refuses(lambda: hopper_conv2d(X[:0], W), "x must not be empty")

    @pytest.mark.parametrize(
        ("blocks", "message"),
        [
            ({"block_m": 96}, "block_m must be a multiple of 64, but it is 96"),
            ({"block_n": 32}, "block_n must be a multiple of 64, but it is 32"),
            ({"block_n": 320}, "block_n must be at most 256, the widest wgmma, but it is 320"),
            ({"stages": 1}, "stages must be at least 2, but it is 1"),
        ],
    )
    def test_blocks(self, blocks: dict[str, Any], message: str) -> None:
        refuses(lambda: hopper_conv2d(X, W, **blocks), message)

    def test_padding(self) -> None:
        padding: Any = "same"
        refuses(lambda: hopper_conv2d(X, W, padding=padding), "padding must be 'SAME' or 'VALID'")

    def test_windows(self) -> None:
        refuses(
            lambda: hopper_conv2d(X, f16(3, 7, 3, 4), padding="VALID"),
            "x must be as large as the window, 3 by 7",
            "(1, 5, 6, 3)",
        )
        refuses(
            lambda: hopper_conv2d(f16(1, 200, 5, 3), f16(130, 1, 3, 4), padding="VALID"),
            "w must have a kh of at most 129 with padding 'VALID'",
            "its kh is 130",
        )
        refuses(
            lambda: hopper_conv2d(X, f16(1, 257, 3, 4)),
            "w must have a kw of at most 256 with padding 'SAME'",
            "its kw is 257",
        )

    def test_a_jax_without_windows_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delattr(plgpu, "im2col_ref", raising=False)
        with pytest.raises(NotImplementedError, match=rf"im2col_ref.*is JAX {jax.__version__}"):
            hopper_conv2d(X, W)


@pytest.mark.skipif(not hasattr(plgpu, "im2col_ref"), reason="im2col_ref came with JAX 0.12")
@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize(
    ("x", "w"),
    [
        ((3, 5, 8, 130), (3, 4, 130, 72)),  # three parts of channels, blocks of parts of images
        ((1, 13, 17, 3), (4, 1, 3, 136)),  # few channels, several blocks either way
        ((2, 4, 5, 64), (1, 1, 64, 8)),  # one step: fewer than stages
    ],
)
def test_every_pixel_of_a_window_meets_its_weights(
    x: tuple[int, ...], w: tuple[int, ...], padding: Any
) -> None:
    rng = np.random.default_rng(0)
    operands = [jnp.asarray(rng.integers(-2, 3, shape), jnp.bfloat16) for shape in (x, w)]
    with simulating("h100"):
        found = hopper_conv2d(*operands, padding=padding, block_m=64, block_n=64, stages=2)
    want = reference(*operands, padding=padding)
    assert found.dtype == want.dtype
    np.testing.assert_array_equal(np.asarray(found), np.asarray(want))


@pytest.mark.skipif(not hasattr(plgpu, "im2col_ref"), reason="im2col_ref came with JAX 0.12")
class TestMachineCode:
    @pytest.mark.parametrize("target", ["h100"])  # an h200 runs the same code
    @pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
    def test_the_defaults_neither_spill_nor_serialize(
        self, pallas_compile: Any, target: str, dtype: str
    ) -> None:
        shapes = ((32, 56, 56, 128), (3, 3, 128, 256))
        x, w = (jax.ShapeDtypeStruct(shape, jnp.dtype(dtype)) for shape in shapes)
        report = pallas_compile(hopper_conv2d, x, w, target=target)
        assert report.spill_store_bytes == report.spill_load_bytes == 0
        assert report.warnings == ()  # such as that wgmma is serialized
        assert 2 * (report.shared_bytes + SYSTEM) <= SHARED  # two blocks share a multiprocessor

    @pytest.mark.parametrize(
        ("height", "kernel", "padding"), [(1, 256, "SAME"), (129, 129, "VALID")]
    )
    def test_the_largest_windows_compile(
        self, pallas_compile: Any, height: int, kernel: int, padding: Any
    ) -> None:
        x, w = (
            jax.ShapeDtypeStruct(shape, jnp.bfloat16)
            for shape in ((1, height, height, 8), (kernel, kernel, 8, 64))
        )
        call = functools.partial(hopper_conv2d, padding=padding)
        assert pallas_compile(call, x, w, target="h100").spill_store_bytes == 0
