"""Functions that are traced at collection, or before the guard, leave the session as it is.

The sessions run in this process: what a function left behind, or ended, would be this one.
"""

from __future__ import annotations

import json

import pytest

#: Makes ``KINDS``: a function that calls what it says, and then the kernel.
KINDS = """
import ctypes
import os
import signal
import sys
import warnings

import jax
import numpy as np
from kernels import add

class Odd(BaseException):
    pass

def raises(error):
    raise error

def loops():
    while True:
        pass

def exits(x, y):
    os._exit(3)

def faults(x, y):
    ctypes.string_at(0)

def of(act):
    def kernel(x, y):
        act()
        return add(x, y)
    return kernel

RAISE = {
    "system_exit": of(lambda: sys.exit(4)),
    "interrupt": of(lambda: raises(KeyboardInterrupt)),
    "odd": of(lambda: raises(Odd("odd one"))),
}
LEAVE = {
    "x64": of(lambda: jax.config.update("jax_enable_x64", True)),
    "environment": of(lambda: os.environ.update(LEFT="1")),
    "numpy": of(lambda: np.seterr(all="raise")),
    "limit": of(lambda: sys.setrecursionlimit(5000)),
}
DIE = {"exits": exits, "faults": faults}
"""

SPECS = """
from kinds import *
from kernels import reference
from pytest_pallas import KernelSpec, strategies as pst

SPECS = [
    KernelSpec(
        name=name,
        kernel=kernel,
        reference=reference,
        inputs=pst.arrays("m n, m n", dtype="float32", dims={"m": [8], "n": [128]}),
        vmappable=False,
    )
    for name, kernel in [*CHOSEN.items(), ("last", add)]
]
"""

OWN = """
import numpy as np
import pytest
from kernels import reference
from kinds import *

X = np.ones((8, 128), np.float32)
BEFORE = jax.config.jax_enable_x64, np.geterr(), sys.getrecursionlimit()

@pytest.mark.parametrize("kernel", CHOSEN.values(), ids=CHOSEN)
def test_kernel(pallas_check, kernel):
    pallas_check(kernel, X, X, reference=reference)

def test_last():
    assert (jax.config.jax_enable_x64, np.geterr(), sys.getrecursionlimit()) == BEFORE
    assert "LEFT" not in os.environ
"""


def suite(project, chosen, *args, checks="forward,jit"):
    project.write(kinds=KINDS, specs=SPECS.replace("CHOSEN", chosen))
    return project.run(
        "--pallas-suite=specs",
        f"--pallas-checks={checks}",
        "--pallas-max-examples=2",
        "--pallas-results=results.json",
        *args,
    )


def messages(project):
    records = json.loads((project.path / "results.json").read_text())["records"]
    return {r["kernel"]: r["message"] for r in records if r["outcome"] == "failed"}


def test_what_a_spec_raises_to_end_the_process_is_one_failed_test(project):
    result = suite(project, "RAISE", "--pallas-isolate=auto")
    result.assert_outcomes(failed=3, passed=2)
    texts = messages(project)
    assert "the kernel raised SystemExit: 4" in texts["system_exit"]
    assert "the kernel raised KeyboardInterrupt" in texts["interrupt"]
    assert "the kernel raised Odd: odd one" in texts["odd"]


@pytest.mark.parametrize("isolate", ["auto", "always"])
def test_what_a_spec_leaves_behind_at_collection_is_undone_and_fails_one_test(project, isolate):
    result = suite(project, "LEAVE", f"--pallas-isolate={isolate}")
    result.assert_outcomes(failed=4, passed=6)
    texts = messages(project)
    assert "left jax_enable_x64" in texts["x64"]
    assert "left os.environ['LEFT'] = '1' (was unset)" in texts["environment"]
    assert "left numpy.geterr()" in texts["numpy"]
    assert "left sys.getrecursionlimit() = 5000" in texts["limit"]


@pytest.mark.parametrize("isolate", ["auto", "always"])
def test_a_spec_whose_trace_ends_its_process_is_one_failed_test(project, isolate):
    result = suite(project, "DIE", f"--pallas-isolate={isolate}")
    result.assert_outcomes(failed=2, passed=2)
    assert "exited with code 3" in messages(project)["exits"]
    assert "died of SIGSEGV" in messages(project)["faults"]
    result.stdout.fnmatch_lines(["pallas: spec 'exits' in *: tracing it at collection: *code 3*"])


