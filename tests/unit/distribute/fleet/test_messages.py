"""Messages of a fleet are JSON, and come back as they were."""

from __future__ import annotations

import json
import math
import warnings

from pytest_pallas.distribute.messages import Answer, FleetTask
from pytest_pallas.distribute.messages import TestResult as Result
from pytest_pallas.isolate.messages import (
    Difference,
    PlainWarning,
    WorkerRequest,
    decoded,
    encoded,
    plain_warning,
    warning_of,
)
from pytest_pallas.pytest_session import Part
from pytest_pallas.workers.process import JobResult

#: A report of pytest as plain values.
REPORT = {
    "$report_type": "TestReport", "nodeid": "a", "location": ("a.py", 3, "a"), "keywords": {},
    "outcome": "skipped", "longrepr": None, "when": "call", "sections": [], "user_properties": [],
}  # fmt: skip


def test_messages_come_back_as_they_were():
    request = WorkerRequest(
        opening=b"", nodeid="a", path="a.py", timeout=3.0, part=Part("rounds", 0, 3)
    )
    task = FleetTask(
        key="k", tests=[request], raised={"p": ("c", "n", True)}, changes=[("save", "YQ==", "YQ==")]
    )
    assert decoded(FleetTask, encoded(task)) == task
    report = {
        **REPORT, "longrepr": ("a.py", 3, "Skipped: é"),
        "nested": [{"tuple": (1, (2,))}, None, 1.5],
    }  # fmt: skip
    answer = Answer(
        worker="w",
        results=[
            Result(nodeid="a", reports=[report], files={"/tmp/a": b"\0\xff"}),
            Result(nodeid="b", death=JobResult(status="crashed", note=b"note", silence=math.inf)),
        ],
        differences=[Difference("jax", "1", "2")],
    )
    text = encoded(answer)
    assert json.loads(text)
    assert decoded(Answer, text) == answer


def test_objects_that_json_does_not_know_are_their_repr():
    sent = Answer(worker="w", results=[Result(nodeid="a", reports=[{**REPORT, "x": 1j}])])
    assert decoded(Answer, encoded(sent)).results[0].reports == [{**REPORT, "x": "1j"}]


class OwnWarning(UserWarning):
    """One that workers know, too."""


def test_warnings():
    lost = type("Lost", (Warning,), {"__module__": "not_loaded_here"})
    for category in (OwnWarning, lost):
        warning = warnings.WarningMessage(category("look"), category, "a.py", 3)
        plain = plain_warning(warning, "runtest", "a", None)
        again = warning_of(decoded(PlainWarning, encoded(plain)))
        own = again["warning_message"].category
        assert own is category or (category is lost and own.__name__ == "Lost")
        assert issubclass(own, Warning)
        assert str(again["warning_message"].message) == "look"
        assert again["nodeid"] == "a"


def test_differences_in_words():
    answer = Answer(
        worker="w",
        differences=[
            Difference("jax", "0.11.2", "0.12.0"),
            Difference("a.py", "", "1", is_file=True),
            Difference("b.py", "2", "1", is_file=True),
            Difference("pytest-pallas", "", "1"),
        ],
    )
    assert answer.refused == (
        "jax is 0.11.2, here 0.12.0; a.py is missing; b.py has another content; "
        "pytest-pallas is missing"
    )
