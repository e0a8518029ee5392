"""``sanitizers.races``."""

from __future__ import annotations

import linecache
import re
from dataclasses import replace

import pytest
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pallas_sim import Exploration
from pallas_sim.errors import DeadlockError, KernelError
from pallas_sim.findings import read
from pytest_pallas import NotApplicableError, RaceError
from pytest_pallas.backends.interpreters import interpret, tpu_interpret
from pytest_pallas.backends.protocol import Schedule
from pytest_pallas.backends.simulators import Simulator, tpu_sim
from pytest_pallas.checks.export import export
from pytest_pallas.checks.schedule import deadlock, dma, races, schedule
from pytest_pallas.checks.verdict import run_check
from pytest_pallas.errors import facts_of
from pytest_pallas.record import Orders
from pytest_pallas.report.pictures import sources_of

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


def test_a_run_that_a_cache_has_counts_too(context):
    """The number of examples follows what they cost, whatever ran before in the same process."""
    called = context(rings.waiting, rings.BLOCKS)
    counts = []
    for _ in range(2):
        called.run_steps.clear()
        races(called)
        counts.append(list(called.run_steps))
    assert counts[0] == counts[1]
    assert sum(counts[0]) > 0


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


_EXECUTED = """
def body(x, o, buffer, sem):
    copy = pltpu.make_async_copy(x, buffer, sem)
    copy.start()
    o[...] = buffer[...]
    copy.wait()

def kernel(x, body=body):
    any_memory, spec = pl.BlockSpec(memory_space=pl.ANY), pltpu.VMEM(x.shape, x.dtype)
    scratch = [spec, pltpu.SemaphoreType.DMA]
    return pl.pallas_call(body, in_specs=[any_memory], out_shape=x, scratch_shapes=scratch)(x)
"""


@pytest.mark.parametrize("name", ["<string>", "<made-1>", "<ipython-input-1-ab>"])
@pytest.mark.parametrize("whole", [True, False], ids=["kernel", "body"])
def test_code_that_exec_made_is_at_its_caller(context, monkeypatch, name, whole):
    """The function's name follows, and its lines are shown where ``linecache`` knows them."""
    lines = _EXECUTED.splitlines(keepends=True)
    monkeypatch.setitem(linecache.cache, name, (len(_EXECUTED), None, lines, name))
    names = {"pl": pl, "pltpu": pltpu}
    exec(compile(_EXECUTED, name, "exec"), names)
    kernel = names["kernel"]
    if not whole:
        kernel = rings.executed(names["body"])
    with pytest.raises(RaceError) as raised:
        races(context(kernel, rings.BLOCKS[0]))
    (finding,) = raised.value.findings
    inside = "line 5" if name == "<string>" else f"{name}:5"
    file = re.escape(__file__ if whole else rings.__file__)
    assert re.fullmatch(rf"{file}:\d+ \(in body, {inside}\)", finding.line)
    at = read(finding.line)
    shown = "races(" if whole else "return pl.pallas_call("
    assert shown in at.text if name == "<string>" else at == (name, 5)
    (source,) = sources_of([finding.line])
    assert source["file"] == at.file


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
    first = replace(called.runs.get(called, Schedule()), every_order=False)
    late = DeadlockError("blocked")

    class Late:
        def get(self, _, schedule):
            return replace(first, error=late if schedule.seed == 1 else None)

    with pytest.raises(DeadlockError, match=r"blocked\n  with seed 1"):
        races(replace(called, runs=Late()))


def explored(called, exploration, monkeypatch):
    """Let the simulator have explored a call."""
    monkeypatch.setattr(Simulator, "explore", lambda *_: exploration)
    return called


def test_a_race_that_no_run_showed_is_unconfirmed(context, monkeypatch):
    found = Exploration(verdict="wrong", runs=20, classes=9)
    asked = explored(context(rings.by_dma, rings.BLOCKS), found, monkeypatch)
    asked = replace(asked, kernel=rings.other(rings.by_dma, read_early=True))
    with pytest.raises(RaceError, match="witness   unconfirmed: no run showed it") as raised:
        run_check(races, asked, "by_dma")
    assert facts_of(raised.value).schedule is None
    assert asked.orders == [Orders(wrong=1, unconfirmed=1, runs=20, classes=9)]


def test_a_race_that_no_order_has_is_withdrawn(context, monkeypatch):
    found = Exploration(verdict="proved", runs=7, classes=5)
    asked = explored(context(rings.by_dma, rings.BLOCKS), found, monkeypatch)
    asked = replace(asked, kernel=rings.other(rings.by_dma, read_early=True))
    result = run_check(races, asked, "by_dma")
    assert [str(note) for note in result.outcome.notes] == [
        "a race that the proof of order reported is withdrawn: 7 runs had every order, and the "
        "accesses are ordered in all of them"
    ]
    assert asked.orders == [Orders(proved=1, runs=7, classes=5)]


def test_a_race_of_another_order_only(context, monkeypatch):
    """The proof of order finds it in the events of an order that only exploring has."""
    wrong = context(rings.other(rings.by_dma, read_early=True), rings.BLOCKS)
    findings = wrong.runs.get(wrong, Schedule()).error.findings
    found = Exploration(verdict="wrong", runs=3, classes=2, findings=findings)
    asked = explored(context(rings.by_dma, rings.BLOCKS), found, monkeypatch)
    first = replace(asked.runs.get(asked, Schedule()), every_order=False)
    monkeypatch.setattr(type(asked.runs), "get", lambda *_: first)
    with pytest.raises(RaceError, match="unconfirmed"):
        run_check(races, asked, "by_dma")
