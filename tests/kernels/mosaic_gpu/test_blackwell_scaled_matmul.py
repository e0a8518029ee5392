"""What the block-scaled product refuses, what it costs, and what its reference computes."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pallas_test_support.operands import refuses

from reference_kernels.mosaic_gpu import blackwell_scaled_matmul
from reference_kernels.mosaic_gpu.blackwell_scaled_matmul import (
    _FORMATS,
    _for_tensor_memory,
    reference,
)


def call(
    x: tuple[int, int] = (128, 256),
    y: tuple[int, int] = (128, 256),
    x_scale: tuple[int, int] = (128, 8),
    y_scale: tuple[int, int] = (128, 8),
    dtypes: tuple[str, ...] = ("float8_e4m3fn", "float8_e4m3fn", *["float8_e8m0fnu"] * 2),
    **settings: Any,
) -> Any:
    shapes = (x, y, x_scale, y_scale)
    operands = (jnp.ones(*each) for each in zip(shapes, dtypes, strict=True))
    return lambda: blackwell_scaled_matmul(*operands, **settings)


def test_misuse() -> None:
    refuses(call(x=(256, 128, 1)), "x must have the shape (m, k)")
    refuses(call(y=(128, 128)), "y must have the same k as x, 256", "is 128")
    refuses(call(x=(127, 256)), "the m of x must be a multiple of 128, but it is 127")
    refuses(call(y=(130, 256)), "the n of y must be a multiple of 128, but it is 130")
    refuses(call(x=(128, 64), y=(128, 64)), "the k of x must be a multiple of 128")
    refuses(call(x_scale=(128, 16)), "x_scale must have the shape (128, 8)", "(128, 16)")
    refuses(call(y_scale=(256, 8)), "y_scale must have the shape (128, 8)", "(256, 8)")
    refuses(call(stages=1), "stages must be at least 2, but it is 1")
    refuses(call(stages=0), "stages must be a positive integer")


def test_formats() -> None:
    e4m3, e8m0, e2m1 = "float8_e4m3fn", "float8_e8m0fnu", "float4_e2m1fn"
    refuses(call(dtypes=(e4m3, "float8_e5m2", e8m0, e8m0)), "y must have the dtype of x")
    refuses(call(dtypes=(e4m3, e4m3, e8m0, e4m3)), "y_scale must have the dtype of x_scale")
    refuses(call(dtypes=(e4m3, e4m3, e4m3, e4m3)), "x and x_scale must have the dtypes of a format")
    refuses(
        call(x=(128, 128), y=(128, 128), dtypes=(e2m1, e2m1, e8m0, e8m0)),
        "the k of x must be a multiple of 256, but it is 128",
    )


def test_the_order_of_scales_in_tensor_memory() -> None:
    rows, scales = 256, 8
    scale = jnp.arange(rows * scales).reshape(rows, scales)
    found = np.asarray(_for_tensor_memory(scale))
    for row, column in ((0, 0), (31, 3), (32, 0), (127, 7), (128, 4), (255, 5)):
        tile, lane, quarter = row // 128, row % 32, row % 128 // 32
        assert found[tile, column // 4, lane, quarter * 4 + column % 4] == row * scales + column


def test_the_reference_scales_blocks_of_rows() -> None:
    x = np.ones((1, 64), np.float32)
    y = np.ones((1, 64), np.float32)
    found = reference(x, y, np.array([[2.0, 3.0]]), np.array([[5.0, 7.0]]))
    np.testing.assert_array_equal(found, [[32 * 2 * 5 + 32 * 3 * 7]])


@pytest.mark.parametrize("dtypes", list(_FORMATS))
def test_nothing_spills(pallas_compile: Any, dtypes: tuple[str, str]) -> None:
    x = jax.ShapeDtypeStruct((256, 512), jnp.dtype(dtypes[0]))
    scale = jax.ShapeDtypeStruct((256, 512 // _FORMATS[dtypes]), jnp.dtype(dtypes[1]))
    report = pallas_compile(blackwell_scaled_matmul, x, x, scale, scale, target="b200")
    assert report.spill_store_bytes == report.spill_load_bytes == 0
    assert report.warnings == ()
