"""``sanitizers.schedule``, and which schedules there are."""

from __future__ import annotations

import pytest

from pytest_pallas.backends.interpreters import tpu_interpret
from pytest_pallas.backends.schedules import Schedule
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.devices.targets import TARGETS
from pytest_pallas.errors import NotApplicableError
from pytest_pallas.sanitizers.runs import Runs, under_schedules
from pytest_pallas.sanitizers.schedule import schedule

from . import rings


def failures(finding):
    return [comparison for comparison in finding.comparisons if not comparison.passed]


BOTH = pytest.mark.parametrize("make", [tpu_sim, tpu_interpret], ids=["tpu-sim", "tpu-interpret"])


@BOTH
def test_programs_that_need_their_order(trial, make):
    kernel = rings.other(rings.carried, semantics="parallel")
    found = failures(schedule(trial(kernel, rings.BLOCKS, backend=make())))
    assert any("seed 1 of the schedule" in each.message for each in found)
    assert any("divided over 2 cores" in each.message for each in found)


@pytest.mark.parametrize(
    ("kernel", "devices"), [(rings.by_dma, 1), (rings.ring, 4)], ids=["dma", "ring"]
)
def test_a_right_kernel_gives_the_same_bits(on_both, kernel, devices):
    x = rings.SHARDS if devices > 1 else rings.BLOCKS
    finding = schedule(on_both(kernel, x, devices=devices))
    assert finding.comparisons
    assert not failures(finding)


@BOTH
def test_one_order_only(trial, make):
    with pytest.raises(NotApplicableError):
        schedule(trial(rings.carried, rings.BLOCKS, backend=make()))


@BOTH
@pytest.mark.parametrize(("chip", "cores"), [("v5p", {1, 2}), ("v6e", {1})])
def test_as_many_cores_as_the_chip_has(trial, make, chip, cores):
    kernel = rings.other(rings.carried, semantics="parallel")
    asked = trial(kernel, rings.BLOCKS, backend=make(TARGETS[chip]))
    assert {each.cores for each, _ in under_schedules(asked)} == cores


def test_runs_are_shared(trial, monkeypatch):
    asked = trial(rings.by_dma, rings.BLOCKS)
    first = [outcome for _, outcome in under_schedules(asked)]
    assert [outcome for _, outcome in under_schedules(asked)] == first
    monkeypatch.setattr(asked.runs, "most", 1)
    again = Runs().get(asked, Schedule())
    assert again is not first[0]
