"""A chip is one declaration, which backends, the simulator and compilers know it by."""

from __future__ import annotations

import dataclasses

import pytest
from pallas_test_support.chip_tables import TABLES, chips_as_before

from pallas_sim import chips as gpus
from pallas_sim import chips as targets
from pallas_sim import chips as tpus
from pallas_sim.chips import add_chip, added_facts, learn, targets_of
from pytest_pallas import DeviceError
from pytest_pallas.compile.cuda import target_config
from pytest_pallas.compile.libtpu import topology

GPU = dataclasses.replace(gpus.GPUS["h100"], device_kind="NVIDIA H20", cores=78)
TPU = dataclasses.replace(tpus.TPUS["v6e"], vmem=2**20)


@pytest.fixture(autouse=True)
def _restored():
    with chips_as_before():
        yield


def test_the_chips_of_a_platform_are_those_that_it_has_facts_of():
    for platform, chips in (("gpu", gpus.GPUS), ("tpu", tpus.TPUS)):
        known = [name for name, target in targets.TARGETS.items() if target.platform == platform]
        assert list(targets_of(platform)) == known == list(chips)


def test_a_gpu_of_ones_own():
    names = targets_of("gpu")
    assert add_chip("h20", GPU).device_kind == "NVIDIA H20"
    assert list(names)[-1] == "h20"
    assert "core_count: 78\n" in target_config("h20")
    assert gpus.attributes("h20")["core_count"] == 78


def test_a_tpu_of_ones_own():
    add_chip("small", TPU)
    assert targets.TARGETS["small"].platform == "tpu"
    assert topology("small", 1) == "small:2x2"


@pytest.mark.parametrize("chip", [GPU, TPU])
def test_another_process_learns_of_it(chip):
    add_chip("mine", chip)
    facts = added_facts("mine")
    assert added_facts("h100") == {}
    for table in TABLES:
        table.pop("mine", None)
    learn("mine", facts)
    learn("h100", {})
    assert (gpus.GPUS | tpus.TPUS)["mine"] == chip
    learn("mine", facts)  # each request says it


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("h100", "a chip named 'h100' already: NVIDIA H100 80GB HBM3"),
        ("all", "cannot be named 'all'"),
        ("a:b", "cannot be named 'a:b'"),
    ],
)
def test_names_that_are_taken(name, says):
    with pytest.raises(DeviceError, match=says):
        add_chip(name, GPU)
