"""The order that the monitor claims, compared with all interleavings of random programs."""

from __future__ import annotations

import pytest
from order_programs import (
    Program,
    Signal,
    Start,
    Wait,
    claims,
    compare,
    reachable,
    truth,
)

#: A test compares so many programs, each in two runs.
PART = 500


@pytest.mark.parametrize("part", range(5))
def test_claims_are_what_holds_in_all_interleavings(part):
    compared = compare(range(part * PART, (part + 1) * PART), runs=2)
    assert compared.programs > 0.99 * PART
    assert compared.runs == 2 * compared.programs
    weak = {"read, two semaphores"}  # see docs/simulator.md
    assert {kind for kind, verdict in compared.failed if verdict == "weak"} <= weak, compared.failed
    assert not compared.count("wrong"), compared.failed
    assert compared.count("exact", "order") > 50 * PART
    for kind in ("read", "read, two semaphores", "written", "race"):
        assert compared.count("exact", kind) > PART


def test_with_several_waiters_no_claim_is_wrong():
    compared = compare(range(PART), runs=2, several_waiters=True)
    assert compared.runs > 1.5 * PART  # others end in a deadlock
    assert not compared.count("wrong"), compared.failed
    assert compared.count("weak", "order") < 0.02 * compared.count("exact", "order")
