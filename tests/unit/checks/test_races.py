"""``sanitizers.races``."""

from __future__ import annotations

import pytest

from pytest_pallas import NotApplicableError, RaceError
from pytest_pallas.backends.interpreters import interpret, tpu_interpret
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.deadlock import deadlock
from pytest_pallas.checks.dma import dma
from pytest_pallas.checks.races import races
from pytest_pallas.checks.schedule import schedule

from . import rings


def test_both_accesses_are_named(context):
    with pytest.raises(RaceError) as raised:
        races(context(rings.other(rings.by_dma, read_early=True), rings.BLOCKS))
    [finding] = raised.value.findings
    assert (finding.kernel, finding.program) == ("body", (0,))
    later, earlier = finding.accesses
    assert (later.kind, later.ref, later.copy) == ("read", "buffer", False)
    assert (earlier.kind, earlier.ref, earlier.copy) == ("write", "buffer", True)


@pytest.mark.parametrize("slots", [1, 3])
def test_a_semaphore_that_serves_several_steps(context, slots):
    """The right answer in the plain order; a later copy can satisfy an earlier wait."""
    asked = context(rings.other(rings.gathering, slots=slots), rings.SHARDS, devices=4)
    if slots == 3:
        races(asked)
        return
    with pytest.raises(RaceError) as raised:
        races(asked)
    finding = raised.value.findings[0]
    assert finding.seed == 0
    assert [signal.copy for wait in finding.waits for signal in wait.signals]


def test_a_second_dma_is_not_taken_for_the_one_that_was_waited_for(context):
    with pytest.raises(RaceError, match=r"buffers\[1"):
        races(context(rings.other(rings.prefetching, read_early=True), rings.BLOCKS))


@pytest.mark.parametrize(
    "kernel",
    [rings.by_dma, rings.waiting, rings.prefetching],
    ids=["dma", "semaphore", "two buffers"],
)
def test_a_right_kernel_has_none(context, kernel):
    called = context(kernel, rings.BLOCKS)
    races(called)
    assert sum(called.run_seconds) > 0


def test_a_right_collective_has_none(context):
    races(context(rings.ring, rings.SHARDS, devices=4))


def test_a_kernel_without_anything_asynchronous(context):
    with pytest.raises(NotApplicableError, match="no example starts a DMA"):
        races(context(rings.plain, rings.BLOCKS))


def test_waiting_for_nothing_is_no_error(context):
    """As a barrier over one device does."""
    races(context(rings.other(rings.waiting, signals=0, waits=0), rings.BLOCKS))


@pytest.mark.parametrize("check", [races, deadlock, dma, schedule], ids=lambda each: each.name)
def test_backends_in_which_nothing_happens_at_the_same_time(check):
    assert check.requires_backend(tpu_sim()) is None
    for backend in (interpret(), tpu_interpret()):
        assert check.requires_backend(backend).startswith(f"{backend.name} ")