@pytest.mark.parametrize("ends", ["sys.exit(4)", "os._exit(4)"])
def test_a_strategy_that_ends_the_process_is_an_error_of_collection(project, ends):
    project.write(
        specs=f"""
        import os
        import sys

        from kernels import *
        from pytest_pallas import KernelSpec, strategies as pst

        INPUTS = pst.arrays("m n, m n", dtype="float32")
        KEYWORDS = dict(kernel=add, reference=reference, vmappable=False)
        WRONG = KernelSpec(name="wrong", inputs=INPUTS.map(lambda drawn: {ends}), **KEYWORDS)
        RIGHT = KernelSpec(name="right", inputs=INPUTS, **KEYWORDS)
        """
    )
    result = project.run("--pallas-suite=specs", "--pallas-checks=forward", "--pallas-isolate=auto")
    result.assert_outcomes(errors=1, passed=1)
    message = "raised SystemExit: 4" if "sys" in ends else "failed: *exited with code 4"
    result.stdout.fnmatch_lines([f"*spec 'wrong' in *: drawing its inputs {message}*"])


def test_a_trace_without_end_costs_its_limit_twice(project):
    counted = """
    TRACED = []

    def endless(x, y):
        TRACED.append(1)
        print("traced", len(TRACED), flush=True)
        loops()
    """
    kinds = KINDS + "".join(line.removeprefix("    ") + "\n" for line in counted.splitlines())
    project.write(kinds=kinds, specs=SPECS.replace("CHOSEN", "{'endless': endless}"))
    result = project.run(
        "--pallas-suite=specs", "--pallas-checks=forward,jit", "--pallas-timeout=1", "-s"
    )
    result.assert_outcomes(failed=1, passed=2)
    result.stdout.fnmatch_lines(
        ["pallas: spec 'endless' in *: collection did not trace it within 1 s *, in *kinds.py:*"]
    )
    result.stdout.no_fnmatch_line("traced 3")


def test_the_terminal_says_which_spec_collection_waits_for(project, monkeypatch):
    monkeypatch.setattr("pytest_pallas.run.nodes.PATIENCE", 0.2)
    project.write(kinds=KINDS, specs=SPECS.replace("CHOSEN", "{'endless': of(loops)}"))
    result = project.run("--pallas-suite=specs", "--pallas-timeout=1", "--collect-only")
    result.stdout.fnmatch_lines(
        ["pallas: collection still traces spec 'endless' in */specs.py; the limit is 1 s *"]
    )


def test_a_reference_that_sleeps_is_one_failed_test(project, monkeypatch):
    monkeypatch.setattr("pytest_pallas.backends.ending.LEAST", 0.5)
    monkeypatch.setattr("pytest_pallas.backends.ending.MULTIPLE", 0.5)
    project.write(
        kernels_that_wait="""
        import time

        def reference(x, y):
            time.sleep(1000)
        """
    )
    project.specs('name="add", kernel=add, reference=kernels_that_wait.reference')
    text = (project.path / "specs.py").read_text()
    (project.path / "specs.py").write_text(f"import kernels_that_wait\n{text}")
    result = project.run("--pallas-suite=specs", "--pallas-timeout=0.1", "--pallas-checks=forward")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*the reference reference: still not evaluated after*"])


def test_tests_of_ones_own_leave_nothing_and_go_on(project):
    project.write(kinds=KINDS, test_own=OWN.replace("CHOSEN", "(RAISE | LEAVE)"))
    result = project.run(
        "--pallas-isolate=never", "--pallas-backend=auto", "--pallas-results=results.json"
    )
    result.assert_outcomes(failed=7, passed=1)
    records = json.loads((project.path / "results.json").read_text())["records"]
    assert [record["outcome"] for record in records] == 7 * ["failed"]


def test_a_test_of_ones_own_that_may_end_its_process_is_isolated(project):
    project.write(kinds=KINDS, test_own=OWN.replace("CHOSEN", "DIE"))
    result = project.run("--pallas-isolate=auto", "--pallas-backend=auto")
    result.assert_outcomes(failed=2, passed=1)
    result.stdout.fnmatch_lines(["*exited with code 3*", "*died of SIGSEGV*"])


def test_a_spec_at_whose_collection_a_session_died_is_traced_in_a_worker_by_the_next(project):
    hidden = KINDS + 'def hides(x, y):\n    getattr(os, "_" "exit")(3)\n'
    project.write(kinds=hidden, specs=SPECS.replace("CHOSEN", "{'hides': hides}"))
    arguments = "--pallas-suite=specs", "--pallas-checks=forward", "--pallas-isolate=auto"
    assert project.spawn(*arguments).ret == 3
    result = project.run(*arguments)
    result.assert_outcomes(failed=1, passed=1)
    result.stdout.fnmatch_lines(["*exited with code 3*"])
