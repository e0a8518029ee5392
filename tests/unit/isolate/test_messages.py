"""Messages survive the way between processes."""

from __future__ import annotations

import threading

from pytest_pallas.isolate.messages import StepNote, WorkerReply, pickled, unpickled


def test_a_note_survives_its_encoding():
    note = StepNote(step="a kernel", limit=5.0, drawn=[("drawn", "m=1")], running=["k"])
    assert StepNote.decode(note.encode()) == note
    assert StepNote.decode(b"") is None


def test_what_cannot_be_pickled_becomes_its_repr():
    reports = [{"user_properties": [("lock", threading.Lock()), ("n", 1)], "longrepr": (1, "a")}]
    [report] = unpickled(pickled(WorkerReply(reports=reports))).reports
    assert report["longrepr"] == (1, "a")
    [(_, lock), n] = report["user_properties"]
    assert "lock" in lock
    assert n == ("n", 1)
