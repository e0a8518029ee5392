"""``sanitizers.schedule``, and which schedules there are."""

from __future__ import annotations

import pytest

from pallas_sim.chips import TARGETS
from pytest_pallas import NotApplicableError
from pytest_pallas.backends.protocol import Schedule
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.schedule import Runs, schedule, under_schedules

from . import rings


def failures(finding):
    return [comparison for comparison in finding.comparisons if not comparison.passed]


def test_programs_that_need_their_order(context):
    kernel = rings.other(rings.carried, semantics="parallel")
    found = failures(schedule(context(kernel, rings.BLOCKS)))
    assert any("seed 1 of the schedule" in each.message for each in found)
    assert any("divided over 2 cores" in each.message for each in found)


@pytest.mark.parametrize(
    ("kernel", "devices"), [(rings.by_dma, 1), (rings.ring, 4)], ids=["dma", "ring"]
)
def test_a_right_kernel_gives_the_same_bits(context, kernel, devices):
    x = rings.SHARDS if devices > 1 else rings.BLOCKS
    finding = schedule(context(kernel, x, devices=devices))
    assert finding.comparisons
    assert not failures(finding)


def test_one_order_only(context):
    with pytest.raises(NotApplicableError):
        schedule(context(rings.carried, rings.BLOCKS))


@pytest.mark.parametrize(("chip", "cores"), [("v5p", {1, 2}), ("v6e", {1})])
def test_as_many_cores_as_the_chip_has(context, chip, cores):
    kernel = rings.other(rings.carried, semantics="parallel")
    asked = context(kernel, rings.BLOCKS, backend=tpu_sim(TARGETS[chip]))
    assert {each.cores for each, _ in under_schedules(asked)} == cores


def test_runs_are_shared(context):
    asked = context(rings.by_dma, rings.BLOCKS)
    first = [outcome for _, outcome in under_schedules(asked)]
    assert [outcome for _, outcome in under_schedules(asked)] == first
    again = Runs().get(asked, Schedule())
    assert again is not first[0]
