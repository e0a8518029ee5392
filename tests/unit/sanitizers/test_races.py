"""``sanitizers.races``."""

from __future__ import annotations

import re

import pytest

from pytest_pallas.backends.interpreters import interpret, tpu_interpret
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.errors import NotApplicableError, RaceError
from pytest_pallas.sanitizers.deadlock import CHECK as DEADLOCK
from pytest_pallas.sanitizers.dma import CHECK as DMA
from pytest_pallas.sanitizers.races import CHECK as RACES
from pytest_pallas.sanitizers.races import races
from pytest_pallas.sanitizers.schedule import CHECK as SCHEDULE

from . import rings


def test_both_accesses_are_named(trial):
    with pytest.raises(RaceError) as raised:
        races(trial(rings.other(rings.by_dma, read_early=True), rings.BLOCKS))
    at = r"device 0, at \S+rings\.py:\d+:\d+ \(by_dma\.<locals>\.body\), program \(0\)"
    text = str(raised.value)
    assert re.search(f"write of buffer by a copy of {at}", text)
    assert re.search(f"read of buffer by {at}", text)
    [finding] = raised.value.findings
    assert [access.copy for access in finding.accesses] == [True, False]


def test_both_accesses_are_named_by_the_simulator(simulated):
    with pytest.raises(RaceError) as raised:
        races(simulated(rings.other(rings.by_dma, read_early=True), rings.BLOCKS))
    [finding] = raised.value.findings
    assert (finding.kernel, finding.program) == ("body", (0,))
    later, earlier = finding.accesses
    assert (later.kind, later.ref, later.copy) == ("read", "buffer", False)
    assert (earlier.kind, earlier.ref, earlier.copy) == ("write", "buffer", True)


@pytest.mark.parametrize("slots", [1, 3])
def test_a_semaphore_that_serves_several_steps(simulated, slots):
    """The right answer in the plain order; a later copy can satisfy an earlier wait."""
    asked = simulated(rings.other(rings.gathering, slots=slots), rings.SHARDS, devices=4)
    if slots == 3:
        races(asked)
        return
    with pytest.raises(RaceError) as raised:
        races(asked)
    finding = raised.value.findings[0]
    assert finding.seed == 0
    assert [signal.copy for wait in finding.waits for signal in wait.signals]


def test_a_second_dma_is_not_taken_for_the_one_that_was_waited_for(on_both):
    """Of JAX's own clocks, all DMAs of a device share one entry."""
    with pytest.raises(RaceError, match=r"buffers\[1"):
        races(on_both(rings.other(rings.prefetching, read_early=True), rings.BLOCKS))


@pytest.mark.parametrize(
    "kernel",
    [rings.by_dma, rings.waiting, rings.prefetching],
    ids=["dma", "semaphore", "two buffers"],
)
def test_a_right_kernel_has_none(on_both, kernel):
    assert races(on_both(kernel, rings.BLOCKS)).seconds > 0


def test_a_right_collective_has_none(on_both):
    races(on_both(rings.ring, rings.SHARDS, devices=4))


def test_a_kernel_without_anything_asynchronous(on_both):
    with pytest.raises(NotApplicableError, match="no example starts a DMA"):
        races(on_both(rings.plain, rings.BLOCKS))


def test_waiting_for_nothing_is_no_error(on_both):
    """As a barrier over one device does; JAX's detector has no clock for it."""
    races(on_both(rings.other(rings.waiting, signals=0, waits=0), rings.BLOCKS))


@pytest.mark.parametrize("check", [RACES, DEADLOCK, DMA, SCHEDULE], ids=lambda each: each.name)
def test_backends_in_which_nothing_happens_at_the_same_time(check):
    assert check.requires_backend(tpu_sim()) is None
    assert check.requires_backend(tpu_interpret()) is None
    assert check.requires_backend(interpret()).startswith("interpret ")
