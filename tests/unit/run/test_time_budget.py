"""The time of a session is shared fairly over the kernels."""

import time
from types import SimpleNamespace

import pytest

from pytest_pallas.budget import ExampleBudget
from pytest_pallas.draw import examples
from pytest_pallas.run import fuzzing
from pytest_pallas.run import fuzzing as example_runner
from pytest_pallas.run import rounds as time_budget
from pytest_pallas.run.fuzzing import Fuzz
from pytest_pallas.run.item import TimeBudget
from pytest_pallas.run.rounds import fuzz_for

WEIGHTS = {"a1": 0.5, "a2": 0.5, "b": 1.0}


def test_kernels_share_alike_and_items_share_a_kernel():
    clock = TimeBudget(60.0, WEIGHTS)
    assert clock.slot("a1") == pytest.approx(15, abs=0.1)
    clock.started -= 15
    assert clock.slot("a2") == pytest.approx(15, abs=0.1)
    clock.started -= 15
    assert clock.slot("b") == pytest.approx(30, abs=0.1)


def test_what_one_leaves_the_others_share():
    clock = TimeBudget(60.0, WEIGHTS)
    clock.slot("a1")
    clock.slot("a2")
    assert clock.slot("b") == pytest.approx(60, abs=0.1)


def test_nothing_is_left_after_the_time():
    clock = TimeBudget(60.0, WEIGHTS)
    clock.started -= 61
    assert clock.slot("b") == 0.0


def test_two_processes_have_twice_the_time():
    clock = TimeBudget(60.0, WEIGHTS, processes=2)
    assert clock.slot("b") == pytest.approx(60, abs=0.1)


def test_an_item_that_does_not_fuzz_takes_nothing():
    assert TimeBudget(60.0, WEIGHTS).slot("other") == 0.0


def fuzz_seconds(strategy, seconds, ask=lambda _: None):
    pulses = []
    what = Fuzz(run=ask, source=examples.ExampleSource(strategy), key="clock")
    started = time.monotonic()
    budget = ExampleBudget.fixed(4, varies=True)
    fuzz_for(what, seconds, seed=0, budget=budget, pulse=lambda: pulses.append(len(what.passed)))
    return what, pulses, time.monotonic() - started


def test_rounds_until_the_time_is_over(monkeypatch):
    from pytest_pallas import strategies as pst

    now = 0.0

    def ask(_):
        nonlocal now
        now += 0.01

    stopped = SimpleNamespace(monotonic=lambda: now)
    for module in (example_runner, fuzzing, time_budget):
        monkeypatch.setattr(module, "time", stopped)
    what, pulses, _ = fuzz_seconds(pst.arrays("m k, k n", around=[8, 16, 32]), 1.0, ask)
    assert pulses[0] == 4
    assert len(what.passed) <= 100
    assert now == pytest.approx(1.0, abs=0.02)


def test_a_strategy_that_has_no_more_ends_the_rounds():
    from hypothesis import strategies as st

    _, pulses, spent = fuzz_seconds(st.tuples(st.integers(0, 3)), 60.0)
    assert pulses[-1] == 4
    assert spent < 30.0
