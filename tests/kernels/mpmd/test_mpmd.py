"""What the kernels of several bodies refuse, and that their signals are needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax.experimental import pallas as pl
from pallas_test_support.operands import f32, i32, refuses

from pytest_pallas import RaceError
from reference_kernels.mpmd import hand_off, lookup_matmul, staged_map

X, IDX, W = f32(5, 4), i32(3), f32(4, 6)
ON_SUBCORES = pytest.mark.pallas(backends=["tpu-sim"])


def test_staged_map() -> None:
    refuses(lambda: staged_map(f32(3, 4)), "x must have the shape (n,)", "(3, 4)")
    refuses(lambda: staged_map(f32(3).astype(np.int16)), "x must be float32 or int32", "int16")
    refuses(lambda: staged_map(f32(3), block=0), "block must be a positive integer")


@pytest.mark.parametrize(("kernel", "size"), [(lookup_matmul, "parts"), (hand_off, "block")])
class TestLookup:
    def test_operands(self, kernel: Any, size: str) -> None:
        refuses(lambda: kernel(f32(5), IDX, W), "x must have the shape (rows, k)", "(5,)")
        refuses(lambda: kernel(X, i32(3, 1), W), "idx must have the shape (m,)", "(3, 1)")
        refuses(lambda: kernel(X, IDX, f32(5, 6)), "w must have the same k as x, 4", "is 5")
        refuses(lambda: kernel(X, f32(3), W), "idx must be int32", "float32")
        refuses(lambda: kernel(i32(5, 4), IDX, W), "x must be float32", "int32")
        refuses(lambda: kernel(X, IDX, i32(4, 6)), "w must have the dtype of x", "int32")

    def test_size(self, kernel: Any, size: str) -> None:
        refuses(lambda: kernel(X, IDX, W, **{size: 0}), f"{size} must be a positive integer")


@ON_SUBCORES
def test_without_signals_the_stage_is_read_too_early(
    pallas_run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("semaphore_wait", "semaphore_signal"):
        monkeypatch.setattr(pl, name, lambda *_, **__: None)
    with pytest.raises(RaceError, match="stage"):
        pallas_run(staged_map, np.ones(64, np.float32), block=8, cores=1, subcores=2)
