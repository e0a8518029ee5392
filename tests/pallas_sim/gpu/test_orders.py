"""Every order of what threads, engines and programs of a GPU do."""

from __future__ import annotations

import pytest
from pallas_test_support.gpu_orders import disagreement


@pytest.mark.parametrize("seed", range(300))
def test_all_orders_of_small_programs(seed):
    assert disagreement(seed) == ""
