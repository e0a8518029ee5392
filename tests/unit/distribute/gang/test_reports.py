"""The reports of several processes as those of one test."""

from types import SimpleNamespace

import pytest

from pytest_pallas.distribute.gang import process
from pytest_pallas.distribute.gang.merging import merged_reports
from pytest_pallas.distribute.messages import BECAUSE, TestEnd
from pytest_pallas.distribute.resume import EndedTests
from pytest_pallas.isolate.messages import StepNote
from pytest_pallas.isolate.worker import Alarm
from pytest_pallas.pytest_session import RECORDS
from pytest_pallas.record import Record, to_json
from pytest_pallas.report.collect import records_of
from pytest_pallas.run.result import Result
from pytest_pallas.workers.process import JobResult

TEST = ("t.py::test_a", ("t.py", 3, "test_a"))


def end(process, call="passed", text="", **rest):
    """The end of a test in a process: the outcome and text of its call."""
    rest = {"sections": [], "longrepr": text or None, **rest}
    reports = [{"when": "setup", "outcome": "passed"}, {"when": "call", "outcome": call, **rest}]
    reports.append({"when": "teardown", "outcome": "passed"})
    return TestEnd(process=process, host=f"host{process}", reports=reports)


def died(process, *, seconds=1.0, stopped=False, note=b""):
    result = JobResult(
        status="crashed", fate="died of SIGABRT (Aborted).", seconds=seconds, note=note
    )
    return TestEnd(process=process, host=f"host{process}", died=result, stopped=stopped)


def load(config, data):
    data = {"longrepr": None, "sections": [], **data}
    return pytest.TestReport(nodeid=TEST[0], location=TEST[1], keywords={}, **data)


CONFIG = SimpleNamespace(hook=SimpleNamespace(pytest_report_from_serializable=load))


def merged(*ends):
    """The outcome of each phase, and the text of the failure."""
    reports = merged_reports(CONFIG, TEST, ends)
    text = "".join(report.longreprtext for report in reports)
    return {report.when: report.outcome for report in reports}, text, reports


def test_all_passed():
    outcomes, text, _ = merged(end(0), end(1))
    assert outcomes == {"setup": "passed", "call": "passed", "teardown": "passed"}
    assert text == ""


def test_the_same_failure_everywhere_is_shown_as_it_is():
    outcomes, text, _ = merged(end(0, "failed", "wrong"), end(1, "failed", "wrong"))
    assert outcomes["call"] == "failed"
    assert text == "wrong"


def test_a_failure_in_one_process_names_it_and_the_others():
    outcomes, text, _ = merged(
        end(0, "failed", "peer", **{BECAUSE: [1]}), end(1, "failed", "wrong"), end(2)
    )
    assert outcomes["call"] == "failed"
    assert text.splitlines() == [
        "failed in process 1 (host1):",
        "wrong",
        "process 0 (host0) stopped because of process 1",
        "process 2 (host2) passed",
    ]


def test_different_outcomes_are_a_failure():
    outcomes, text, _ = merged(end(0), end(1, "skipped", "why"))
    assert outcomes["call"] == "failed"
    assert text.startswith("the processes ended differently: process 0 (host0) passed; process 1")


def test_expected_failures_everywhere_stay_expected():
    ends = [end(n, "skipped", "x", wasxfail="known") for n in range(2)]
    _, _, reports = merged(*ends)
    assert [report.wasxfail for report in reports if report.when == "call"] == ["known"]


def test_the_first_process_that_died_is_the_cause():
    outcomes, text, _ = merged(died(0, seconds=2.5), died(1, seconds=1.0), died(2, stopped=True))
    assert outcomes == {"call": "failed", "teardown": "passed"}
    first, *rest = text.splitlines()
    assert first == "test_a, process 1 of 3 (host1): its process died of SIGABRT (Aborted)."
    assert "process 0 (host0) died of SIGABRT (Aborted), too, 1.5 s later" in rest
    assert "process 2 (host2) was stopped, because it did not end soon after that" in rest


def test_a_process_that_died_in_an_example_has_a_record():
    note = StepNote(step="a kernel", limit=1.0, kernel="k", check="forward", backend="gpu")
    _, _, reports = merged(died(0, stopped=True), died(1, note=note.encode()))
    assert "  last step a kernel" in reports[0].longreprtext.splitlines()
    [record] = [record for report in reports for record in records_of(report)]
    assert (record.kernel, record.check, record.outcome) == ("k", "forward", "failed")
    assert [(host.process, host.because_of) for host in record.hosts] == [(0, (1,)), (1, ())]


def test_output_of_other_processes_is_kept_under_their_name():
    sections = [("Captured stdout call", "text")]
    _, _, reports = merged(end(0, sections=sections), end(1, sections=sections))
    [call] = [report for report in reports if report.when == "call"]
    assert call.sections == [*sections, ("Captured stdout call in process 1 (host1)", "text")]


def test_a_test_whose_process_died_has_ended_and_failed():
    ended = EndedTests()
    pairs = [ended.add(report) for report in merged(died(0), died(1, stopped=True))[2]]
    [(test, _)] = [pair for pair in pairs if pair is not None]
    assert test.outcome == "failed"


def test_the_record_of_a_process_that_died_joins_those_of_the_others():
    builder = Result(kernel="k", check="forward", backend="tpu", family="f", mesh={"x": 2})
    notes = []
    alarm = Alarm(notes.append, 2)
    try:
        alarm.begin("set-up", 60.0, builder=builder)
    finally:
        alarm.stop()
    own = Record(
        test=TEST[0],
        kernel="k",
        check="forward",
        backend="tpu",
        family="f",
        mesh={"x": 2},
        outcome="failed",
    )
    other = end(0, "failed", "peer", **{RECORDS: [to_json(own)]})
    _, _, reports = merged(other, died(1, note=notes[-1]))
    [joined] = [record for report in reports for record in records_of(report)]
    assert (joined.outcome, joined.family, dict(joined.mesh)) == ("failed", "f", {"x": 2})
    assert [host.process for host in joined.hosts] == [0, 1]


@pytest.mark.parametrize(
    ("phases", "outcome"),
    [
        (["passed", "passed", "passed"], "passed"),
        (["passed", "skipped", "passed"], "skipped"),
        (["passed", "skipped", "failed"], "failed"),
    ],
)
def test_the_outcome_of_a_test_is_that_of_its_worst_phase(phases, outcome):
    reports = [SimpleNamespace(outcome=phase) for phase in phases]
    assert process._outcome(reports) == outcome
