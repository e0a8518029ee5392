"""``sanitizers.races``."""

from __future__ import annotations

import re

import pytest

from pytest_pallas.errors import NotApplicableError, RaceError
from pytest_pallas.sanitizers.races import races

from . import rings


def test_both_accesses_are_named(trial):
    with pytest.raises(RaceError) as raised:
        races(trial(rings.other(rings.by_dma, read_early=True), rings.BLOCKS))
    line = r"of buffer of device 0, \S+rings\.py:\d+:\d+ \(by_dma\.<locals>\.body\), program \(0,\)"
    text = str(raised.value)
    assert re.search(f"write {line}, by a DMA", text)
    assert re.search(f"read {line}", text)


def test_a_second_dma_is_not_taken_for_the_one_that_was_waited_for(trial):
    """Of JAX's own clocks, all DMAs of a device share one entry."""
    with pytest.raises(RaceError, match=r"buffers\[1"):
        races(trial(rings.other(rings.prefetching, read_early=True), rings.BLOCKS))


@pytest.mark.parametrize(
    "kernel",
    [rings.by_dma, rings.waiting, rings.prefetching],
    ids=["dma", "semaphore", "two buffers"],
)
def test_a_right_kernel_has_none(trial, kernel):
    assert races(trial(kernel, rings.BLOCKS)).seconds > 0


def test_a_right_collective_has_none(trial):
    races(trial(rings.ring, rings.SHARDS, devices=4))


def test_a_kernel_without_anything_asynchronous(trial):
    with pytest.raises(NotApplicableError, match="start a DMA"):
        races(trial(rings.plain, rings.BLOCKS))


def test_waiting_for_nothing_is_no_error(trial):
    """As a barrier over one device does; the detector has no clock for it."""
    races(trial(rings.other(rings.waiting, signals=0, waits=0), rings.BLOCKS))
