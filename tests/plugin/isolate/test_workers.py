"""What runs in a worker, and what becomes of a worker that cannot, or that is spoilt."""

from __future__ import annotations

import json

OWN = """
    import ctypes
    import os

    import numpy as np
    from kernels import *

    X = np.ones((8, 128), np.float32)

    def crashes(x, y):
        ctypes.string_at(0)

    def leaks(x, y):
        os.environ["LEFT_BEHIND"] = "1"
        return add(x, y)

    def test_before(pallas_check):
        print("pid", os.getpid())
        pallas_check(add, X, X, reference=reference)

    def test_crashes(pallas_check):
        pallas_check(add, X, X, reference=reference)
        pallas_check(crashes, X, X, reference=reference, name="crashes")

    def test_leaks(pallas_check):
        pallas_check(leaks, X, X, reference=reference)

    def test_after(pallas_check):
        print("pid", os.getpid())
        assert "LEFT_BEHIND" not in os.environ
        pallas_check(add, X, X, reference=reference)
"""


def run(project, *args):
    return project.run("--pallas-backend=tpu-sim", "--pallas-isolate=always", *args)


def test_a_test_of_ones_own_that_crashes(project):
    project.write(test_own=OWN)
    result = run(project, "--pallas-results=results.json")
    result.assert_outcomes(failed=2, passed=2)
    text = result.stdout.str()
    assert "died of SIGSEGV" in text
    assert "test_own.py:" in text
    assert "in crashes" in text
    assert "left os.environ['LEFT_BEHIND'] = '1' (was unset)" in text
    records = json.loads((project.path / "results.json").read_text())["records"]
    [record] = [r for r in records if r["kernel"] == "crashes"]
    assert (record["outcome"], record["examples"], record["check"]) == ("failed", 1, "forward")
    assert "--pallas-isolate=always" in record["replay"]


def test_specs_of_hooks_and_of_lines_in_test_modules(project):
    project.specs('name="add", kernel=add')
    project.write(
        test_lines="from pytest_pallas import suite\ntest_all = suite('specs')\n",
        conftest="""
        import pytest

        def pytest_pallas_specs(config):
            import specs

            return [specs.SPEC_0]
        """,
    )
    result = run(project, "--pallas-checks=forward", "-v")
    result.assert_outcomes(passed=2)
    result.stdout.fnmatch_lines(["test_lines.py::test_all::add*PASSED*"])
    result.stdout.fnmatch_lines(["pytest_pallas_specs::add*PASSED*"])


def test_time_to_fuzz_is_the_parents(project):
    project.specs('name="add", kernel=add, inputs=pst.arrays("m n, m n", around=[8, 16, 32])')
    records = project.records(
        "--pallas-suite=specs",
        "--pallas-isolate=always",
        "--pallas-checks=forward,determinism",
        "--pallas-fuzz-time=4",
        "--pallas-max-examples=1",
    )
    assert [record["outcome"] for record in records] == ["passed", "passed"]
    assert records[0]["examples"] > 1
    assert records[0]["seconds"] > 1.0  # half of the time, and not one round of one example


def test_a_project_that_cannot_be_set_up_twice(project):
    project.specs('name="add", kernel=add')
    project.write(
        conftest="""
        import os

        def pytest_configure(config):
            if "PYTEST_PALLAS_WORKER" in os.environ:
                raise RuntimeError("the port is taken")
        """
    )
    result = run(project, "--pallas-suite=specs", "--pallas-checks=forward")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the port is taken*", "*a set-up that cannot run twice*"])


def test_a_test_whose_name_depends_on_the_process(project):
    project.write(
        test_names="""
        import os
        import pytest

        @pytest.mark.parametrize("pid", [os.getpid()])
        def test_named(pallas_run, pid):
            pass
        """
    )
    result = run(project)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*collected no test with this name*"])


def test_a_test_that_closes_stdout_does_not_end_those_after_it(project):
    project.write(
        test_own="""
        import sys

        import numpy as np
        from kernels import *

        X = np.ones((8, 128), np.float32)

        def test_closes(pallas_check):
            sys.stdout.close()

        def test_first(pallas_check):
            pallas_check(add, X, X, reference=reference)

        def test_second(pallas_check):
            print("still here")
            pallas_check(add_off, X, X, reference=reference)
        """
    )
    result = run(project)
    result.assert_outcomes(failed=2, passed=1, errors=1)  # pytest's own tear-down reads it, too
    result.stdout.fnmatch_lines(["still here"])


def test_a_worker_that_is_spoilt_is_retired(project):
    project.write(
        test_own=OWN.replace("test_crashes", "crashes_not_tested"),
        conftest="""
        import pytest

        @pytest.fixture(autouse=True)
        def stubborn(monkeypatch):
            from pytest_pallas.isolate import leaks

            def refuse(name, value):
                raise RuntimeError("no")

            monkeypatch.setattr(leaks, "_set_variable", refuse)
        """,
    )
    result = run(project, "-rP")
    result.assert_outcomes(failed=1, passed=2)
    assert "The plugin could not undo" in result.stdout.str()
    before, after = (line for line in result.outlines if line.startswith("pid "))
    assert before != after


def test_warnings_reach_the_summary(project):
    project.write(
        test_warns="""
        import warnings

        def test_warns(pallas_run):
            warnings.warn("beware", UserWarning)
        """
    )
    result = run(project, "-W", "default")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*UserWarning: beware*"])


def test_a_test_can_end_the_session(project):
    project.write(
        test_exits="""
        import pytest

        def test_exits(pallas_run):
            pytest.exit("no more", returncode=7)

        def test_never(pallas_run):
            pass
        """
    )
    result = run(project)
    assert result.ret == 7
    assert "no more" in result.stdout.str()


DEEP = """
import faulthandler, os, signal
import jax
from jax.experimental import pallas as pl
from pytest_pallas import KernelSpec, strategies as pst

def body(x, o):
    o[...] = x[...]
    pl.when(pl.program_id(0) >= 3)(lambda: o.__setitem__(..., x[...] + 0))

def same(x):
    if x.shape[0] > 32:
        faulthandler.disable()
        os.kill(os.getpid(), signal.SIGSEGV)
    block = pl.BlockSpec((8, 128), lambda i: (i, 0))
    return pl.pallas_call(
        body, x, grid=(x.shape[0] // 8,), in_specs=[block], out_specs=block
    )(x)

INPUTS = pst.arrays("m 128", multiple_of=8, dtype="float32", max_dim=128)
SPEC = KernelSpec(
    name="same", kernel=same, reference=lambda x: x, inputs=INPUTS, vmappable=False,
    backends=["tpu-sim"],
)
"""


def test_an_example_that_had_grown_and_ended_its_process_is_shrunk(project):
    """It is none of the plan, so it is drawn again by its sizes and choices."""
    (project.path / "specs.py").write_text(DEEP)
    result = run(
        project, "--pallas-suite=specs", "--pallas-checks=forward", "--pallas-shrink-time=60"
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*SIGSEGV*", "*drawn*m=40 *", "*--pallas-replay=A*"])
