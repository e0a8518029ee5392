"""Beside pytest-randomly, -rerunfailures, -timeout, -cov, -asyncio and anyio, all at once.

They are the dependency group ``plugins``: ``uv run --isolated --group plugins pytest <this file>``.
"""

from __future__ import annotations

import json
import re
from importlib import metadata

import pytest

#: The distributions, and their plugins.
OTHERS = {
    "pytest-randomly": "randomly",
    "pytest-rerunfailures": "rerunfailures",
    "pytest-timeout": "timeout",
    "pytest-cov": "pytest_cov",
    "pytest-asyncio": "asyncio",
    "anyio": "anyio",
}

SPECS = """
    from kernels import *
    from pytest_pallas import KernelSpec, strategies as pst, suite

    SPEC = KernelSpec(
        name="add", kernel=add, reference=reference, vmappable=False,
        inputs=pst.arrays("m n, m n", around=8, dtype=pst.floats()),
    )
    test_kernels = suite(SPEC)
"""

TESTS = """
    import asyncio
    import random
    from pathlib import Path

    import numpy as np
    import pytest
    from hypothesis import given
    from kernels import *
    from pytest_pallas import strategies as pst

    X = np.ones((8, 128), np.float32)

    def test_fixture(pallas_check, pallas_rng):
        x = pallas_rng.standard_normal((8, 128)).astype(np.float32)
        with open("drawn.txt", "a") as file:
            file.write(f"{x.sum()}\\n")
        pallas_check(add, x, x, reference=reference)

    @given(args=pst.arrays("m n, m n", dims={"m": [8], "n": [128, 256]}, dtype="float32"))
    def test_given(pallas_check, args):
        pallas_check(add, *args, reference=reference)

    @pytest.mark.asyncio
    async def test_asyncio(pallas_run):
        await asyncio.sleep(0)
        assert (pallas_run(add, X, X) == 2).all()

    @pytest.fixture
    def anyio_backend():
        return "asyncio"

    @pytest.mark.anyio
    async def test_anyio(pallas_check, anyio_backend):
        pallas_check(add, X, X, reference=reference)

    def test_flaky(pallas_check):
        tried = Path("tried")
        first = not tried.exists()
        tried.touch()
        pallas_check(add_wrong if first else add, X, X, reference=reference)

    @pytest.mark.timeout(100)
    def test_in_time(pallas_check):
        pallas_check(add, X, X, reference=reference)
"""


@pytest.fixture
def crowded(project, monkeypatch):
    """A project with a spec and tests, where all of these plugins are loaded."""
    missing = ", ".join(name for name in OTHERS if not _is_installed(name))
    if missing:
        pytest.skip(f"uv run --isolated --group plugins installs {missing}; .ci/run does")
    monkeypatch.delenv("PYTEST_ADDOPTS")
    project.write(test_specs=SPECS, test_own=TESTS)
    project.ini(asyncio_default_fixture_loop_scope="function", markers="anyio")
    return project


def _is_installed(name):
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def run(project, seed, *words):
    """One run in a shuffled order; its result, and its records without what differs by order."""
    for name in ("tried", "drawn.txt"):
        (project.path / name).unlink(missing_ok=True)
    result = project.spawn(
        f"--randomly-seed={seed}", "--reruns=1", "--timeout=200", "--cov=kernels", "-v",
        "--pallas-profile=quick", "--pallas-results=results.json", *words, fresh=True,
    )  # fmt: skip
    records = json.loads((project.path / "results.json").read_text())["records"]
    drawn = {
        record["test"]: (record["outcome"], record["signatures"], record["examples"])
        for record in records
    }
    return result, drawn, (project.path / "drawn.txt").read_text()


def test_all_of_them_at_once(crowded):
    result, records, drawn = run(crowded, 1)
    text = result.stdout.str()
    assert result.ret == pytest.ExitCode.OK, text[-5000:]
    for name in OTHERS:
        assert re.search(rf"^plugins: .*{name.removeprefix('pytest-')}-", text, re.MULTILINE), name
    assert "Using --randomly-seed=1" in text
    assert re.search(r"^kernels\.py +\d+ +\d+ +\d+%$", text, re.MULTILINE)  # coverage
    assert re.search(r"test_flaky\[tpu-sim\] RERUN", text)
    assert "1 rerun" in text
    wanted = {"fixture", "given", "anyio", "flaky", "in_time"}  # pallas_run has no record
    own = {f"test_own.py::test_{name}[tpu-sim]" for name in wanted}
    assert own < set(records)
    assert {record[0] for record in records.values()} == {"passed"}
    assert len([test for test in records if test.startswith("test_specs.py")]) >= 8

    ran = re.findall(r"^test_own\.py::(test_\w+)\S* PASSED", text, re.MULTILINE)
    written = re.findall(r"def (test_\w+)", TESTS)
    assert sorted(ran) == sorted(written)
    assert ran != written  # shuffled

    # Another order, and other seeds of random and numpy, in two processes: the same draws.
    other, again, redrawn = run(crowded, 2, "-n2")
    assert other.ret == pytest.ExitCode.OK, other.stdout.str()[-5000:]
    assert again == records
    assert redrawn == drawn


def test_a_test_of_its_own_process_runs_again(crowded):
    result = crowded.spawn(
        "--reruns=1", "--timeout=200", "--pallas-isolate=always", "-v", "-k", "flaky or in_time",
        fresh=True,
    )  # fmt: skip
    text = result.stdout.str()
    assert result.ret == pytest.ExitCode.OK, text[-5000:]
    assert re.search(r"test_flaky\[tpu-sim\] RERUN", text)
    assert "2 passed" in text
    assert "1 rerun" in text
