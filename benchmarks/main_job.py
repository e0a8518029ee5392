"""Where the time of the main job goes: by kernel, by backend, by check, in parts.

    uv run python benchmarks/main_job.py [pytest options, such as -n 2 --pallas-profile=quick]

Without ``--pallas-suite`` it runs all reference kernels. It loads itself into the run as a plugin,
which wraps the functions that do each part. Times are wall times and exclusive: what is nested in a
part and is another part counts there alone. The parts:

- ``drawing``: draw and choose examples;
- ``tracing``: JAX traces kernels (``reference tracing`` is that of references);
- ``simulation``: the simulator evaluates kernels;
- ``lowering``, ``compiling``: JAX and XLA, for what runs on JAX's interpreters;
- ``interpreting``: the rest of such a run;
- ``oracle``: the reference in float64 and in the kernel's dtypes, its noise and its sensitivity;
- ``judgement``: answers are compared;
- ``isolation``: waiting for a test in a worker, without what that worker spends on it;
- ``checks``: what of a check is none of these;
- ``the rest``: of the protocol of a test.

Collection is printed separately: each worker of pytest-xdist collects everything.

Measured on 23 November 2026 with JAX 0.12.0.1: basics, reductions and attention, quick profile, one
process on 2 cores with a load of 5 (the CPU time was two thirds of these times). 709 tests, 3,566
examples and 3,358 distinct triples in 295 s. The simulator took 109 s for 587 tests (tracing 42,
simulation 24, tracing references 12, checks 10, oracle 9, drawing 8, judgement 3), interpreters
186 s for 122 (compiling 115, lowering 32, tracing 13, interpreting 12). paged_attention_int8,
ragged_paged_attention and paged_attention took 53 to 60 s each, most of it in XLA; of simulated
ones grouped_query_attention took most, 12 s, half of it tracing. Collection: 4 s, tracing 2.3.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

#: Where the processes of the run write their parts: a line of JSON for each test and collection.
PARTS = "BENCHMARK_PARTS"

#: What is wrapped, by part: a function, or a method of a class.
WRAPPED = {
    "drawing": (
        "pytest_pallas.draw.examples:ExampleSource.choose",
        "pytest_pallas.draw.arrays:_draw",
        "pytest_pallas.draw.arguments:Arguments.with_values",
        "pytest_pallas.checks.inputs:inputs_of",
    ),
    "tracing": ("pytest_pallas.backends.simulators:_traced",),
    "simulation": ("pytest_pallas.backends.simulators:Simulator.run",),
    "interpreting": ("pytest_pallas.backends.interpreters:Interpreter.run",),
    "oracle": (
        "pytest_pallas.judge.oracle:expected",
        "pytest_pallas.judge.oracle:noise_of",
        "pytest_pallas.judge.oracle:_sensitivity",
        "pytest_pallas.judge.oracle:ExpectedCache.get",
    ),
    "judgement": ("pytest_pallas.judge.judgement:compare_trees",),
    "isolation": ("pytest_pallas.isolate.isolator:Isolator.run",),
    "checks": ("pytest_pallas.run.item:SpecItem._run_here",),
}

#: Durations that JAX reports, by part.
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}

#: The columns of the tables.
COLUMNS = (*WRAPPED, "reference tracing", "lowering", "compiling", "the rest")


class Account:
    """Seconds by part, exclusive.

    Attributes:
      spent: of what has ended.
      open: the parts that go on, the innermost last.
      ended: begin and end of what JAX reported, as far as nothing around it has ended.
    """

    def __init__(self) -> None:
        """Nothing spent."""
        self.spent: dict[str, float] = defaultdict(float)
        self.open: list[str] = []
        self.ended: list[tuple[float, float]] = []

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, which accounts for its time."""

        @functools.wraps(function)
        def run(*args: Any, **keywords: Any) -> Any:
            self.open.append(part)
            started = time.perf_counter()
            try:
                return function(*args, **keywords)
            finally:
                self.open.pop()
                self.end(part, started)

        return run

    def end(self, part: str, started: float) -> None:
        """Add what ends now, without what ended within it."""
        now = time.perf_counter()
        seconds = now - started
        # JAX uses another clock: what is within by its middle is within.
        while self.ended and sum(self.ended[-1]) / 2 > started:
            begin, end = self.ended.pop()
            seconds -= end - begin
        self.ended.append((started, now))
        if "oracle" in self.open and part in ("tracing", "simulation"):
            part = "reference tracing" if part == "tracing" else "oracle"
        self.spent[part] += seconds

    def heard(self, event: str, duration_secs: float, **kwargs: str | int) -> None:
        """Add what JAX reports."""
        if part := EVENTS.get(event):
            self.end(part, time.perf_counter() - duration_secs)

    def settle(self, **key: Any) -> None:
        """Write down what was spent, and begin anew."""
        with open(os.environ[PARTS], "a", encoding="utf-8") as file:
            print(json.dumps({**key, "process": os.getpid(), "spent": self.spent}), file=file)
        self.spent.clear()
        self.ended.clear()


