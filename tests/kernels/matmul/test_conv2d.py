"""What the convolution refuses, and the shapes it promises."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from pallas_test_support.operands import f32, refuses

from reference_kernels.matmul import conv2d

X, W = f32(1, 5, 6, 3), f32(3, 3, 3, 4)


def test_operands() -> None:
    refuses(lambda: conv2d(f32(5, 6, 3), W), "x must have the shape (b, h, w, c)", "(5, 6, 3)")
    refuses(lambda: conv2d(X, f32(3, 3, 4)), "w must have the shape (kh, kw, c, d)", "(3, 3, 4)")
    refuses(lambda: conv2d(X, f32(3, 3, 2, 4)), "w must have the same c as x, 3", "is 2")
    refuses(lambda: conv2d(X, W.astype(np.float16)), "w must have the dtype of x, float32")
    refuses(lambda: conv2d(X.astype(np.int8), W), "x must have a floating dtype", "int8")
    refuses(lambda: conv2d(f32(0, 5, 6, 3), W), "x must not be empty")


@pytest.mark.parametrize("name", ["stride", "dilation", "block_d"])
def test_numbers(name: str) -> None:
    refuses(lambda: conv2d(X, W, **{name: 0}), f"{name} must be a positive integer, but it is 0")


def test_padding() -> None:
    padding: Any = "same"
    refuses(lambda: conv2d(X, W, padding=padding), "padding must be 'SAME' or 'VALID'", "'same'")


def test_a_window_that_is_too_large() -> None:
    refuses(
        lambda: conv2d(X, W, padding="VALID", dilation=3),
        "x must be as large as the window, 7 by 7",
        "(1, 5, 6, 3)",
    )


@pytest.mark.parametrize(
    ("options", "rows", "columns"),
    [
        ({}, 5, 6),
        ({"padding": "VALID"}, 3, 4),
        ({"stride": 2}, 3, 3),
        ({"padding": "VALID", "dilation": 2}, 1, 2),
    ],
)
def test_shapes(options: dict[str, Any], rows: int, columns: int) -> None:
    out = jax.eval_shape(lambda: conv2d(X, W, **options))
    assert out.shape == (1, rows, columns, 4)
