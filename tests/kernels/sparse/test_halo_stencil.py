"""What the stencils refuse, and what they promise beyond what their specs draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from pallas_test_support.operands import f32, refuses

from reference_kernels.sparse import halo_stencil, halo_stencil_padded


@pytest.mark.parametrize("kernel", [halo_stencil, halo_stencil_padded])
class TestMisuse:
    def test_array(self, kernel: Any) -> None:
        refuses(lambda: kernel(f32(3), 1), "x must have the shape (m, n)", "(3,)")
        refuses(lambda: kernel(f32(0, 3), 0), "x must not be empty", "(0, 3)")
        refuses(lambda: kernel(f32(2, 3).astype(np.int32), 1), "x must have a floating dtype")

    @pytest.mark.parametrize("rows", [1.0, np.array([1]), f32()])
    def test_rows(self, kernel: Any, rows: Any) -> None:
        refuses(lambda: kernel(f32(2, 3), rows), "rows must be an integer scalar")

    def test_block(self, kernel: Any) -> None:
        refuses(lambda: kernel(f32(2, 3), 1, block_rows=0), "block_rows must be a positive")
        refuses(
            lambda: kernel(f32(2, 3), 1, block_rows=24),
            "block_rows must be a multiple of 16, but it is 24",
        )


@pytest.mark.pallas(backends=["interpret"])
def test_a_neighbor_may_be_in_another_block(pallas_run: Any) -> None:
    x = np.zeros((64, 2), np.float32)
    x[[0, 15, 32, 63]] = 1
    out = pallas_run(halo_stencil, x, np.int32(64), block_rows=16)
    np.testing.assert_array_equal(np.flatnonzero(out[:, 0]), [0, 1, 14, 15, 16, 31, 32, 33, 62, 63])


@pytest.mark.pallas(backends=["interpret"])
@pytest.mark.parametrize("rows", [0, 1, 16, 17])
def test_rows_may_be_known_when_it_is_traced(pallas_run: Any, rows: int) -> None:
    out = pallas_run(lambda x: halo_stencil(x, rows, block_rows=16), np.ones((20, 2), np.float32))
    wanted = np.where(np.arange(20) < rows, 3, 0)
    if rows:
        wanted[0] -= 1
        wanted[rows - 1] -= 1
    np.testing.assert_array_equal(out[:, 0], wanted)


@pytest.mark.pallas(backends=["tpu-sim"])
def test_the_last_block_may_end_after_its_window(pallas_run: Any) -> None:
    """Two strips a block, of which the last block's second has no row: 48 of the array are left."""
    x = np.arange(48, dtype=np.float32)[:, None]
    out = pallas_run(halo_stencil, x, np.int32(48), block_rows=32)
    wanted = 3 * x
    wanted[[0, -1], 0] = 1, 46 + 47
    np.testing.assert_array_equal(out, wanted)
