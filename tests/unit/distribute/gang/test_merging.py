"""The records of one test from several processes become one record."""

import dataclasses
import math

import pytest

from pytest_pallas.distribute.gang.merging import ProcessResult, merge_processes
from pytest_pallas.record import Host, Note, Record, from_json, to_json

PASSED = Record(
    test="t.py::a",
    kernel="psum",
    check="forward",
    backend="interpret",
    outcome="passed",
    mesh={"x": 4},
    examples=5,
    error=1.0,
    baseline=2.0,
    multiple=0.5,
    seconds=1.0,
)
WRONG = dataclasses.replace(
    PASSED,
    outcome="failed",
    message="psum: forward on interpret is wrong\n  worst     [3, 1]",
    explanation={
        "summary": "output, float32[8]: wrong in 1",
        "details": [],
        "facts": [{"name": "worst", "text": "[3, 1]"}],
    },
    multiple=70.0,
    error=70.0,
    baseline=1.0,
)


def result(process: int, *records: Record, ended: str = "") -> ProcessResult:
    return ProcessResult(process=process, host=f"host{process}", records=records, ended=ended)


def merged(*results: ProcessResult) -> Record:
    [record] = merge_processes(results)
    return record


def test_all_passed_is_passed_with_the_worst_error_and_all_hosts():
    worse = dataclasses.replace(PASSED, multiple=1.5, error=3.0, seconds=2.0)
    record = merged(result(1, worse), result(0, PASSED))
    assert record.outcome == "passed"
    assert (record.error, record.multiple, record.seconds) == (3.0, 1.5, 2.0)
    assert record.message == ""
    assert record.hosts == (
        Host(process=0, name="host0", outcome="passed"),
        Host(process=1, name="host1", outcome="passed"),
    )


def test_what_ran_in_any_process():
    plain = {"kind": "branch", "line": "k.py:3", "kernel": "body"}
    one, two = (
        dataclasses.replace(PASSED, coverage=({**plain, "counts": {way: 2}, "missing": (other,)},))
        for way, other in (("true", "false"), ("false", "true"))
    )
    assert merged(result(0, one), result(1, two)).coverage == (
        {**plain, "counts": {"true": 2, "false": 2}},
    )


def test_a_failure_in_one_process_fails_the_test_and_names_it():
    record = merged(result(0, PASSED), result(1, WRONG))
    assert record.outcome == "failed"
    first, *rest = record.message.splitlines()
    assert first == "of 2 processes, process 1 (host1) failed; process 0 (host0) passed"
    assert rest == WRONG.message.splitlines()
    assert record.explanation["summary"] == first
    assert record.explanation["details"] == ["output, float32[8]: wrong in 1"]
    assert record.multiple == 70.0


def test_a_process_that_stopped_because_of_another_is_no_failure_of_its_own():
    stopped = dataclasses.replace(
        WRONG,
        message="process 1 failed",
        multiple=math.inf,
        hosts=(Host(process=0, name="host0", outcome="failed", because_of=(1,)),),
    )
    record = merged(result(0, stopped), result(1, WRONG))
    assert record.message.splitlines()[0] == (
        "of 2 processes, process 1 (host1) failed; process 0 stopped because of process 1"
    )
    assert record.message.endswith(WRONG.message)
    assert not record.others
    assert record.hosts[0].because_of == (1,)


def test_the_worst_of_several_failures_is_shown_and_the_others_follow():
    less = dataclasses.replace(WRONG, multiple=3.0, message="less wrong")
    record = merged(result(0, less), result(1, WRONG))
    assert record.message.splitlines()[0] == "all 2 processes failed"
    assert record.message.endswith(WRONG.message)
    assert [other["message"] for other in record.others] == ["process 0 (host0):\nless wrong"]


def test_nan_is_worse_than_any_number():
    nan = dataclasses.replace(WRONG, multiple=math.nan, message="NaN")
    assert merged(result(0, WRONG), result(1, nan)).message.endswith("NaN")


def test_a_process_that_died_is_named_with_the_reason():
    record = merged(result(0, PASSED), result(1, ended="was killed by SIGKILL"))
    assert record.outcome == "failed"
    assert record.message == (
        "of 2 processes, process 1 (host1) was killed by SIGKILL; process 0 (host0) passed"
    )
    assert record.hosts[1] == Host(process=1, name="host1", outcome="")


def test_a_process_without_a_record_fails_the_test():
    record = merged(result(0, PASSED), result(1))
    assert record.outcome == "failed"
    assert "process 1 (host1) has no record of it" in record.message


@pytest.mark.parametrize(
    ("outcomes", "expected"),
    [
        (("skipped", "skipped"), "skipped"),
        (("passed", "skipped"), "failed"),
        (("xfailed", "xpassed"), "xfailed"),
        (("xfailed", "passed"), "failed"),
        (("xpassed", "xpassed"), "xpassed"),
        (("xfailed", "failed"), "failed"),
    ],
)
def test_outcomes_of_two_processes(outcomes, expected):
    several = [dataclasses.replace(PASSED, outcome=record) for record in outcomes]
    assert merged(*(result(n, record) for n, record in enumerate(several))).outcome == expected


def test_different_outcomes_are_said():
    skipped = dataclasses.replace(PASSED, outcome="skipped", reason="no devices")
    record = merged(result(0, PASSED), result(1, skipped))
    assert record.message == (
        "the processes ended differently: process 0 (host0) passed; process 1 (host1) skipped "
        "(no devices)"
    )


def test_each_kernel_and_check_has_a_record():
    other = dataclasses.replace(PASSED, kernel="ring")
    records = merge_processes([result(0, PASSED, other), result(1, PASSED, other)])
    assert [record.kernel for record in records] == ["psum", "ring"]


def test_different_numbers_of_examples_are_noted():
    fewer = dataclasses.replace(PASSED, examples=4)
    record = merged(result(0, PASSED), result(1, fewer))
    assert record.examples == 4
    assert record.notes == (
        Note(
            "the processes ran different numbers of examples: 5 in process 0, 4 in process 1", "run"
        ),
    )


def test_hosts_survive_json():
    record = merged(result(0, PASSED), result(1, ended="died"))
    record = dataclasses.replace(
        record, hosts=(*record.hosts, Host(process=2, name="c", because_of=(1,)))
    )
    assert from_json(to_json(record)).hosts == record.hosts
