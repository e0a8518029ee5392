"""What is reported of an isolated test is what is reported of one that is not."""

from __future__ import annotations

import json
import re

import pytest

EXPECTED = 'xfail={"interpret": ExpectedFailure(reason="known", jax="0.12")}'

SPECS = (
    'name="add", kernel=add',
    'name="add_off", kernel=add_off',
    'name="add_raises", kernel=add_raises',
    f'name="expected", kernel=add_off, {EXPECTED}',
    f'name="unexpected", kernel=add, {EXPECTED}',
    'name="sharded", kernel=add_sharded, reference=lambda x, y, mesh: x + y, '
    'meshes=({"x": 2}, {"x": 64}), inputs=lambda mesh: INPUTS',
)

TESTS = """
    import logging
    import sys
    import warnings

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

    @pytest.fixture
    def breaks(pallas_backend):
        yield
        raise RuntimeError("not torn down")

    def test_passes(pallas_check, noisy, record_property):
        record_property("answer", 42)
        pallas_check(add, X, X, reference=reference)

    def test_fails(pallas_check, noisy):
        print("on the way")
        print("and so", file=sys.stderr)
        logging.getLogger("mine").warning("look")
        pallas_check(add, X, X, reference=reference)
        pallas_check(add_off, X, X, reference=reference)

    def test_asserts(pallas_run):
        assert (pallas_run(add, X, X) == 3).all(), "two, not three"

    def test_skips(pallas_run):
        pallas_run(add, X, X)
        pytest.skip("enough")

    def test_xfails(pallas_run):
        pytest.xfail("known")

    @pytest.mark.xfail(strict=True, reason="not any more")
    def test_xpasses(pallas_run):
        pallas_run(add, X, X)

    @pytest.mark.xfail(raises=ValueError, reason="another error")
    def test_fails_otherwise(pallas_run):
        raise KeyError("other")

    def test_is_not_torn_down(pallas_run, breaks):
        pallas_run(add, X, X)

    @given(n=st.integers(1, 300))
    def test_draws(pallas_rng, pallas_run, n):
        assert n < 100

    def test_same_draws(pallas_rng, pallas_run):
        assert pallas_rng.integers(1000) == -1

    class TestClass:
        @pytest.mark.parametrize("n", [1, 2])
        def test_method(self, pallas_run, tmp_path, n):
            assert n == 1

    def test_of_its_own():
        print("no plugin here")
        assert True
"""


def timeless(text: str) -> str:
    """What a run printed, without what differs between two runs of the same."""
    text = re.sub(r" in \d+\.\d+s", "", text)
    text = re.sub(r"0x[0-9a-fA-F]{6,}", "0x", text)
    text = re.sub(r"(ok( [\d.]+x)?|FAILED|xfail|xpass|skip).*", r"\1", text)
    text = re.sub(r"pytest-of-(\w+)/pytest-\d+", r"pytest-of-\1/pytest", text)
    return re.sub(r"=+", "=", text)


def reported(project, *args):
    result = project.run(
        "--pallas-results=results.json", "--pallas-backend=interpret", "-p", "no:randomly", *args
    )
    records = json.loads((project.path / "results.json").read_text())["records"]
    for record in records:
        record.update(seconds=0, kernel_seconds=0)
    lines = timeless(result.stdout.str()).splitlines()
    folder = project.path / "pallas-failures"
    scripts = {path.name: path.read_text() for path in sorted(folder.glob("*.py"))}
    (project.path / "results.json").unlink()
    for path in folder.glob("*"):
        path.unlink()
    return records, lines, scripts, result.parseoutcomes()


@pytest.mark.parametrize("what", ["specs", "tests"])
def test_reports_are_the_same(project, what):
    if what == "specs":
        project.specs(*SPECS)
        args = ["--pallas-suite=specs", "--pallas-checks=forward,jit", "--pallas-max-examples=2"]
    else:
        project.write(test_mine=TESTS)
        args = ["-rA"]
    args += ["--pallas-database=none", "-p", "no:cacheprovider"]
    here = reported(project, "--pallas-isolate=never", *args)
    apart = reported(project, "--pallas-isolate=always", *args)
    assert apart[3] == here[3]
    assert apart[0] == here[0]
    assert apart[2] == here[2]
    assert apart[1] == here[1]
    assert len({"passed", "failed", "xfailed"} & {*here[3]}) == 3


def test_workers_of_a_worker_of_xdist_report_the_same(project):
    project.specs(*SPECS)
    args = ["--pallas-suite=specs", "--pallas-checks=forward", "-p", "no:cacheprovider"]
    args += ["--pallas-database=none"]
    here = reported(project, "--pallas-isolate=never", *args)
    apart = reported(project, "--pallas-isolate=always", "-n1", *args)
    assert apart[0] == here[0]
    assert apart[3] == here[3]
