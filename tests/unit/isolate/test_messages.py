"""Messages survive the way between processes."""

from __future__ import annotations

import threading

from pytest_pallas.isolate.messages import StepNote, WorkerReply, decoded, encoded


def test_a_note_survives_its_encoding():
    note = StepNote(
        step="a kernel",
        limit=5.0,
        choices=[("dim", "m", "1")],
        drawn=[("drawn", "m=1")],
        running=["k"],
    )
    assert StepNote.decode(note.encode()) == note
    assert StepNote.decode(b"") is None


def test_what_json_does_not_know_becomes_its_repr():
    lock, text = threading.Lock(), "50%\r100%\n::error\n"
    reports = [{"properties": [("lock", lock), ("n", 1), {2}], "longrepr": (1, "a"), "text": text}]
    [report] = decoded(WorkerReply, encoded(WorkerReply(reports=reports))).reports
    assert report["longrepr"] == (1, "a")
    assert report["text"] == text  # as it would be without another process
    [(_, lock), n, several] = report["properties"]
    assert several == {2}
    assert "lock" in lock
    assert n == ("n", 1)
