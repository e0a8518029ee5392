"""The edit-run loop of a kernel's author: whole processes, from start to summary.

    uv run python benchmarks/edit_loop.py [--runs=5]

Three ways to test a small softmax (blocks of 8 rows) in a module of its own, with nothing kept from
an earlier run but compiled bytecode, as ``pip install`` leaves it:

- one ``pallas_check`` of one call (target: under 3 s),
- ``@given`` with 20 examples (target: under 4 s),
- its ``KernelSpec`` with the profile ``quick`` (target: under 4 s).

It says where the time goes: what importing takes before anything is tested (pytest and its plugins,
JAX, Pallas, hypothesis), each measured in a process of its own, and in the run how long
tracing by JAX, compiling by XLA, simulating and judging took; the rest is drawing and reporting.

Measured on 23 November 2026 on 2 cores, one run: 1.6 s, 2.1 s and 2.4 s, of which 0.9 to 1.2 s
until the tests were collected.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KERNEL = '''
"""A softmax over rows, eight rows a block."""

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst


def softmax_kernel(x_ref, o_ref):
    e = jnp.exp(x_ref[...] - jnp.max(x_ref[...], axis=1, keepdims=True))
    o_ref[...] = e / jnp.sum(e, axis=1, keepdims=True)


def softmax(x):
    block = pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))
    shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
    grid = (pl.cdiv(x.shape[0], 8),)
    return pl.pallas_call(
        softmax_kernel, out_shape=shape, grid=grid, in_specs=[block], out_specs=block
    )(x)
'''

ONE = """
import jax
import numpy as np
from kernels.softmax import softmax


def test_softmax(pallas_check):
    x = np.random.default_rng(0).normal(size=(17, 100)).astype(np.float32)
    pallas_check(softmax, x, reference=jax.nn.softmax)
"""

GIVEN = """
import jax
from hypothesis import given, settings
from kernels.softmax import softmax
from pytest_pallas import strategies as pst


@settings(max_examples=20)
@given(args=pst.arrays("m n", around={"m": 8}))
def test_softmax(pallas_check, args):
    pallas_check(softmax, *args, reference=jax.nn.softmax)
"""

SPEC = """

SPEC = KernelSpec(
    name="softmax",
    kernel=softmax,
    reference=jax.nn.softmax,
    inputs=pst.arrays("m n", around={"m": 8}),
)
"""

#: What is imported before anything is tested, as Python that imports it.
IMPORTS = {
    "python": "pass",
    "pytest": "import pytest",
    "jax": "import jax",
    "jax and pallas": "import jax; from jax.experimental import pallas; "
    "from jax.experimental.pallas import tpu",
    "hypothesis": "import hypothesis",
    "simulator": "import jax; import pytest_pallas.simulator",
}

#: A plugin that writes where the time of a run went.
PARTS = """
import json
import os
import time
from collections import Counter

spent = Counter()
STARTED = time.perf_counter()


def timed(owner, name, part):
    function = getattr(owner, name)

    def wrapper(*args, **options):
        started = time.perf_counter()
        try:
            return function(*args, **options)
        finally:
            spent[part] += time.perf_counter() - started

    setattr(owner, name, wrapper)


def pytest_collection_finish(session):
    spent["until collected"] = time.perf_counter() - STARTED
    from jax import monitoring
    from importlib import import_module

    simulate = import_module("pytest_pallas.simulator.simulate")
    from pytest_pallas.checks import context

    events = {
        "/jax/core/compile/jaxpr_trace_duration": "tracing",
        "/jax/core/compile/backend_compile_duration": "compiling",
    }
    monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: spent.update({events[event]: seconds})
        if event in events else None
    )
    timed(simulate, "evaluate", "simulating")
    timed(context, "compare_trees", "judging")


def pytest_sessionfinish(session):
    spent["in all"] = time.perf_counter() - STARTED
    with open(os.environ["BENCHMARK_PARTS"], "w") as file:
        json.dump(spent, file)
"""


def environment() -> dict[str, str]:
    """The caller's environment, with bytecode written and JAX on the CPU."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "JAX_PLATFORMS": "cpu"}


def seconds(command: list[str], folder: Path, **more: str) -> float:
    """Wall time of a process that must succeed."""
    started = time.perf_counter()
    done = subprocess.run(
        command, cwd=folder, env={**environment(), **more}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return time.perf_counter() - started


def project(folder: Path) -> dict[str, list[str]]:
    """A project with the kernel and its tests; the pytest arguments of each way to test it."""
    (folder / "kernels").mkdir()
    (folder / "kernels" / "__init__.py").write_text("")
    (folder / "kernels" / "softmax.py").write_text(KERNEL.lstrip())
    (folder / "kernels" / "verified.py").write_text((KERNEL + SPEC).lstrip())
    (folder / "test_one.py").write_text(ONE.lstrip())
    (folder / "test_given.py").write_text(GIVEN.lstrip())
    (folder / "parts.py").write_text(PARTS.lstrip())
    return {
        "one pallas_check": ["test_one.py"],
        "@given, 20 examples": ["test_given.py"],
        "KernelSpec, quick": ["--pallas-suite=kernels.verified", "--pallas-profile=quick"],
    }


def main() -> None:
    """Print the medians, and the parts of one run of each."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ways = project(folder)
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        pytest += ["-o", "pythonpath=."]
        nothing = "none"
        for arguments in ways.values():  # writes bytecode
            seconds([*pytest, *arguments, f"--pallas-database={nothing}"], folder)
        print(f"median of {runs} processes, in seconds")
        for title, arguments in ways.items():
            command = [*pytest, *arguments, f"--pallas-database={nothing}"]
            times = [seconds(command, folder) for _ in range(runs)]
            parts = folder / "parts.json"
            seconds([*command, "-p", "parts"], folder, BENCHMARK_PARTS=str(parts), PYTHONPATH=".")
            spent = json.loads(parts.read_text())
            told = ", ".join(f"{part} {value:.2f}" for part, value in spent.items())
            print(f"{title:22} {statistics.median(times):6.2f}   {told}")
        print("imports alone:")
        for title, code in IMPORTS.items():
            times = [seconds([sys.executable, "-c", code], folder) for _ in range(runs)]
            print(f"  {title:20} {statistics.median(times):6.2f}")


if __name__ == "__main__":
    main()
