"""What ``ragged_copy`` refuses, and what it promises beyond what its spec draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from pallas_test_support.operands import f32, refuses

from reference_kernels.dma import ragged_copy


def i32(*values: int) -> Any:
    return np.array(values, np.int32)


ROWS = {"starts": i32(0), "into_starts": i32(0), "sizes": i32(1)}


def copy(x: Any, into: Any, **changed: Any) -> Callable[[], Any]:
    block = changed.pop("block", 8)
    runs = {**ROWS, **changed}
    return lambda: ragged_copy(x, into, *runs.values(), block=block)


def test_arrays() -> None:
    x = f32(2, 3, 4)
    refuses(copy(f32(2, 3), x), "x must have the shape (m, h, d)", "(2, 3)")
    refuses(copy(x, f32(2, 3)), "into must have the shape (l, h, d)", "(2, 3)")
    refuses(copy(x, f32(0, 3, 4)), "into must not be empty", "(0, 3, 4)")
    refuses(copy(x, f32(5, 2, 4)), "into must have the same h as x, 3", "is 2")
    refuses(copy(x, f32(5, 3, 5)), "into must have the same d as x, 4", "is 5")
    refuses(copy(x, x.astype(np.int32)), "into must have the dtype of x, float32", "int32")


@pytest.mark.parametrize("name", ["starts", "into_starts"])
def test_runs(name: str) -> None:
    x = f32(2, 3, 4)
    refuses(copy(x, x, **{name: i32(0, 0)}), f"{name} must have the same g as sizes, 1", "is 2")
    refuses(copy(x, x, **{name: i32(0)[None]}), f"{name} must have the shape (g,)", "(1, 1)")
    refuses(copy(x, x, **{name: f32(1)}), f"{name} must have the dtype int32", "float32")


def test_sizes() -> None:
    x = f32(2, 3, 4)
    refuses(copy(x, x, sizes=f32(1)), "sizes must have the dtype int32", "float32")
    refuses(copy(x, x, sizes=i32()), "sizes must not be empty")
    refuses(copy(x, x, block=0), "block must be a positive integer")


@pytest.mark.pallas(backends=["tpu-sim"])
def test_runs_may_overlap_in_x(pallas_run: Any) -> None:
    x = np.arange(6 * 8, dtype=np.float32).reshape(6, 1, 8)
    into = -np.ones((9, 1, 8), np.float32)
    out = pallas_run(ragged_copy, x, into, i32(1, 2), i32(5, 0), i32(3, 3), block=2)
    np.testing.assert_array_equal(
        out, [*x[2:5], -np.ones((1, 8)), -np.ones((1, 8)), *x[1:4], into[8]]
    )


@pytest.mark.pallas(backends=["tpu-sim"])
def test_nothing_to_copy(pallas_run: Any) -> None:
    into = np.ones((3, 1, 8), np.float32)
    out = pallas_run(ragged_copy, 0 * into, into, i32(0, 3), i32(3, 0), i32(0, 0))
    np.testing.assert_array_equal(out, into)
