"""The workflows of this repository are valid, need no secret, and run files that exist."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
DISTRIBUTIONS = {
    ".": "pytest-pallas",
    "pallas_sim": "pallas-sim",
    "reference_kernels": "pytest-pallas-kernels",
}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_valid(path):
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    done = subprocess.run(
        [*command, "vendor.github-workflows", path], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_needs_no_secret(path):
    assert "secrets." not in path.read_text(encoding="utf-8")


def test_a_release_builds_every_distribution():
    built = re.findall(
        r"uv build --out-dir dist ?(\S*)",
        (ROOT / ".github/workflows/release.yml").read_text(),
    )
    assert {folder or "." for folder in built} == DISTRIBUTIONS.keys()
    for folder, name in DISTRIBUTIONS.items():
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))
        assert project["project"]["name"] == name


def test_the_tests_run_what_contributors_run():
    assert ".ci/run" in (ROOT / ".github/workflows/tests.yml").read_text(encoding="utf-8")
    assert (ROOT / ".ci/run").exists()
