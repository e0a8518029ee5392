"""What isolation adds to a check, with a warm worker.

    uv run python benchmarks/isolation.py [tests]

Target: under 50 ms. One pytest run asks `forward` about two examples of many specs of one tiny
kernel, in this process and in a worker in turn, so that both see the same machine. The figure is
the median time between the ends of two tests that follow each other, collection left out; the first
few of each kind, in which processes start and kernels compile, are not counted. The second figure
is the start of the worker, which is paid once a session (and after each death).
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

#: Tests at the beginning that are not counted, of each kind.
WARM = 5

SPECS = """
import jax
from jax.experimental import pallas as pl
from pytest_pallas import KernelSpec, strategies as pst

def body(x_ref, o_ref):
    o_ref[...] = x_ref[...] + 1

def add_one(x):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

INPUTS = pst.arrays("m n", dtype="float32", dims={"m": [8], "n": [128]})
SPECS = [
    KernelSpec(name=f"add_{i}", kernel=add_one, reference=lambda x: x + 1, inputs=INPUTS)
    for i in range(%d)
]
"""

CONFTEST = """
import sys
sys.path.insert(0, %r)
from benchmark_isolation import pytest_runtest_logfinish, pytest_itemcollected, pytest_runtestloop
"""

_times: list[float] = []


def pytest_itemcollected(item: Any) -> None:
    """Isolate every other test."""
    import pytest

    if int(item.spec.name.partition("_")[2]) % 2:
        item.add_marker(pytest.mark.pallas(isolate="always"))


def pytest_runtestloop() -> None:
    """Start the clock."""
    _times.append(time.perf_counter())


def pytest_runtest_logfinish() -> None:
    """A test has ended."""
    _times.append(time.perf_counter())
    Path(os.environ["BENCHMARK_TIMES"]).write_text(json.dumps(_times))


def main(tests: int) -> None:
    """Run pytest and print the medians."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "specs.py").write_text(SPECS % (2 * tests))
        (folder / "benchmark_isolation.py").write_text(Path(__file__).read_text())
        (folder / "conftest.py").write_text(CONFTEST % str(folder))
        command = [sys.executable, "-m", "pytest", "-q", "--pallas-suite=specs"]
        command += ["--pallas-backend=interpret", "--pallas-checks=forward"]
        command += ["--pallas-max-examples=2", "--pallas-isolate=never"]
        environment = {**os.environ, "BENCHMARK_TIMES": str(folder / "times.json")}
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if run.returncode:
            sys.exit(run.stdout + run.stderr)
        times = json.loads((folder / "times.json").read_text())
    spans = [after - before for before, after in itertools.pairwise(times)]
    here, apart = spans[0::2], spans[1::2]
    started = apart[0] - statistics.median(apart[WARM:])
    in_process, isolated = (statistics.median(each[WARM:]) * 1000 for each in (here, apart))
    print(f"in process {in_process:6.1f} ms")
    print(f"isolated   {isolated:6.1f} ms, {isolated - in_process:.1f} ms more  (medians)")
    print(f"start of the worker {started:.1f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100)
