"""The edit-run loop of a kernel's author: whole processes, from start to summary.

    uv run python benchmarks/edit_loop.py [--runs=5]

Three ways to test a small softmax (blocks of 8 rows) in a module of its own:

- one ``pallas_check`` of one call (target: 1.7 s, fresh 2.5 s),
- ``@given`` with 20 examples,
- its ``KernelSpec`` with the profile ``quick`` (target: 2.2 s).

Each in CPU seconds of the process and its children, in three states of bytecode:

- warm: an earlier run wrote all of it,
- fresh: as ``pip install`` leaves it, without what pytest writes as it rewrites assertions, and
  ``PYTHONDONTWRITEBYTECODE=1``,
- cold: there is none, not even of JAX, and none is written.

It says where the time goes: what importing takes before anything is tested (pytest and its plugins,
JAX, Pallas, hypothesis), each measured in a process of its own, and in the run how long
tracing by JAX, compiling by XLA, simulating and judging took; the rest is drawing and reporting.
Run it with the Python of an environment in which pip installed the wheel: another environment may
have plugins of pytest that import more.

Measured on 26 November 2026 on 2 quiet cores, medians of 3, warm, fresh and cold: 1.2, 1.8 and
3.9 s; 1.8, 2.4 and 4.6 s; 1.9, 2.6 and 4.4 s. Importing pytest, JAX with Pallas and hypothesis
takes 0.8 s of that. What fresh takes more than warm is mostly pytest's rewriting of hypothesis,
which has a plugin, too.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
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

#: Variables that say where bytecode is written.
_OF_BYTECODE = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")

#: What is imported before anything is tested, as Python that imports it.
IMPORTS = {
    "python": "pass",
    "pytest": "import pytest",
    "jax": "import jax",
    "jax and pallas": "import jax; from jax.experimental import pallas; "
    "from jax.experimental.pallas import tpu",
    "hypothesis": "import hypothesis",
    "simulator": "import jax; import pallas_sim",
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

    simulate = import_module("pallas_sim.simulation")
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
    kept = {name: value for name, value in os.environ.items() if name not in _OF_BYTECODE}
    return {**kept, "JAX_PLATFORMS": "cpu"}


def seconds(command: list[str], folder: Path, **more: str) -> float:
    """CPU seconds of a process that must succeed, and of its children; user and system."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        command, cwd=folder, env={**environment(), **more}, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def bytecode_of_pip(folder: Path, commands: Iterable[list[str]]) -> Path:
    """A cache of bytecode as ``pip install`` leaves it: without what pytest rewrites."""
    cache = folder / "bytecode"
    for command in commands:
        seconds(command, folder, PYTHONPYCACHEPREFIX=str(cache))
    for rewritten in cache.rglob("*-pytest-*.pyc"):
        rewritten.unlink()
    return cache


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
        commands = {
            title: [*pytest, *arguments, f"--pallas-database={nothing}"]
            for title, arguments in ways.items()
        }
        for command in commands.values():  # writes bytecode
            seconds(command, folder)
        fresh = {"PYTHONDONTWRITEBYTECODE": "1"}
        installed = bytecode_of_pip(folder, commands.values())
        caches = (installed, folder / "no bytecode")
        print(f"median of {runs} processes, in CPU seconds; parts in seconds")
        print(f"{'':22} {'warm':>6} {'fresh':>6} {'cold':>6}")
        for title, command in commands.items():
            times = [[seconds(command, folder) for _ in range(runs)]]
            times += [
                [
                    seconds(command, folder, PYTHONPYCACHEPREFIX=str(each), **fresh)
                    for _ in range(runs)
                ]
                for each in caches
            ]
            parts = folder / "parts.json"
            seconds([*command, "-p", "parts"], folder, BENCHMARK_PARTS=str(parts), PYTHONPATH=".")
            spent = json.loads(parts.read_text())
            told = ", ".join(f"{part} {value:.2f}" for part, value in spent.items())
            medians = " ".join(f"{statistics.median(each):6.2f}" for each in times)
            print(f"{title:22} {medians}   {told}")
        print("imports alone:")
        for title, code in IMPORTS.items():
            times = [seconds([sys.executable, "-c", code], folder) for _ in range(runs)]
            print(f"  {title:20} {statistics.median(times):6.2f}")


if __name__ == "__main__":
    main()
