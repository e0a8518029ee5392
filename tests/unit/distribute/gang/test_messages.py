"""Messages between hosts."""

from pytest_pallas.distribute.gang.messages import (
    Collected,
    StartFailure,
    TestEnd,
    from_json,
    to_json,
)
from pytest_pallas.isolate.messages import WorkerReply
from pytest_pallas.workers.process import JobResult

#: A report of pytest as plain values.
REPORT = {
    "$report_type": "TestReport", "nodeid": "t", "location": ("t.py", 3, "a"), "keywords": {},
    "outcome": "passed", "longrepr": None, "when": "call", "sections": [], "user_properties": [],
}  # fmt: skip


def test_messages_are_the_same_after_json():
    died = JobResult(status="crashed", fate="died", output="\x1b[1m", note=b'{"step": "start"}')
    reply = WorkerReply(reports=[REPORT], exit=("enough", 3))
    messages = [
        "host",
        Collected(
            tests=[("t.py::a", ("t.py", 3, "a"))],
            reports=[{**REPORT, "outcome": "failed"}],
            backends=["tpu"],
            not_applicable=[],
            shard=("shard 1/2", True),
        ),
        StartFailure(process=1, host="h", reason="why", step=2),
        TestEnd(process=0, host="h", reply=reply),
        TestEnd(process=1, host="h", died=died, stopped=True, absent="nobody"),
    ]
    assert from_json(to_json(messages)) == messages


def test_what_json_has_no_form_for_becomes_its_repr():
    reply = WorkerReply(reports=[{**REPORT, "user_properties": [["a", {1}]]}])
    [end] = from_json(to_json([TestEnd(process=0, host="h", reply=reply)]))
    assert end.reply.reports[0]["user_properties"] == [["a", "{1}"]]