account = Account()


@pytest.hookimpl(trylast=True)
def pytest_configure() -> None:
    """As a plugin of the run: wrap what does each part."""
    import pkgutil

    from jax import monitoring

    monitoring.register_event_duration_secs_listener(account.heard)
    for part, names in WRAPPED.items():
        for name in names:
            module, _, path = name.partition(":")
            owner, _, attribute = path.rpartition(".")
            holder = pkgutil.resolve_name(f"{module}:{owner}" if owner else module)
            function = getattr(holder, attribute)
            timed = account.timed(part, function)
            setattr(holder, attribute, timed)
            for other in list(sys.modules.values()):  # those that imported it by name
                if getattr(other, "__dict__", {}).get(attribute) is function:
                    setattr(other, attribute, timed)


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session) -> Iterator[None]:
    """Account for collection."""
    started = time.perf_counter()
    result = yield
    account.end("the rest", started)
    account.settle(collected=len(session.items))
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: Any) -> Iterator[None]:
    """Account for a test."""
    account.spent.clear()
    started = time.perf_counter()
    result = yield
    account.end("the rest", started)
    if hasattr(item, "spec"):
        backend = item.name.rpartition("[")[2].rstrip("]").partition("-x")[0]
        account.settle(
            test=item.nodeid, kernel=item.spec.name, backend=backend, check=item.check.name
        )
    return result


def read(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Tests by id: what their processes wrote of each, added up.

    What the worker of an isolated test spends is what its isolator waits for.
    """
    tests: dict[str, dict[str, Any]] = {}
    for line in lines:
        test = tests.setdefault(line["test"], {**line, "spent": Counter()})
        isolated = "isolation" not in line["spent"]  # each that reports asks an isolator
        test["spent"].update(line["spent"])
        if isolated:
            test["spent"]["isolation"] -= sum(line["spent"].values())
    return tests


def table(title: str, rows: Mapping[str, Any], most: int | None = None) -> None:
    """Print seconds by part, the slowest row first."""
    shown = [part for part in COLUMNS if any(row[part] >= 0.05 for row in rows.values())]
    widths = [max(8, len(part) + 2) for part in shown]
    heads = "".join(f"{part:>{width}}" for part, width in zip(shown, widths, strict=True))
    print(f"\n{title:<34}{'tests':>7}{'total':>8}{heads}")
    order = sorted(rows, key=lambda name: -sum(rows[name][part] for part in COLUMNS))
    for name in order[:most]:
        row = rows[name]
        total = sum(row[part] for part in COLUMNS)
        cells = (f"{row[part]:>{width}.1f}" for part, width in zip(shown, widths, strict=True))
        print(f"{name:<34}{row['tests']:>7}{total:>8.1f}{''.join(cells)}")


def main() -> None:
    """Run it and print where the time goes."""
    given = sys.argv[1:]
    if not any(word.startswith("--pallas-suite") for word in given):
        given.append("--pallas-suite=reference_kernels")
    with tempfile.TemporaryDirectory() as name:
        parts, results = Path(name) / "parts", Path(name) / "results.json"
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        environment = {PARTS: str(parts), "PYTHONPATH": os.pathsep.join(filter(None, paths))}
        command = [sys.executable, "-m", "pytest", "-q", "-p", "main_job"]
        started = time.perf_counter()
        run = subprocess.run(
            [*command, f"--pallas-results={results}", *given],
            stdout=subprocess.DEVNULL,
            env={**os.environ, **environment},
        )
        wall = time.perf_counter() - started
        lines = [json.loads(line) for line in parts.read_text().splitlines()]
        found = json.loads(results.read_text())["distinct"]
    tests = read([line for line in lines if "test" in line])
    groups: dict[str, dict[str, Counter[str]]] = {}
    for word in ("kernel", "backend", "check"):
        rows = groups.setdefault(word, defaultdict(Counter))
        for test in tests.values():
            rows[test[word]].update({**test["spent"], "tests": 1})
    print(f"{len(tests)} tests in {wall:.0f} s, exit status {run.returncode}: {found['examples']} "
          f"examples, {found['triples']} distinct triples")  # fmt: skip
    table("the ten slowest kernels", groups["kernel"], most=10)
    table("backend", groups["backend"])
    table("check", groups["check"])
    total = Counter[str]()
    for row in groups["backend"].values():
        total.update(row)
    table("total", {"all tests": total})
    collections = [line for line in lines if "collected" in line]
    table(
        "collection, by process",
        {
            f"process {line['process']}": Counter({**line["spent"], "tests": line["collected"]})
            for line in collections
        },
    )


if __name__ == "__main__":
    main()
