"""What is kept of loads, and which one is the first that reads uninitialized memory."""

from __future__ import annotations

import numpy as np
import pytest

from pallas_sim import recorders as loads
from pallas_sim.findings import Owner
from pallas_sim.machine import Machine, Thread
from pallas_sim.recorders import LoadRecorder, RecordedLoad, uninitialized_load

OF = {"copied": False, "owner": Owner(), "line": "k.py:3", "program": (1,), "kernel": "body"}


def load(values, ref="x_ref", **changed):
    values = np.asarray(values)
    return RecordedLoad(
        **{**OF, "ref": ref, "shape": (8,), "left": False, "values": values, **changed}
    )


def test_the_first_one_that_differs():
    nan = np.float32([np.nan, 1])
    before = [load(nan), load([[1, 2], [3, 4]], "a"), load([5], "b")]
    after = [load(nan.copy()), load([[1, 2], [7, 4]], "a"), load([6], "b")]
    finding = uninitialized_load(before, after)
    assert finding is not None
    assert (finding.kind, finding.ref, finding.index) == ("uninitialized", "a", (1, 0))
    assert (finding.line, finding.program, finding.shape) == ("k.py:3", (1,), (8,))
    assert str(finding) == "load from a [8] before it is written in program (1) of body at k.py:3"


@pytest.mark.parametrize("after", [[], [load([1.0])], [load([1.0]), load([2.0])]])
def test_none_of_them(after):
    assert uninitialized_load([load([1.0])], after) is None


@pytest.mark.parametrize(("old", "new"), [(0.0, -0.0), (np.nan, 1.0), (False, True)])
def test_bits_are_compared(old, new):
    finding = uninitialized_load([load(old)], [load(new)])
    assert finding is not None
    assert finding.index == ()


def test_who_read_it():
    there = load([2], copied=True, owner=Owner(device=3))
    finding = uninitialized_load([load([1])], [there])
    assert finding is not None
    assert str(finding).startswith("device 3: copy from x_ref [8] before it is written")


def test_what_is_kept_has_a_limit_and_no_gap(monkeypatch):
    monkeypatch.setattr(loads, "_KEPT_BYTES", 20)
    kept, thread = LoadRecorder(), Thread(Machine())
    for size in (1, 9, 1):
        kept._add("x_ref", thread, "", (size,), np.zeros(size, np.int64))
    assert [each.values.size for each in kept.loads] == [1]
