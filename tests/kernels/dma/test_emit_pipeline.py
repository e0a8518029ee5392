"""What ``add_one_pipelined`` refuses, and what it promises beyond what its specs draw."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax.experimental import pallas as pl
from pallas_test_support.operands import f32, refuses

from reference_kernels.dma import add_one_pipelined


def test_rank() -> None:
    refuses(lambda: add_one_pipelined(f32(3)), "x must have the shape (m, n)", "(3,)")


def test_empty() -> None:
    refuses(lambda: add_one_pipelined(f32(0, 3)), "x must not be empty", "(0, 3)")


@pytest.mark.parametrize("name", ["block_rows", "cores"])
@pytest.mark.parametrize("size", [0, -1, 2.0, True])
def test_sizes(name: str, size: Any) -> None:
    refuses(
        lambda: add_one_pipelined(f32(2, 3), **{name: size}),
        f"{name} must be a positive integer, but it is {size!r}",
    )


def test_buffers() -> None:
    refuses(
        lambda: add_one_pipelined(f32(2, 3), buffering=pl.Buffered(0)),
        "buffering.buffer_count must be a positive integer, but it is 0",
    )
    refuses(
        lambda: add_one_pipelined(f32(2, 3), buffering=pl.Buffered(1, use_lookahead=True)),
        "buffering must have at least two buffers for lookahead, but it has 1",
    )


@pytest.mark.pallas(backends=["interpret"])
def test_there_may_be_more_programs_than_blocks(pallas_run: Any) -> None:
    x = np.arange(40 * 3, dtype=np.int32).reshape(40, 3)
    out = pallas_run(add_one_pipelined, x, block_rows=16, cores=3)
    np.testing.assert_array_equal(out, x + 1)
