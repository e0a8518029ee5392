"""Messages between hosts."""

from pytest_pallas.distribute.messages import (
    Collected,
    StartFailure,
    TestEnd,
)
from pytest_pallas.isolate.messages import decoded, encoded
from pytest_pallas.workers.process import JobResult

#: A report of pytest as plain values.
REPORT = {
    "$report_type": "TestReport", "nodeid": "t", "location": ("t.py", 3, "a"), "keywords": {},
    "outcome": "passed", "longrepr": None, "when": "call", "sections": [], "user_properties": [],
}  # fmt: skip


def test_messages_are_the_same_after_json():
    died = JobResult(status="crashed", fate="died", output="\x1b[1m", note=b'{"step": "start"}')
    starts = [
        Collected(
            tests=[("t.py::a", ("t.py", 3, "a"))],
            reports=[{**REPORT, "outcome": "failed"}],
            backends=["tpu"],
            not_applicable=[],
            shard=("shard 1/2", True),
        ),
        StartFailure(process=1, host="h", reason="why", step=2),
    ]
    ends = [
        TestEnd(process=0, host="h", reports=[REPORT], exit=("enough", 3)),
        TestEnd(process=1, host="h", reports=[], died=died, stopped=True, absent="nobody"),
    ]
    assert decoded(list[str], encoded(["host"])) == ["host"]
    assert decoded(list[Collected | StartFailure], encoded(starts)) == starts
    assert decoded(list[TestEnd], encoded(ends)) == ends


def test_what_json_has_no_form_for_becomes_its_repr():
    reports = [{**REPORT, "user_properties": [["a", 1j]]}]
    [end] = decoded(list[TestEnd], encoded([TestEnd(process=0, host="h", reports=reports)]))
    assert end.reports[0]["user_properties"] == [["a", "1j"]]
