"""The first minutes of a user: a new environment, the wheel, and nine kernels of somebody else.

    uv run python benchmarks/onboarding.py

It makes a virtual environment in a temporary folder, installs the wheel of this checkout there and
runs `tests/support/newcomer`, a package with five right kernels and four wrong ones: by tests with
``pallas_check``, and by specs that say nothing but name, kernel, reference and inputs, in the quick
profile. It prints seconds, the wrong kernels that were found, and right ones that were blamed.

Installing depends on the network and on caches: it is no part of the other times.

Measured on 25 November 2026 with JAX 0.12.0.1, while other work took both cores (load 5): installed
in 26 s from a local cache of packages; the first test 6.4 s, bytecode of all packages read for the
first time; all tests 3.7 s; all specs 17.3 s. Tests and specs found 4 of 4 wrong kernels, and
blamed no right one.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROJECT = ROOT / "tests/support/newcomer"

#: What a run of tests or specs is called, and its options.
RUNS = {
    "one test": ("tests/test_kernels.py::test_softmax",),
    "tests": ("tests",),
    "specs": ("--pallas-suite=kernels.specs", "--pallas-profile=quick"),
}


@dataclass(frozen=True)
class Run:
    """A run of pytest in the new environment.

    Attributes:
      seconds: of the whole process.
      tested: the kernels with at least one record.
      failed: those with a failure.
    """

    seconds: float
    tested: frozenset[str]
    failed: frozenset[str]

    @property
    def found(self) -> list[str]:
        """The wrong kernels that failed."""
        return sorted(name for name in self.failed if name.startswith("wrong_"))

    @property
    def blamed(self) -> list[str]:
        """The right kernels that failed."""
        return sorted(self.failed - set(self.found))


def install(folder: Path) -> Path:
    """A virtual environment with the wheel of this checkout; returns its interpreter."""
    wheels = folder / "dist"
    subprocess.run(
        ["uv", "build", "--quiet", "--wheel", "--out-dir", wheels, ROOT], check=True, cwd=folder
    )
    subprocess.run(
        ["uv", "venv", "--quiet", "--python", sys.executable, "venv"], check=True, cwd=folder
    )
    python = folder / "venv/bin/python"
    wheel = next(wheels.glob("*.whl"))
    command = ["uv", "pip", "install", "--quiet", "--compile-bytecode", "--python", python, wheel]
    subprocess.run(command, check=True, cwd=folder)
    return python


def run(python: Path, project: Path, options: Sequence[str]) -> Run:
    """Run pytest in the project, as somebody does there."""
    results = project / "results.json"
    results.unlink(missing_ok=True)
    kept = {
        k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV", "JAX_"))
    }
    started = time.perf_counter()
    subprocess.run(
        [python, "-m", "pytest", "-q", f"--pallas-results={results}", *options],
        cwd=project,
        env=kept,
        stdout=subprocess.DEVNULL,
    )
    seconds = time.perf_counter() - started
    records = json.loads(results.read_text())["records"]
    return Run(
        seconds,
        frozenset(record["kernel"] for record in records),
        frozenset(record["kernel"] for record in records if record["outcome"] == "failed"),
    )


def main() -> None:
    """Install, run, and print."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.perf_counter()
        python = install(folder)
        print(f"installed in {time.perf_counter() - started:.1f} s")
        shutil.copytree(PROJECT, folder / "project")
        for words, options in RUNS.items():
            done = run(python, folder / "project", options)
            wrong = sum(each.startswith("wrong_") for each in done.tested)
            print(
                f"{words:<9} {done.seconds:5.1f} s  {len(done.tested)} kernels, "
                f"{len(done.found)} of {wrong} wrong ones found, {len(done.blamed)} right ones "
                f"blamed {' '.join(done.blamed)}".rstrip()
            )


if __name__ == "__main__":
    main()
