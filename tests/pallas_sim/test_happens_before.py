"""The order that the monitor claims, compared with all interleavings of random programs."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
from pallas_test_support.order_programs import (
    Operation,
    Program,
    Signal,
    Start,
    Wait,
    claims,
    compare,
    draw,
    draw_locks,
)

from pallas_sim.findings import Owner
from pallas_sim.order import disorder as order_findings
from pallas_sim.order import races as module
from pallas_sim.order.disorder import disorder
from pallas_sim.order.happens_before import happens_before
from pallas_sim.recording import Copy, Event, Semaphore, Started, Touched, Waited

#: A test compares so many programs, each in two runs.
PART = 500


@pytest.mark.parametrize(
    "part", [0, *(pytest.param(part, marks=pytest.mark.slow) for part in range(1, 5))]
)
def test_claims_are_what_holds_in_all_interleavings(part):
    compared = compare(range(part * PART, (part + 1) * PART), runs=2, drawn=draw)
    assert compared.programs > 0.99 * PART
    assert compared.runs == 2 * compared.programs
    weak = {"read, two semaphores"}  # see docs/simulator.md
    assert {kind for kind, verdict in compared.failed if verdict == "weak"} <= weak, compared.failed
    assert not compared.count("wrong"), compared.failed
    assert compared.count("exact", "order") > 50 * PART
    for kind in ("read", "read, two semaphores", "written", "race"):
        assert compared.count("exact", kind) > PART


def test_with_several_waiters_no_claim_is_wrong():
    programs = PART // 2
    drawn = partial(draw, several_waiters=True)
    compared = compare(range(programs), runs=2, drawn=drawn)
    assert compared.runs > 1.5 * programs  # others end in a deadlock
    assert not compared.count("wrong"), compared.failed
    assert compared.count("weak", "order") < 0.02 * compared.count("exact", "order")


def test_what_a_lock_keeps_apart_is_what_no_interleaving_brings_together():
    compared = compare(range(PART // 2), runs=2, drawn=draw_locks)
    assert compared.runs > 300  # others end in a deadlock
    assert not compared.count("wrong") + compared.count("weak", "race"), compared.failed
    assert compared.count("exact", "race") == compared.runs


def claimed(order: list[int], *threads: tuple[Operation, ...]) -> list[list[list[int]]]:
    """What the monitor claims of a run of a program: see ``order_programs.truth``."""
    operations = [each for thread in threads for each in thread]
    copies = tuple(each for each in operations if isinstance(each, Start))
    program = Program(threads, semaphores=3, copies=copies, tokens=0)
    return [each.tolist() for each in claims(program, order)]


def test_clocks_may_fall_when_the_sets_of_racing_increments_are_stable():
    found = claimed(
        [0, 3, 0, 2, 1, 2],
        (Signal(0, 1), Signal(1, 1)),
        (Signal(1, 1),),  # races with the second signal of thread 0
        (Wait(1, 1), Signal(0, 1)),  # so this need not come after thread 0, which the first pass
        (Wait(0, 1),),  # still claims, where it finds what this wait may take
    )
    assert found[3][1] == [0, 0, 0, 1]


def test_a_wait_comes_after_what_each_of_its_cases_comes_after():
    found = claimed(
        [0, 0, 1, 1, 2, 2, 3],
        (Signal(1, 1), Signal(2, 1)),
        (Wait(1, 1), Signal(0, 1)),
        (Wait(2, 1), Signal(0, 1)),
        (Wait(0, 1),),  # takes one of two signals: both come after the first one of thread 0
    )
    assert found[3][1] == [1, 0, 0, 1]


@pytest.mark.parametrize("needed", [1, 2, 3])
def test_a_copy_is_done_if_all_that_may_be_given_is_taken(needed):
    program = (Start(0, 2, sent=1, done=0), Signal(0, 1)), (Wait(0, needed),)
    found = claimed([0, 0, 1], *program)
    done = needed == 3
    assert found[1][1] == [1 + done, 1, done, done]


def test_another_thread_that_may_take_first_proves_nothing():
    found = claimed([0, 1, 2, 3], (Signal(0, 1),), (Wait(0, 1),), (Signal(0, 1),), (Wait(0, 1),))
    assert found[3][1] == [0, 0, 0, 1]


def racing_copies(count: int) -> list[Event]:
    """Device 0 copies into the same memory of device 1 many times, and does not wait for it."""
    source, target = np.zeros(8), np.zeros(8)
    sent, received = Semaphore("sent", "dma"), Semaphore("received", "dma")
    events: list[Event] = []
    for number in range(count):
        point = (number,)
        copy = Copy(
            source, target, ("source", "target"), 64, sent, received, line="k.py:1", program=point
        )
        events += [
            Started(0, copy),
            Waited(0, sent, 64, True, line="k.py:2", program=point),
            Waited(1, received, 64, True, line="k.py:3", program=point),
            Touched(1, target, False, "target", "k.py:4", point),
        ]
    return events


def test_what_races_costs_no_more_than_it_is_long(monkeypatch):
    """After the last finding nothing is compared, and the waits of a semaphore are listed once."""
    calls = dict.fromkeys(("conflict", "_waits_on", "_signal_of"), 0)

    def count(module, name):
        function = getattr(module, name)

        def counted(*args):
            calls[name] += 1
            return function(*args)

        monkeypatch.setattr(module, name, counted)

    count(module, "conflict")
    count(order_findings, "_waits_on")
    count(order_findings, "_signal_of")
    spent = []
    for copies in (100, 200):
        calls |= dict.fromkeys(calls, 0)
        owners = [Owner(device=0), Owner(device=1)]
        found = disorder(racing_copies(copies), owners, seed=0)
        assert len({finding.key for finding in found}) == len(found) > 1
        spent.append(dict(calls))
        assert len(happens_before(racing_copies(copies), owners).violations) == module.MOST
    assert spent[0]["_waits_on"] == spent[1]["_waits_on"] <= 2
    assert spent[1]["conflict"] <= 2 * spent[0]["conflict"]
    assert spent[1]["_signal_of"] <= 2 * spent[0]["_signal_of"] + 2
