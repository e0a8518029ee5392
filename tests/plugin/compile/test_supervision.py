"""A compiler that hangs, aborts or eats memory fails one check, and the session goes on."""

import importlib
import os
import subprocess

import pytest

from pytest_pallas.compile import service

TESTS = """
    import pytest
    from chips import *

    def test_before(pallas_check):
        pallas_check(double, X, reference=twice)

    def test_bad(pallas_check):
        pallas_check(hang_here, X, reference=twice)

    def test_after(pallas_check):
        pallas_check(double, X[:8], reference=twice)
"""

pytestmark = pytest.mark.without_libtpu


def run(compiling, monkeypatch, name, *args):
    module = importlib.import_module(f"pallas_test_support.fake_compilers.{name}")
    monkeypatch.setattr(service, "compiler_of", lambda platform: module)
    monkeypatch.setattr("pytest_pallas.compile.libtpu.missing", lambda: None)
    compiling.write(test_it=TESTS)
    return compiling.run("--pallas-backend=tpu-compile:v6e", *args)


def test_a_compiler_that_hangs_is_stopped(compiling, monkeypatch):
    result = run(compiling, monkeypatch, "hangs", "--pallas-timeout=1")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "*the compiler for v6e did not finish in time and was stopped*",
            "hang_here*TIMED OUT 1/1*",
        ]
    )


def test_a_compiler_that_aborts_is_reported_with_its_last_words(compiling, monkeypatch):
    result = run(compiling, monkeypatch, "aborts")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["*the compiler for v6e crashed: *llvm.nvvm.elect.sync*", "hang_here*CRASHED 1/1*"]
    )


def test_a_compiler_that_takes_all_memory_is_stopped(compiling, monkeypatch):
    result = run(compiling, monkeypatch, "hogs", "--pallas-worker-memory=0.25")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        ["*the compiler for v6e took too much memory and was stopped*", "hang_here*OUT OF MEMORY*"]
    )


def test_a_crash_is_not_remembered(compiling, monkeypatch):
    run(compiling, monkeypatch, "aborts").assert_outcomes(passed=2, failed=1)
    run(compiling, monkeypatch, "works").assert_outcomes(passed=3)


def workers():
    """Children of this process that compile; the session around this test may have some."""
    command = ["pgrep", "-P", str(os.getpid()), "-f", "pytest_pallas"]
    return set(subprocess.run(command, capture_output=True, text=True).stdout.split())


def test_the_workers_end_with_the_session(compiling, monkeypatch):
    before = workers()
    run(compiling, monkeypatch, "works").assert_outcomes(passed=3)
    assert workers() <= before
