"""Findings and explanations: as text, as JSON, and on errors that cross processes."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace

import pytest

from pallas_sim.errors import BoundsError, DeadlockError, Explanation, Fact
from pallas_sim.findings import Access, Finding, Owner, Signal, Wait
from pytest_pallas import DmaError, RaceError
from pytest_pallas.decoding import decode

RACE = Finding(
    kind="race",
    message="race on buffer: nothing orders two accesses",
    kernel="ring",
    ref="buffer",
    accesses=(
        Access(
            kind="write",
            ref="buffer",
            owner=Owner(device=0, core=1),
            home=1,
            index=((0, 8), (0, 128)),
            line="ring.py:7",
            program=(2, 0),
            copy=True,
        ),
        Access(kind="read", ref="buffer", owner=Owner(device=1), line="ring.py:9"),
    ),
    waits=(
        Wait(
            owner=Owner(device=1),
            on="arrived",
            needed=4096,
            had=4096,
            unit="bytes",
            signals=(Signal(owner=Owner(), amount=4096, line="ring.py:7", copy=True),),
        ),
    ),
)

DEADLOCK = Finding(
    kind="deadlock",
    message="deadlock: every core is blocked",
    waits=(
        Wait(owner=Owner(), on="arrived", needed=4096, unit="bytes", line="k.py:3", program=(1,)),
        Wait(owner=Owner(device=1), on="", needed=2, had=1, unit="arrivals"),
        Wait(owner=Owner(device=2), on="the other devices", line="the start of the kernel"),
        Wait(owner=Owner(device=3), on="", line="the end of the kernel"),
    ),
)

LEFTOVER = Finding(
    kind="leftover",
    message="semaphore `sent` is 4 and not 0",
    ref="sent",
    index=(1, 2),
    owners=tuple(Owner(device=device) for device in range(6)),
)


def test_text_of_a_race():
    assert str(RACE).splitlines() == [
        "race on buffer: nothing orders two accesses in ring",
        "  write of buffer[0:8, 0:128] on device 1 by a copy of device 0, core 1, at ring.py:7, "
        "program (2, 0)",
        "  read of buffer by device 1, at ring.py:9",
        "  the wait on `arrived` can be satisfied by 4096 bytes of the copy of device 0, at "
        "ring.py:7",
    ]


def test_text_of_a_deadlock():
    assert str(DEADLOCK).splitlines() == [
        "deadlock: every core is blocked",
        "  device 0 is blocked on semaphore `arrived`: needs 4096 bytes, has 0, at k.py:3, "
        "program (1)",
        "  device 1 is blocked at a barrier: needs 2 arrivals, has 1",
        "  device 2 waits for the other devices at the start of the kernel",
        "  device 3 is at the end of the kernel",
    ]


def test_owners_are_named_first():
    assert str(LEFTOVER).startswith("device 0, device 1, device 2, device 3 and 2 more: semaphore")


def test_an_error_names_the_first_findings():
    many = [Finding(kind="unwaited", message=f"copy {number}") for number in range(6)]
    assert str(DmaError.of(*many)).splitlines()[-2:] == ["  copy 3", "  and 2 more"]


@pytest.mark.parametrize("finding", [RACE, DEADLOCK, LEFTOVER], ids=lambda each: each.kind)
def test_round_trip_through_json(finding):
    assert decode(Finding, json.loads(json.dumps(finding.to_json()))) == finding


@pytest.mark.parametrize(("kind", "finding"), [(RaceError, RACE), (DeadlockError, DEADLOCK)])
def test_errors_keep_their_findings_in_another_process(kind, finding):
    error = pickle.loads(pickle.dumps(kind.of(finding)))
    assert type(error) is kind
    assert (str(error), error.findings) == (str(finding), (finding,))


def test_another_message_keeps_the_findings():
    error = RaceError.of(RACE)
    error.explanation = Explanation("of the first message")
    again = error.with_message("under another schedule")
    assert (str(again), again.findings) == ("under another schedule", (RACE,))
    assert again.explanation is None


def test_the_finding_of_an_access_beyond_an_edge_is_one_of_its_findings():
    error = BoundsError("beyond")
    assert error.finding is None
    error.finding = LEFTOVER
    assert error.findings == (LEFTOVER,)
    assert pickle.loads(pickle.dumps(error)).finding == LEFTOVER


EXPLANATION = Explanation(
    "wrong in 2 elements", ("  more of it",), (Fact("error", "3 ulps\n(rounding?)"),)
)


def test_text_of_an_explanation():
    assert str(EXPLANATION).splitlines() == [
        "wrong in 2 elements",
        "  more of it",
        "  error     3 ulps",
        "            (rounding?)",
    ]
    under = EXPLANATION.under("memory is read")
    assert str(under) == f"memory is read\n{EXPLANATION}"


def test_explanations_survive_json():
    plain = json.loads(json.dumps(EXPLANATION.to_json()))
    assert decode(Explanation, plain) == EXPLANATION


def test_which_of_several_copies_and_what_they_share():
    copy = replace(RACE.accesses[0], step=2, steps=3)
    first, second = (
        Signal(owner=Owner(), amount=4096, line="ring.py:7", copy=True, step=step, steps=3)
        for step in (1, 2)
    )
    wait = replace(RACE.waits[0], signals=(first, second), copies=3)
    shared = replace(RACE, accesses=(copy, RACE.accesses[1]), waits=(wait,))
    assert str(shared).splitlines()[1:] == [
        "  write of buffer[0:8, 0:128] on device 1 by a copy of device 0, core 1 (copy 2 of 3), at "
        "ring.py:7, program (2, 0)",
        "  read of buffer by device 1, at ring.py:9",
        "  the wait on `arrived` can be satisfied by 4096 bytes of the copy of device 0 (copy 1 of "
        "3), at ring.py:7",
        "  the wait on `arrived` can be satisfied by 4096 bytes of the copy of device 0 (copy 2 of "
        "3), at ring.py:7",
        "  `arrived` on device 1 serves 3 copies, and a wait cannot tell which of them is done: "
        "give each step a semaphore of its own, or let the sender wait for the receiver",
    ]
    assert decode(Finding, json.loads(json.dumps(shared.to_json()))) == shared
