"""A package of somebody who is new: all wrong kernels are found, and no right one is blamed."""

import json
import shutil
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

PROJECT = Path(__file__).parents[2] / "support/newcomer"
RIGHT = {"layer_norm", "softmax", "matmul", "doubled", "shifted"}
WRONG = {"wrong_layer_norm", "wrong_softmax", "wrong_matmul", "wrong_doubled"}


def records_of(folder, *words):
    """The records of a run in which tests fail."""
    words += ("--pallas-profile=quick", "--pallas-results=results.json", "-p", "no:cacheprovider")
    done = run_python("-m", "pytest", *words, cwd=folder)
    assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr
    return json.loads((folder / "results.json").read_text())["records"]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("newcomer") / "project"
    shutil.copytree(PROJECT, folder)
    return records_of(folder, "tests", "--pallas-suite=kernels.specs", "-W", "error")


@pytest.mark.parametrize("file", ["tests/test_kernels.py", "kernels/specs.py"])
def test_wrong_kernels_fail_and_right_ones_pass(records, file):
    ran = [record for record in records if record["test"].startswith(file)]
    assert {record["kernel"] for record in ran} == RIGHT | WRONG
    assert {record["kernel"] for record in ran if record["outcome"] == "failed"} == WRONG
    assert all(any(r["examples"] for r in ran if r["kernel"] == name) for name in RIGHT)


def test_a_race_that_has_another_line_in_some_examples_is_reported_once(records):
    [failed] = [
        record
        for record in records
        if record["test"].startswith("kernels/specs.py::wrong_doubled-")
        and record["outcome"] == "failed"
    ]
    assert failed["findings"]
    assert failed["others"] == []
