"""What the kernels of two cores refuse, and that the barrier is needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu
from pallas_test_support.operands import f32, refuses

from pytest_pallas import RaceError
from reference_kernels.refs import sum_on_cores, swap_cores


@pytest.mark.parametrize("kernel", [swap_cores, sum_on_cores])
def test_array(kernel: Any) -> None:
    refuses(lambda: kernel(f32(3, 4)), "x must have the shape (p, m, n)", "(3, 4)")
    refuses(lambda: kernel(f32(2, 0, 4)), "x must not be empty", "(2, 0, 4)")


def test_one_matrix_cannot_be_divided() -> None:
    refuses(lambda: swap_cores(f32(1, 3, 4)), "x must have at least 2 matrices", "has 1")


def test_what_is_added() -> None:
    integers = np.zeros((2, 3, 4), np.int32)
    refuses(lambda: sum_on_cores(integers), "x must have a floating dtype", "int32")


@pytest.mark.pallas(backends=["tpu-sim:v5p"])
@pytest.mark.parametrize("kernel", [swap_cores, sum_on_cores])
def test_without_the_barrier_there_is_a_race(
    pallas_run: Any, kernel: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pltpu, "core_barrier", lambda *_, **__: None)
    with pytest.raises(RaceError, match="swap_cores"):
        pallas_run(kernel, np.ones((2, 8, 128), np.float32))
