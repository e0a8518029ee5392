"""What the kernels of ``pipeline_state`` refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pallas_test_support.operands import f32, refuses

from reference_kernels.dma import add_in_place, add_one_by_parts, add_one_prefetched


@pytest.mark.parametrize("kernel", [add_one_by_parts, add_one_prefetched])
def test_array(kernel: Any) -> None:
    refuses(lambda: kernel(f32(3, 4)), "x must have the shape (p, m, n)", "(3, 4)")
    refuses(lambda: kernel(f32(2, 0, 4)), "x must not be empty", "(2, 0, 4)")


def test_parts() -> None:
    x = f32(6, 2, 3)
    refuses(lambda: add_one_by_parts(x, parts=4), "parts must be a divisor of p, 6, but it is 4")
    refuses(lambda: add_one_by_parts(x, parts=0), "parts must be a positive integer")


def test_ahead() -> None:
    x = f32(3, 2, 3)
    for ahead in (1, 4):
        refuses(
            lambda ahead=ahead: add_one_prefetched(x, ahead=ahead),
            f"ahead must be at least 2 and at most p, 3, but it is {ahead}",
        )
    refuses(lambda: add_one_prefetched(x, ahead=2.0), "ahead must be a positive integer")


def test_sum() -> None:
    x = f32(2, 3, 4)
    refuses(lambda: add_in_place(x, f32(3, 4)), "y must have the shape (p, m, n)", "(3, 4)")
    refuses(lambda: add_in_place(x, f32(1, 3, 4)), "y must have the same p as x, 2", "is 1")
    refuses(lambda: add_in_place(x, f32(2, 3, 5)), "y must have the same n as x, 4", "is 5")
    refuses(lambda: add_in_place(x, x.astype(np.int32)), "y must have the dtype of x", "int32")
