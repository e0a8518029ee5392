"""Seconds and memory of large runs: many specs, many tests with fixtures, many records.

    uv run python benchmarks/scale.py [--specs 2000] [--tests 10000] [--records 100000] [--rows 10]

Each of the first two is a generated project and one process of pytest, which prints a row for each
tenth of its tests: processor seconds since the first test, resident memory, and the mean per test
of that tenth. Collection has a row of its own. A run of as many empty tests says what pytest keeps.
Every test has shapes of its own; every second one also makes its kernel anew, as tests with nested
functions do. ``--specs 0`` leaves a part out. Prints tables; asserts nothing.

The last word of a table compares the second half with the first, without the first row, in which
processes warm up: "linear at most" if a test of the second half takes at most 1.25 times as long,
and adds at most 1.25 times the memory, give or take 1 % of all.

The third joins files of shards by ``pytest-pallas merge``: seconds, peak memory and bytes written,
for ``--output`` and for ``--html``, with a tenth of the records and with all.

Seen with JAX 0.12.0.1, Python 3.13, two cores under some other work; all linear at most:

- 10,000 empty tests: 0.3 ms and 3.0 kB each, from 83 to 113 MB.
- 10,000 tests with fixtures: 10 ms each. 340 MB collected, 472 MB after 1,000 tests, when the
  caches are full, and 530 MB at the end: 6.5 kB a test, with the 3 kB of pytest and its record.
- 2,000 specs, one check each: 38 s and 390 MB collected, then 50 ms a test. 409 MB after 200 tests,
  425 MB at the end: 9 kB each.
- 100,000 records, 89 MB in 4 files: peak 320 MB, also with ``--output`` (112 MB) and ``--html``
  (8.9 MB); 10,000 records: 60 to 64 MB. 29 s for the table, 39 s with ``--output``.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytest_pallas.record import SCHEMA, Record, to_json

#: Tests or specs in a file.
PER_FILE = 20

#: Factor up to which the second half counts as linear.
MOST = 1.25

#: Share of the resident memory that comes and goes: allocators take it in pieces of megabytes.
NOISE = 0.01

#: One of so many records fails.
FAILING = 200

KERNELS = """
import functools
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl
from pytest_pallas import KernelSpec, strategies as pst

def body(x_ref, o_ref, *, factor):
    o_ref[...] = jnp.tanh(x_ref[...]) * factor

def scaled(x, *, factor):
    return pl.pallas_call(
        functools.partial(body, factor=factor),
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(x.shape[0], 8),),
        in_specs=[pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0))],
        out_specs=pl.BlockSpec((8, x.shape[1]), lambda i: (i, 0)),
    )(x)

def reference(x, *, factor):
    return jnp.tanh(x) * factor
