"""``--pallas-processes``: each test in all processes of one JAX program, and one report."""

import json
import shutil
from pathlib import Path

import pytest

from pytest_pallas.distribute.gang import plugin as supervisor

TESTS = Path(__file__).parent / "tests_of_processes.py"


#: Its process 0 waits for ever.
HANGS = "test_raises_before_the_collective"


@pytest.fixture
def session(project, monkeypatch):
    """Runs some of the tests in several processes.

    Those that end after another one has failed get all the time they need, and the one that cannot
    end gets none.
    """
    grace = supervisor._grace

    def patience(end):
        seconds = grace(end)
        if seconds != supervisor.FAILED_SECONDS:
            return seconds
        hangs = end.reports and HANGS in end.reports[0]["nodeid"]
        return 0.01 if hangs else 3600.0

    monkeypatch.setattr(supervisor, "_grace", patience)
    monkeypatch.setattr(supervisor, "DIED_SECONDS", 0.01)

    def run(count, *names, **rest):
        """``names`` of tests, or other arguments; ``rest`` are options of the plugin."""
        shutil.copy(TESTS, project.path / "test_processes.py")
        names_of_tests = [n if n.startswith("-") else f"test_processes.py::{n}" for n in names]
        options = [f"--pallas-{name.replace('_', '-')}={value}" for name, value in rest.items()]
        return project.run(f"--pallas-processes={count}", *options, *names_of_tests)

    run.path = project.path
    return run


def records(path):
    """Each record of a results file, by the name of its test."""
    plain = json.loads(path.read_text())["records"]
    return {record["test"].rpartition("::")[2]: record for record in plain}


def test_two_processes_run_each_test_together(session):
    """And one that fails or dies does not hang the other."""
    result = session(
        2,
        "test_right",
        "test_wrong_in_one",
        "test_skipped",
        "test_skipped_in_one",
        "test_expected",
        "test_drawn",
        HANGS,
        "test_right_after_a_restart",
        "test_killed",
        "test_right_at_the_end",
        "test_wrong_at_the_end",
        "test_not_run",
        "--maxfail=6",
    )
    result.assert_outcomes(passed=3, failed=6, skipped=1, xfailed=1)
    result.stdout.fnmatch_lines(
        [
            "pallas: 2 processes with 4 simulated devices each",
            "2 processes collected 12 tests",
            "*_ test_wrong_in_one _*",
            "failed in process 1 (*): assert (28.0 + 1 == 1) == 28",
            "process 0 (*) passed",
            "said by 0",
            "*Captured stdout call in process 1*",
            "said by 1",
            "*_ test_skipped_in_one _*",
            "the processes ended differently: process 0 (*) passed; process 1 (*) skipped",
            "*_ test_drawn _*",
            "failed in process 1 (*): assert *",
            "*number=7,*",
            "process 0 (*) stopped because of process 1",
            "*_ test_raises_before_the_collective _*",
            "failed in process 1 (*): ValueError: not ready",
            "process 0 (*) was stopped, because it did not end soon after that",
            "*_ test_killed _*",
            "test_killed, process 1 of 2 (*): its process was killed by SIGKILL from outside *",
            "process 0 (*) was stopped, because it did not end soon after that",
        ]
    )


def test_four_processes_and_records_of_all_of_them(session):
    result = session(
        4,
        "test_right",
        "test_kernel",
        "test_kernel_that_is_wrong_in_one",
        "test_drawn_kernel",
        backend="interpret",
        results="results.json",
    )
    result.assert_outcomes(passed=2, failed=2)
    merged = records(session.path / "results.json")
    right = merged["test_kernel[interpret]"]
    assert right["outcome"] == "passed"
    assert [host["process"] for host in right["hosts"]] == [0, 1, 2, 3]
    assert {host["outcome"] for host in right["hosts"]} == {"passed"}
    wrong = merged["test_kernel_that_is_wrong_in_one[interpret]"]
    assert wrong["outcome"] == "failed"
    outcomes = [(host["outcome"], host["because_of"]) for host in wrong["hosts"]]
    assert outcomes == [("failed", [1]), ("failed", []), ("failed", [1]), ("failed", [1])]
    assert "process   1 of 4" in wrong["message"]
    drawn = merged["test_drawn_kernel[interpret]"]["message"]
    assert "inputs    float32[16, 128]" in drawn  # shrunk to two rows for each device
    assert "--pallas-processes=4" in wrong["replay"]
