"""What the kernels with scopes refuse, and what their scopes take."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
import pytest
from pallas_test_support.operands import f32, refuses
from pallas_test_support.simulating import simulating

from reference_kernels.refs import octuple, octuple_counted


@pytest.fixture(autouse=True)
def simulated() -> Iterator[None]:
    """Simulate the kernels."""
    with simulating():
        yield


@pytest.mark.parametrize("kernel", [octuple, octuple_counted])
def test_operand(kernel: Any) -> None:
    refuses(lambda: kernel(f32(128)), "x must have the shape (m, n)", "(128,)")
    refuses(lambda: kernel(f32(0, 128)), "x must not be empty", "(0, 128)")


def test_block() -> None:
    refuses(
        lambda: octuple_counted(f32(2, 3), block_rows=0),
        "block_rows must be a positive integer, but it is 0",
    )


def test_the_semaphores_are_of_the_scopes_and_not_of_the_kernel() -> None:
    call = str(jax.make_jaxpr(octuple)(f32(8, 128)))
    assert call.count("run_scoped") == 3
    assert "scratch" not in call
