"""What a fleet reports is what one machine reports, but for times."""

from __future__ import annotations

import json
import re
import shutil

import pytest

pytestmark = pytest.mark.usefixtures("dask")

EXPECTED = 'xfail={"interpret": ExpectedFailure(reason="known", jax="0.12")}'

SPECS = (
    'name="add", kernel=add',
    'name="add_off", kernel=add_off',
    'name="add_raises", kernel=add_raises',
    f'name="expected", kernel=add_off, {EXPECTED}',
)

TESTS = """
    import os
    import signal
    import sys
    import warnings
    from pathlib import Path

    import numpy as np
    import pytest
    from hypothesis import given, strategies as st
    from kernels import *

    X = np.ones((8, 128), np.float32)

    @pytest.fixture
    def noisy():
        print("set up")
        yield
        print("torn down")

    @pytest.mark.filterwarnings("default")
    def test_passes(pallas_check, noisy, record_property):
        record_property("answer", 42)
        warnings.warn("look", UserWarning)
        pallas_check(add, X, X, reference=reference)

    def test_fails(pallas_check, noisy):
        print("and so", file=sys.stderr)
        pallas_check(add_off, X, X, reference=reference)

    def test_crashes(pallas_check):
        pallas_check(add, X, X, reference=reference)
        os.kill(os.getpid(), signal.SIGSEGV)

    @pytest.mark.xfail(reason="crash")
    def test_crash_is_expected(pallas_check):
        os.abort()

    def test_skips(pallas_run):
        pytest.skip("enough")

    # Not integers: in a checkout, hypothesis draws constants of the plugin's modules, too, and a
    # worker has imported others.
    @given(n=st.sampled_from(range(1, 300)))
    def test_draws(pallas_run, n):
        assert n < 100

    def test_is_lost_once():
        # With a fleet, its first worker ends in the middle.
        if "PYTEST_PALLAS_RUN" in os.environ and Path("killing").read_text():
            Path("killing").write_text("")
            os.kill(int(os.environ["PYTEST_PALLAS_SUPERVISOR"]), signal.SIGKILL)
            signal.pause()

    class TestClass:
        @pytest.mark.parametrize("n", [1, 2])
        def test_method(self, n):
            assert n == 1
"""


def plain(value):
    """A value of a record without times and addresses of objects."""
    text = json.dumps(value)
    return re.sub(r"after \d+\.\d s|0x[0-9a-f]{6,}", "", text)


def reported(project, *args):
    result = project.run("--pallas-results=r.json", "--pallas-backend=interpret", "-rA", *args)
    results = json.loads((project.path / "r.json").read_text())
    records = results["records"]
    for record in records:
        record.update(seconds=0, kernel_seconds=0)
    scripts = {
        path.name: path.read_bytes() for path in (project.path / "pallas-failures").iterdir()
    }
    examples = sorted(
        path.read_bytes()
        for path in (project.path / ".hypothesis" / "examples").rglob("*")
        if path.is_file()
    )
    for folder in (".pytest_cache", ".hypothesis", "pallas-failures"):
        shutil.rmtree(project.path / folder)
    lines = result.outlines
    summary = [line for line in lines if re.match(r"(PASSED|FAILED|XFAIL|SKIPPED|ERROR) ", line)]
    return {
        "records": plain(records),
        "tests": [record["test"] for record in records],
        "scripts": scripts,
        "examples": examples,
        "summary": [plain(line) for line in summary],
        "not applicable": results["not_applicable"],
        "outcomes": result.parseoutcomes(),
        "exit": result.ret,
    }, results


def test_a_fleet_reports_the_same(project):
    """Also where a worker is lost."""
    project.specs(*SPECS)
    project.write(test_own=TESTS)
    (project.path / "killing").write_text("yes")
    args = ("--pallas-isolate=always", "--pallas-suite=specs", "test_own.py")
    args += ("--pallas-checks=forward,jit,gradient,oracle-strength", "--pallas-max-examples=4")
    here, _ = reported(project, *args)
    assert len(here["scripts"]) >= 4
    assert len(here["examples"]) >= 3
    assert here["outcomes"]["failed"] == 8
    there, results = reported(project, *args, "--pallas-fleet=local:2")
    for what in here:
        assert there[what] == here[what], what
    fleet = results["fleet"]
    assert fleet["place"] == "local:2"
    assert fleet["tasks"] == fleet["done"] == 13
    assert fleet["refused"] == {}
    assert fleet["repeated"] == len(fleet["lost"]) == 1


def test_without_a_folder_for_scripts_a_fleet_says_the_same(project):
    project.specs('name="add_off", kernel=add_off')
    args = ("--pallas-suite=specs", "--pallas-checks=forward", "--pallas-sanitize=none")
    args += ("--pallas-backend=tpu-sim", "-p", "no:cacheprovider", "--pallas-database=none")
    here = project.run(*args).stdout.str()
    there = project.run(*args, "--pallas-fleet=local:1").stdout.str()
    lines = re.findall(r"^  script .*$", here, re.MULTILINE)
    assert lines
    assert all("none: no folder for it" in line for line in lines)
    assert re.findall(r"^  script .*$", there, re.MULTILINE) == lines
    assert "1 failed" in there
