"""``sanitizers.races``."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pallas_sim.errors import DeadlockError, KernelError
from pytest_pallas import NotApplicableError, RaceError
from pytest_pallas.backends.interpreters import interpret, tpu_interpret
from pytest_pallas.backends.protocol import Schedule
from pytest_pallas.backends.simulators import tpu_sim
from pytest_pallas.checks.deadlock import deadlock
from pytest_pallas.checks.dma import dma
from pytest_pallas.checks.export import export
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


def _raising(x):
    raise ValueError("too small")


@pytest.mark.parametrize(
    "check", [races, deadlock, dma, schedule, export], ids=lambda check: check.name
)
def test_a_kernel_that_raises_fails_each_check(context, check):
    """Another check need not run, so none is referred to."""
    with pytest.raises(KernelError, match="the kernel raised ValueError: too small"):
        check(context(_raising, rings.BLOCKS))


@pytest.mark.parametrize("check", [races, schedule], ids=lambda check: check.name)
@pytest.mark.parametrize("kernel", [rings.waiting, rings.ring], ids=["alone", "ring"])
def test_a_deadlock_fails_checks_of_other_errors(context, check, kernel):
    devices = 4 if kernel is rings.ring else 1
    x = rings.SHARDS if devices > 1 else rings.BLOCKS
    with pytest.raises(DeadlockError):
        check(context(rings.other(kernel, waits=2), x, devices=devices))


def test_a_deadlock_under_another_schedule_only(context):
    """The default schedule is right; the error of a later one is raised after the last."""
    called = context(rings.by_dma, rings.BLOCKS)
    first = called.runs.get(called, Schedule())
    late = DeadlockError("blocked")

    class Late:
        def get(self, _, schedule):
            return replace(first, error=late if schedule.seed == 1 else None)

    with pytest.raises(DeadlockError, match=r"blocked\n  with seed 1"):
        races(replace(called, runs=Late()))
