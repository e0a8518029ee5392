"""docs/shards.md: its workflow is valid, and its commands exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pytest_pallas.__main__ import main

TEXT = (Path(__file__).parents[2] / "docs/shards.md").read_text()
[(NAME, WORKFLOW)] = re.findall(r"```yaml\n# (\S+)\n(.*?)```", TEXT, re.DOTALL)

TEST = """
import pytest

@pytest.mark.parametrize("number", range(8))
def test_it(number):
    pass
"""


def steps(job):
    return [step["run"] for step in yaml.safe_load(WORKFLOW)["jobs"][job]["steps"] if "run" in step]


def test_the_workflow_is_what_github_takes(tmp_path):
    (tmp_path / "file.yml").write_text(WORKFLOW)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    done = subprocess.run(
        [*command, "vendor.github-workflows", "file.yml"],
        cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_its_commands_join_the_shards(pytester, monkeypatch, capsys):
    pytester.makepyfile(test_it=TEST)
    monkeypatch.chdir(pytester.path)
    [run] = [step for step in steps("shard") if step.startswith("pytest ")]
    numbers = yaml.safe_load(WORKFLOW)["jobs"]["shard"]["strategy"]["matrix"]["shard"]
    for number in numbers:
        options = run.replace("${{ matrix.shard }}", str(number)).split()[1:]
        options.remove("--pallas-suite=mykernels")
        result = pytester.runpytest_inprocess("-p", "no:cacheprovider", *options)
        result.assert_outcomes(passed=2, deselected=6)
    [merge] = [step for step in steps("report") if step.startswith("pytest-pallas ")]
    assert main(merge.split()[1:]) == 0
    assert "4 files" in capsys.readouterr().out
    assert (pytester.path / "report.html").stat().st_size > 100


@pytest.mark.parametrize("value", ["auto", "auto/50"])
def test_values_that_the_page_names_are_understood(value, monkeypatch):
    from pytest_pallas.options import shard

    monkeypatch.setenv("CI_NODE_INDEX", "2")
    monkeypatch.setenv("CI_NODE_TOTAL", "4")
    assert f"--pallas-shard={value}" in TEXT
    assert shard(value) is not None
