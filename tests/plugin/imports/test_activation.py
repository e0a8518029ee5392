"""What a session begins to take part with, where no option is given."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from pallas_test_support.forked_python import run_python

KERNELS = Path(__file__).parents[1] / "kernels_source.py"

CHECKED = """
    import numpy as np
    from kernels import add

    X = np.ones((8, 128), np.float32)

    def test_add(pallas_check):
        pallas_check(add, X, X, reference=lambda x, y: x + y, checks="forward")
"""

LATE = """
    import unittest

    import pytest
    import numpy as np
    from kernels import add

    X = np.ones((8, 128), np.float32)

    @pytest.fixture
    def late(request):
        return request.getfixturevalue("pallas_check")

    def test_add(late):
        late(add, X, X, reference=lambda x, y: x + y, checks="forward")
"""

CLASS = """
    import unittest

    import pytest
    import numpy as np
    from kernels import add

    X = np.ones((8, 128), np.float32)

    class TestAdd(unittest.TestCase):
        @pytest.fixture(autouse=True)
        def _take(self, pallas_check):
            self.check = pallas_check

        def test_add(self):
            self.check(add, X, X, reference=lambda x, y: x + y, checks="forward")
"""

SUITE = """
    import pytest_pallas

    test_kernels = pytest_pallas.suite("specs")
"""

SPECS = """
    from kernels import add
    from pytest_pallas import KernelSpec, strategies as pst

    SPEC = KernelSpec(name="add", kernel=add, reference=lambda x, y: x + y, checks=("forward",),
                      backends=("tpu-sim",), inputs=pst.arrays("m n, m n"))
"""

HOOK = """
    def pytest_pallas_specs(config):
        import specs
        return [specs.SPEC]
"""


def run(folder, test, *args, conftest="", fresh=False):
    """What pytest prints for a test in a process of its own, ``fresh`` if nothing is imported."""
    kernels = KERNELS.read_text()
    files = {"kernels.py": kernels, "test_it.py": test, "specs.py": SPECS, "conftest.py": conftest}
    for name, text in files.items():
        (folder / name).write_text(text if text is kernels else textwrap.dedent(text))
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    if not fresh:
        words = ("-m", "pytest", "-W", "error", "-p", "no:jaxtyping", *args)
        done = run_python(*words, cwd=folder, env=environment)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr
    out = subprocess.run(
        [sys.executable, "-W", "error", "-m", "pytest", "-p", "no:jaxtyping", *args],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert out.returncode == 0, out.stdout + out.stderr
    return out.stdout


@pytest.mark.parametrize(
    ("test", "conftest"),
    [(CHECKED, ""), (LATE, ""), (CLASS, ""), (SUITE, ""), ("def test_it(): pass", HOOK)],
    ids=["a fixture", "a fixture asked for late", "a TestCase", "a suite", "a hook"],
)
def test_the_run_reports_what_was_checked(tmp_path, test, conftest):
    text = run(tmp_path, test, conftest=conftest, fresh=test is CHECKED)
    assert ("pallas: jax " in text) == (test is not LATE)  # after the header is too late
    assert "1 kernel without failures" in text or "add " in text


def test_the_first_test_runs_on_every_backend_that_its_mark_names(tmp_path):
    test = """
        import pytest

        @pytest.mark.pallas(backends=["tpu-sim", "interpret"])
        def test_both(pallas_backend):
            pass
    """
    assert "2 passed" in run(tmp_path, test)


def test_workers_of_xdist_report_what_they_checked(tmp_path):
    text = run(tmp_path, CHECKED, "-n", "1")
    assert "pallas: jax " in text
    assert "add " in text


def test_a_mark_alone_is_enough(tmp_path):
    test = """
        import pytest

        @pytest.mark.pallas(isolate="never")
        def test_nothing():
            pass
    """
    assert "pallas: jax " in run(tmp_path, test)


def test_a_file_of_results_is_written_without_a_kernel(tmp_path):
    run(tmp_path, "def test_nothing(): pass", "--pallas-results=results.json")
    assert json.loads((tmp_path / "results.json").read_text())["records"] == []


def test_a_plain_run_says_nothing(tmp_path):
    assert "pallas: jax" not in run(tmp_path, "def test_nothing(): pass", fresh=True)


COLLECTED = """
    import gc

    def test_before():
        assert gc.get_threshold()[0] == {most}

    def test_add(pallas_check):
        pass
"""


@pytest.mark.parametrize(("own", "most"), [(700, 20_000), (50_000, 50_000), (0, 0)])
def test_the_garbage_collector_runs_seldom(pytester, own, most):
    """Until the session ends. A process that collects less often, or never, goes on so."""
    pytester.makepyfile(textwrap.dedent(COLLECTED).format(most=most))
    usual = gc.get_threshold()
    try:
        gc.set_threshold(own, 10, 10)
        result = pytester.runpytest_inprocess("--pallas-seed=1")
        assert gc.get_threshold()[0] == own
    finally:
        gc.set_threshold(*usual)
    result.assert_outcomes(passed=2)
