"""Inner projects: small folders in which the tests of this folder run pytest with the plugin."""

from __future__ import annotations

import gc
import itertools
import json
import os
import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pallas_test_support.chip_tables import chips_as_before
from pallas_test_support.forked_python import ForkedProcess, run_python
from pallas_test_support.imported import import_dask, import_everything

KERNELS = Path(__file__).parent / "kernels_source.py"

#: A test module with one test that passes.
ADD = """
    import numpy as np
    from kernels import *

    X = np.ones((8, 128), np.float32)

    def test_add(pallas_check):
        pallas_check(add, X, X, reference=reference)
"""

#: What every module of specs begins with.
SPECS = """
import numpy as np
from kernels import *
from pytest_pallas import ExpectedFailure, KernelSpec, strategies as pst

INPUTS = pst.arrays("m n, m n", dtype="float32", dims={"m": [8], "n": [128, 256]})
"""


@dataclass(frozen=True)
class Project:
    """A folder with ``kernels.py`` in it, and ways to run pytest there."""

    pytester: pytest.Pytester

    #: ``--pallas-isolate`` where a run does not say: workers take seconds to start.
    isolate: str | None = "never"

    @property
    def path(self) -> Path:
        """The folder."""
        return self.pytester.path

    def write(self, **modules: str) -> None:
        """Write Python modules, by name; ``conftest="..."`` writes the conftest."""
        for name, text in modules.items():
            (self.path / f"{name}.py").write_text(textwrap.dedent(text))

    def ini(self, **values: object) -> None:
        """Write pytest.ini."""
        lines = ["[pytest]", *(f"{name} = {value}" for name, value in values.items())]
        (self.path / "pytest.ini").write_text("\n".join(lines))

    def specs(self, *specs: str, name: str = "specs") -> None:
        """Write a module of specs: ``'name="add", kernel=add'`` and the like.

        What a spec does not say is ``reference=reference, inputs=INPUTS, vmappable=False``.
        """
        lines = [SPECS]
        for number, spec in enumerate(specs):
            defaults = {"reference": "reference", "inputs": "INPUTS", "vmappable": "False"}
            rest = ", ".join(f"{k}={v}" for k, v in defaults.items() if f"{k}=" not in spec)
            lines.append(f"SPEC_{number} = KernelSpec({spec}, {rest})")
        (self.path / f"{name}.py").write_text("\n".join(lines))

    def run(self, *args: str) -> pytest.RunResult:
        """Run pytest in this process. A warning is an error."""
        return self.pytester.runpytest_inprocess("-W", "error", *self.options(args), *args)

    def spawn(self, *args: str, fresh: bool = False, ours: bool = True) -> pytest.RunResult:
        """Run pytest in a process of its own.

        Args:
          *args: of pytest.
          fresh: whether it is a new interpreter, not the fork of one that has imported JAX.
          ours: whether that one has imported the plugin, too.
        """
        words = ("-W", "error", *self.options(args), *args)
        if fresh:
            return self.pytester.runpytest_subprocess(*words)
        base = tempfile.mkdtemp(prefix="runpytest-", dir=self.path)
        before = [*filter(None, [str(self.path), os.environ.get("PYTHONPATH", "")])]
        began = time.monotonic()
        done = run_python(
            *("-m", "pytest", f"--basetemp={base}", *words),
            cwd=self.path,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(before)},
            ours=ours,
        )
        sys.stdout.write(done.stdout)
        sys.stderr.write(done.stderr)
        lines = done.stdout.splitlines(), done.stderr.splitlines()
        return pytest.RunResult(done.returncode, *lines, time.monotonic() - began)

    def options(self, args: Sequence[str]) -> tuple[str, ...]:
        """What runs are given besides their arguments."""
        # A plugin of another package, which takes a third of a second to import in each process.
        options: tuple[str, ...] = ("-p", "no:jaxtyping")
        if self.isolate is not None and not any(a.startswith("--pallas-isolate") for a in args):
            options += ("-o", f"pallas_isolate={self.isolate}")
        return options

    def records(self, *args: str, spawn: bool = False) -> list[dict[str, Any]]:
        """The records of a run."""
        return self.results(*args, spawn=spawn)["records"]

    def results(self, *args: str, spawn: bool = False) -> dict[str, Any]:
        """All that a run writes of its results."""
        path = self.path / "results.json"
        path.unlink(missing_ok=True)  # of an earlier run
        (self.spawn if spawn else self.run)(*args, f"--pallas-results={path.name}")
        return json.loads(path.read_text())


def _forked_workers(patch: pytest.MonkeyPatch) -> None:
    """Have workers of xdist, of runs in this process, be forks that have imported JAX."""
    if not hasattr(os, "pidfd_open"):  # as on macOS
        return
    from execnet import gateway_base, gateway_io

    def start(io: Any, args: list[str], execmodel: Any) -> None:
        io.popen = ForkedProcess(args[-1])
        gateway_base.Popen2IO.__init__(io, io.popen.stdin, io.popen.stdout, execmodel)

    patch.setattr(gateway_io.Popen2IOMaster, "__init__", start)


class Installed:
    """A distribution whose files are read once: each inner run asks for all of them."""

    def __init__(self, distribution: metadata.Distribution) -> None:
        self._distribution = distribution

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._distribution, name)
        if name in ("entry_points", "files", "metadata", "version"):
            setattr(self, name, value)
        return value


@pytest.fixture(scope="session", autouse=True)
def _imported() -> Iterator[None]:
    import_everything()
    # What is imported by now stays: the collector need not look through it in every run.
    gc.collect()
    gc.freeze()
    distributions = metadata.distributions
    installed = [*map(Installed, distributions())]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            metadata,
            "distributions",
            lambda **context: distributions(**context) if context else iter(installed),
        )
        _forked_workers(patch)
        yield


@pytest.fixture(scope="session")
def dask() -> None:
    """For runs with ``--pallas-fleet`` in this process."""
    import_dask()


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Iterator[Project]:
    """A folder to run pytest in, without the settings and the failing examples of others."""
    from hypothesis.configuration import set_hypothesis_home_dir

    for name in list(os.environ):
        if name.startswith("PYTEST_XDIST"):
            monkeypatch.delenv(name)
    shutil.copy(KERNELS, pytester.path / "kernels.py")
    # Python compares bytecode with its source by size and whole seconds: a test that writes a file
    # twice, as long as before, would run the first text.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    # An inner run settles the device count in the environment; the outer one has its own.
    monkeypatch.setenv("JAX_NUM_CPU_DEVICES", os.environ.get("JAX_NUM_CPU_DEVICES", "8"))
    set_hypothesis_home_dir(pytester.path / ".hypothesis")
    with chips_as_before():
        yield Project(pytester)
    set_hypothesis_home_dir(None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[], float]:
    """The time of fuzzing, which each look at it advances by a hundredth of a second."""
    from pytest_pallas.report import reporter as progress
    from pytest_pallas.run import fuzzing, item, rounds

    looks = itertools.count(1)
    ticking = SimpleNamespace(monotonic=lambda: next(looks) / 100)
    for module in (fuzzing, item, progress, rounds):
        monkeypatch.setattr(module, "time", ticking)
    return ticking.monotonic
