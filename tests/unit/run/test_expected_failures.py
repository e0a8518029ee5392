"""Which failures of a spec are expected on a backend."""

from __future__ import annotations

import pytest

from pallas_sim.chips import TARGETS
from pytest_pallas.backends.hardware import gpu, tpu
from pytest_pallas.backends.simulators import gpu_sim, tpu_sim
from pytest_pallas.checks.forward import forward, jit
from pytest_pallas.run.backends import expected_failure
from pytest_pallas.spec import ExpectedFailure, KernelSpec
from pytest_pallas.strategies import arrays


def failure(reason="of the simulator", **rest):
    return ExpectedFailure(reason=reason, jax="0.12", **rest)


def reason_on(backend, xfail, check=forward):
    def double(x):
        return 2 * x

    spec = KernelSpec(
        name="double",
        kernel={"gpu": double, "tpu": double},
        reference=double,
        inputs=arrays("n", dims={"n": 8}),
        xfail=xfail,
    )
    found = expected_failure(spec, backend, check)
    return None if found is None else found.reason


H200, B200 = TARGETS["h200"], TARGETS["b200"]


@pytest.mark.parametrize(
    ("backend", "key", "held"),
    [
        (gpu(), "gpu-sim", True),
        (gpu(H200), "gpu-sim", True),
        (gpu(B200), "gpu-sim:b200", True),
        (gpu(H200), "gpu-sim:b200", False),
        (gpu(), "gpu-sim:b200", False),
        (gpu(), "tpu-sim", False),
        (tpu(), "tpu-sim", True),
        (tpu(TARGETS["v6e"]), "tpu-sim:v6e", True),
        (gpu_sim(), "gpu", False),
        (tpu_sim(), "tpu", False),
        (gpu(), "gpu-interpret", False),
    ],
)
def test_a_failure_of_a_simulator_is_expected_on_its_hardware(backend, key, held):
    assert reason_on(backend, {key: failure()}) == ("of the simulator" if held else None)


def test_what_only_the_simulator_sees_is_not_expected_on_hardware():
    seen = {"gpu-sim": failure(hardware=False)}
    assert reason_on(gpu(), seen) is None
    assert reason_on(gpu_sim(), seen) == "of the simulator"


def test_the_failure_of_the_hardware_itself_goes_first():
    both = {"gpu-sim": failure(), "gpu": failure("of the chip", checks=("forward",))}
    assert reason_on(gpu(), both) == "of the chip"
    assert reason_on(gpu(), both, jit) == "of the simulator"
