"""Backends that run or compile for a chip: what a function asks about its device is the chip's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

from pallas_sim.chips import TARGETS
from pytest_pallas.backends.interpreters import interpret, tpu_interpret
from pytest_pallas.backends.protocol import Call
from pytest_pallas.backends.simulators import gpu_sim, tpu_sim

BACKENDS = {
    "tpu-sim:v5e": tpu_sim(TARGETS["v5e"]),
    "tpu-sim:v6e": tpu_sim(TARGETS["v6e"]),
    "tpu-interpret:v5e": tpu_interpret(TARGETS["v5e"]),
    "interpret:v6e": interpret(TARGETS["v6e"]),
    "gpu-sim:h200": gpu_sim(TARGETS["h200"]),
    "gpu-sim:b200": gpu_sim(TARGETS["b200"]),
}


def body(x_ref, o_ref):
    o_ref[...] = x_ref[...] * 2


def scaled(x):
    """By a number that the chip decides; without a chip there is no kernel."""
    device = jax.devices()[0]
    if device.platform == "cpu" or jax.default_backend() == "cpu":
        return x
    length = len(device.device_kind) + device.memory_stats()["bytes_limit"] % 7
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x) * length


@pytest.mark.parametrize("name", BACKENDS)
def test_the_branch_for_the_chip_runs(name):
    """Each backend has its own, also where another one has traced the function before."""
    x = jnp.ones((8, 128), jnp.float32)
    for other in reversed(BACKENDS.values()):
        other.run(Call(function=scaled, args=(x,)))
    outcome = BACKENDS[name].run(Call(function=scaled, args=(x,)))
    assert outcome.error is None
    backend = BACKENDS[name]
    with backend.context():
        device = jax.devices()[0]
        length = len(device.device_kind) + device.memory_stats()["bytes_limit"] % 7
    assert len(TARGETS[name.partition(":")[2]].device_kind) <= length
    np.testing.assert_array_equal(outcome.values, 2 * length * np.ones((8, 128)))
