"""Every order of what threads, engines and programs of a GPU do."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax.experimental.pallas import triton as plt
from pallas_test_support.gpu_orders import disagreement

from pallas_sim import explore, order_matters, simulate
from pallas_sim.machine import Machine


@pytest.mark.parametrize("seed", range(300))
def test_all_orders_of_small_programs(seed):
    assert disagreement(seed) == ""