"""

SPEC = """
SPEC_{0} = KernelSpec(
    name="scaled_{0}",
    kernel=functools.partial(scaled, factor={0}),
    reference=functools.partial(reference, factor={0}),
    inputs=pst.arrays("m n", dtype="float32", dims={{"m": [8, 16, 24], "n": [128]}}),
)
"""

TESTS = """
@pytest.mark.parametrize("number", range({0}, {1}))
def test_scaled(pallas_check, pallas_rng, number):
    kernel, plain = scaled, reference
    if number % 2:
        def kernel(x, *, factor):
            return scaled(x, factor=factor)
        def plain(x, *, factor):
            return reference(x, factor=factor)
    x = pallas_rng.normal(size=(8 * (1 + number // 64 % 8), 128 + number % 64)).astype(np.float32)
    pallas_check(kernel, x, reference=plain, options={{"factor": number}})

@pytest.mark.parametrize("number", range({0}, {1}))
def test_run(pallas_run, pallas_rng, number):
    x = pallas_rng.normal(size=(8 * (1 + number // 64 % 8), 128 + number % 64)).astype(np.float32)
    assert pallas_run(scaled, x, factor=float(number)).shape == x.shape
"""

EMPTY = """
import pytest

@pytest.mark.parametrize("number", range({0}, {1}))
def test_nothing(number):
    pass
"""

CONFTEST = """
import sys
sys.path.insert(0, {0!r})
from benchmark_scale import pytest_runtest_logfinish, pytest_runtestloop
"""

_PAGE = os.sysconf("SC_PAGE_SIZE")
_run: dict[str, Any] = {}


def resident() -> int:
    """Bytes of memory of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE


def pytest_runtestloop(session: Any) -> None:
    """Tests are collected."""
    _run.update(count=len(session.items), done=0, began=time.process_time())
    _write(0)


def pytest_runtest_logfinish() -> None:
    """A test has ended; note each tenth."""
    _run["done"] += 1
    rows, count = int(os.environ["BENCHMARK_ROWS"]), _run["count"]
    if _run["done"] * rows // count > (_run["done"] - 1) * rows // count:
        _write(_run["done"])


def _write(done: int) -> None:
    row = {"tests": done, "seconds": time.process_time() - _run["began"], "bytes": resident()}
    row["clock"] = time.time()
    with Path(os.environ["BENCHMARK_FILE"]).open("a") as file:
        file.write(json.dumps(row) + "\n")


def run_pytest(title: str, files: dict[str, str], rows: int, arguments: Sequence[str]) -> None:
    """Run pytest on a project of these files, and print the table."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path, text in files.items():
            (folder / path).parent.mkdir(exist_ok=True)
            (folder / path).write_text(text)
        (folder / "benchmark_scale.py").write_text(Path(__file__).read_text())
        (folder / "conftest.py").write_text(CONFTEST.format(str(folder)))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", *arguments]
        file = folder / "rows"
        environment = {**os.environ, "BENCHMARK_FILE": str(file), "BENCHMARK_ROWS": str(rows)}
        began = time.time()
        run = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
        if run.returncode:
            sys.exit(run.stdout[-3000:] + run.stderr[-3000:])
        ended = time.time()
        found = [json.loads(line) for line in file.read_text().splitlines()]
    first, last = found[0], found[-1]
    print(f"\n{title}: {last['tests']:,} tests")
    print(f"  collected in {first['clock'] - began:8.1f} s {first['bytes'] / 1e6:8.0f} MB")
    print(f"  {'tests':>8} {'seconds':>9} {'MB':>7} {'ms/test':>9} {'kB/test':>9}")
    for before, row in itertools.pairwise(found):
        count = row["tests"] - before["tests"]
        print(
            f"  {row['tests']:8,} {row['seconds']:9.1f} {row['bytes'] / 1e6:7.0f}"
            f" {(row['seconds'] - before['seconds']) / count * 1e3:9.1f}"
            f" {(row['bytes'] - before['bytes']) / count / 1e3:9.1f}"
        )
    print(f"  reported in {ended - last['clock']:9.1f} s; {judged(found)}", flush=True)


def judged(rows: Sequence[dict[str, Any]]) -> str:
    """Whether seconds and memory grow linearly at most, from the second row on."""
    middle = (len(rows) + 1) // 2
    words: list[str] = []
    for name, noise in (("seconds", 0.0), ("bytes", NOISE * rows[-1]["bytes"])):
        first, second = (
            (after[name] - before[name], max(1, after["tests"] - before["tests"]))
            for before, after in ((rows[1], rows[middle]), (rows[middle], rows[-1]))
        )
        linear = second[0] <= MOST * first[0] / first[1] * second[1] + noise
        words.append(f"{name}: {'linear at most' if linear else 'MORE THAN LINEAR'}")
    return ", ".join(words)


def chunks(count: int) -> Sequence[tuple[int, int]]:
    """The numbers of each file: first, and after the last."""
    return [(n, min(n + PER_FILE, count)) for n in range(0, count, PER_FILE)]


def merge(count: int) -> None:
    """Join four files with so many records."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        shards = [folder / f"shard-{shard}.json" for shard in range(4)]
        for shard, path in enumerate(shards):
            write_shard(path, shard + 1, range(shard, count, 4))
        size = sum(path.stat().st_size for path in shards)
        print(f"\nmerge: {count:,} records in 4 files, {size / 1e6:.0f} MB")
        for option, output in (("", ""), ("--output", "all.json"), ("--html", "all.html")):
            words = [option, output] if option else []
            command = [sys.executable, "-m", "pytest_pallas", "merge", *map(str, shards), *words]
            began = time.perf_counter()
            with (folder / "said").open("w") as said:
                process = subprocess.Popen(command, cwd=folder, stdout=said, stderr=said)
                _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - began
            if os.waitstatus_to_exitcode(status) not in (0, 1):
                sys.exit((folder / "said").read_text()[-3000:])
            written = sum(p.stat().st_size for p in folder.glob(f"{output}*")) if output else 0
            print(
                f"  {option or 'table only':<11} {seconds:7.1f} s, peak"
                f" {usage.ru_maxrss / 1e3:6.0f} MB, wrote {written / 1e6:6.1f} MB",
                flush=True,
            )


def write_shard(path: Path, index: int, numbers: range) -> None:
    """Write a results file with a record for each number."""
    records = [to_json(record(number)) for number in numbers]
    tests = [
        {"test": each["test"], "outcome": each["outcome"], "seconds": each["seconds"]}
        | ({"failures": [FAILURE]} if each["outcome"] == "failed" else {})
        for each in records
    ]
    plain = {
        "schema": SCHEMA, "environment": {"python": "3"}, "options": {"shard": [index, 4]},
        "suite": {}, "records": records, "tests": tests, "not_applicable": [],
    }  # fmt: skip
    path.write_text(json.dumps(plain))


FAILURE = {"when": "call", "message": "E  it is wrong\n" * 40, "summary": "it is wrong"}

BACKENDS = ("interpret", "tpu-sim:v5e", "tpu-sim:v6e", "gpu-interpret")
CHECKS = ("forward", "gradient", "vmap", "determinism", "immutability", "dtype", "jit", "grid")


def record(number: int) -> Record:
    """A record as large suites have: 32 for each kernel, one of 200 failed."""
    kernel = f"kernel_{number // 32:05}"
    check, backend = CHECKS[number % 8], BACKENDS[number // 8 % 4]
    fails = number % FAILING == 7
    return Record(
        test=f"suite/{kernel}.py::{kernel}-{check}[{backend}]",
        kernel=kernel,
        family=f"family_{number // 640}",
        check=check,
        backend=backend,
        outcome="failed" if fails else "passed",
        message=f"{kernel}: {check} on {backend} is wrong\noutput, float32[8, 8]: wrong" * fails,
        examples=8,
        error=number % 7 / 4,
        multiple=number % 7 / 5,
        seconds=number % 11 / 10,
        inputs={
            "shapes": ["8x128", "16x128"],
            "signatures": 2,
            "tried": {"dim m": ["one", "tile"]},
            "never": {"dim m": ["tile+1"]},
        },
        signatures=(f"{number // 32:016x}", f"{number // 32 + 1:016x}"),
    )


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--specs", type=int, default=2_000)
    parser.add_argument("--tests", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--rows", type=int, default=10)
    parser.add_argument("--checks", default="forward", help="checks of the specs")
    given = parser.parse_args()
    if given.tests:
        half = given.tests // 2
        files = {f"tests/test_{a:06}.py": EMPTY.format(a, b) for a, b in chunks(given.tests)}
        run_pytest("empty tests", files, given.rows, ["tests"])
        files = {f"tests/test_{a:06}.py": KERNELS + TESTS.format(a, b) for a, b in chunks(half)}
        run_pytest("pallas_check and pallas_run", files, given.rows, ["tests"])
    if given.specs:
        files = {
            f"suite/specs_{a:06}.py": KERNELS + "".join(SPEC.format(n) for n in range(a, b))
            for a, b in chunks(given.specs)
        }
        words = ["--pallas-suite=suite", f"--pallas-checks={given.checks}"]
        run_pytest("specs", files, given.rows, [*words, "--pallas-max-examples=3"])
    if given.records:
        merge(given.records // 10)
        merge(given.records)


if __name__ == "__main__":
    main()
