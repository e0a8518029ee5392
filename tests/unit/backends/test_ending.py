"""Time limits of functions in this thread, and exceptions that would end the process."""

from __future__ import annotations

import gc
import signal
import sys
import time

import pytest

from pallas_sim.errors import SimulationLimitError
from pytest_pallas.backends.ending import (
    OverdueError,
    UncaughtError,
    ending,
    ending_whole,
    noting_interrupts,
    uncaught,
)


@pytest.fixture(autouse=True)
def _interruptible():
    """As in a terminal: a shell ignores interrupts of what it runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_a_limit_ends_what_sleeps_and_says_where():
    with pytest.raises(SimulationLimitError, match=r"test_ending\.py") as caught, ending(0.05):
        time.sleep(1000)
    assert caught.value.timed_out


def test_code_that_catches_the_limit_is_ended_again(monkeypatch):
    monkeypatch.setattr("pytest_pallas.backends.ending._AGAIN", 0.05)
    caught = []

    @ending(0.05)
    def stubborn():
        while len(caught) < 2:
            try:
                time.sleep(1000)
            except SimulationLimitError as error:
                caught.append(error)
        time.sleep(1000)

    with pytest.raises(SimulationLimitError):
        stubborn()
    assert len(caught) == 2


def _busy(seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        pass


class _SlowToDelete:
    def __del__(self):
        _busy(0.2)


def _finalized():
    _SlowToDelete()


def _collected():
    def slow(phase, _):
        if phase == "start":
            _busy(0.2)

    gc.callbacks.append(slow)
    try:
        gc.collect()
    finally:
        gc.callbacks.remove(slow)


@pytest.mark.parametrize("begins", [_finalized, _collected])
def test_the_limit_waits_where_an_exception_would_be_lost(begins, monkeypatch):
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)

    @ending(0.05)
    def late():
        begins()
        time.sleep(1000)

    with pytest.raises(SimulationLimitError):
        late()
    assert lost == []


def test_the_limit_of_a_whole_step_passes_through_those_of_its_calls():
    def calls():
        for _ in range(1000):
            try:
                with ending(30.0):
                    time.sleep(30.0)
            except Exception:  # as where each of several calls may fail
                continue

    with pytest.raises(OverdueError, match=r"test_ending\.py"), ending_whole(0.05):
        calls()


def test_no_alarm_is_left():
    before = signal.getsignal(signal.SIGALRM)
    with ending_whole(30.0), ending(20.0):
        pass
    assert signal.getsignal(signal.SIGALRM) is before
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_somebody_is_told_while_it_waits():
    told = []
    with pytest.raises(OverdueError), ending_whole(0.2, lambda: told.append(1), 0.05):
        time.sleep(1000)
    assert told == [1]


class OwnError(BaseException):
    """Of a function."""


@pytest.mark.parametrize("raised", [SystemExit(3), OwnError("no"), KeyboardInterrupt()])
def test_what_would_end_the_process_becomes_an_error(raised):
    with pytest.raises(UncaughtError) as caught, noting_interrupts(), uncaught():
        raise raised
    assert caught.value.raised is raised


def test_an_interrupt_where_the_terminal_cannot_interrupt_is_of_the_function():
    """A shell runs what is in the background so."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(UncaughtError), noting_interrupts(), uncaught():
            raise KeyboardInterrupt
    finally:
        signal.signal(signal.SIGINT, before)


def test_ones_own_interrupt_goes_through():
    @uncaught()
    def interrupted():
        signal.raise_signal(signal.SIGINT)
        time.sleep(1000)

    with pytest.raises(KeyboardInterrupt), noting_interrupts():
        interrupted()


def test_without_knowing_the_signals_an_interrupt_goes_through():
    with pytest.raises(KeyboardInterrupt), uncaught():
        raise KeyboardInterrupt


def test_what_pytest_raises_goes_through():
    with pytest.raises(pytest.skip.Exception), noting_interrupts(), uncaught():
        pytest.skip("no")


def test_the_handler_of_interrupts_is_restored():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(UncaughtError), noting_interrupts(), uncaught():
        sys.exit()
    assert signal.getsignal(signal.SIGINT) is before
