"""A package of somebody who is new: all wrong kernels are found, and no right one is blamed."""

import json
import re
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


#: The body of the reference of each kernel that ``pytest-pallas new`` is run on.
REFERENCES = {
    "rows:layer_norm": "layer_norm_reference(x)",
    "rows:softmax": "jax.nn.softmax(x)",
    "products:matmul": "jnp.matmul(x, y)",
    "copies:doubled": "x * 2",
}


@pytest.fixture(scope="module")
def new_records(tmp_path_factory):
    """Records of the modules that ``pytest-pallas new`` writes, with a reference filled in."""
    folder = tmp_path_factory.mktemp("new")
    shutil.copytree(PROJECT / "kernels", folder / "kernels")
    script = "import sys; from pytest_pallas.__main__ import main\n"
    script += "sys.exit(max(main(['new', each, '--no-run']) for each in sys.argv[1:]))"
    targets = {
        f"kernels.{module}:{wrong}{name}": body
        for target, body in REFERENCES.items()
        for module, name in [target.split(":")]
        for wrong in ("", "wrong_")
    }
    done = run_python("-c", script, *targets, "kernels.copies:shifted", cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    texts = {path.name: path for path in (folder / "tests").iterdir()}
    assert "FILL IN" not in texts["test_shifted_kernel.py"].read_text()  # its mesh is guessed
    for target, body in targets.items():
        path = texts[f"test_{target.split(':')[1]}_kernel.py"]
        text = re.sub(r"raise NotImplementedError\([^)]*\)", f"return {body}", path.read_text())
        imports = (
            "import jax\nimport jax.numpy as jnp\nfrom kernels.rows import layer_norm_reference"
        )
        first = "from __future__ import annotations\n"
        assert first in text
        path.write_text(text.replace(first, f"{first}\n{imports}\n"))
    return records_of(folder, *map(str, texts.values()))


@pytest.mark.slow
def test_what_new_writes_finds_the_wrong_kernels_and_blames_no_right_one(new_records):
    failed = [record for record in new_records if record["outcome"] == "failed"]
    assert {record["kernel"] for record in new_records} == RIGHT | WRONG
    assert {record["kernel"] for record in failed} == WRONG
    assert {record["kernel"] for record in failed if record["check"] == "forward"} == WRONG
