"""The time of the main job: by kernel and backend, by check, and the ten slowest with the reason.

    uv run python benchmarks/main_job.py [pytest options, such as -n 2 --pallas-profile=quick]

Target: under 10 minutes on 2 cores with ``-n 2 --pallas-profile=quick``. The reason is where the
time of a check goes by JAX's own account (``jax.monitoring``): tracing to jaxprs, lowering to MLIR,
compiling by XLA, with how many programs that were; what is left is the run of the kernel in its
interpreter, the oracle, and drawing.

Measured on 21 November 2026 on 2 cores, with JAX 0.12.0.1: 2,831 checks of 92 kernels in 355 s. The
slowest took 5 to 9 s, two thirds of that in XLA, a quarter in lowering: kernels that are long
programs (attention over pages, a ragged copy), asked for their copies on several devices, or with
memory filled otherwise, which is a program of its own. The default profile took 1,126 s.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

#: Where the run writes the parts of each test's time.
PARTS = "BENCHMARK_PARTS"

#: Durations that JAX reports, by what they are.
EVENTS = {
    "/jax/core/compile/jaxpr_trace_duration": "tracing",
    "/jax/core/compile/jaxpr_to_mlir_module_duration": "lowering",
    "/jax/core/compile/backend_compile_duration": "compiling",
}

_spent: Counter[str] = Counter()


def pytest_configure(config: pytest.Config) -> None:
    """As a plugin of the run: listen to what JAX says of its time."""
    del config
    from jax import monitoring

    def listen(event: str, duration: float, **_: Any) -> None:
        if part := EVENTS.get(event):
            _spent[part] += duration
            _spent["programs"] += part == "compiling"

    monitoring.register_event_duration_secs_listener(listen)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Keep what was spent in this test, where xdist carries it to the controller."""
    _spent.clear()
    try:
        return (yield)
    finally:
        item.user_properties.append(("spent", dict(_spent)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Write it down."""
    spent = dict(report.user_properties).get("spent")
    if report.when == "call" and spent is not None and "PYTEST_XDIST_WORKER" not in os.environ:
        with open(os.environ[PARTS], "a", encoding="utf-8") as file:
            print(json.dumps({"test": report.nodeid, **spent}), file=file)


def reason(record: dict[str, Any], spent: dict[str, float]) -> str:
    """Where the time of a check went, the largest part first."""
    parts = {name: spent.get(name, 0.0) for name in EVENTS.values()}
    parts["the rest"] = max(0.0, record["seconds"] - sum(parts.values()))
    words = [
        f"{name} {seconds / record['seconds']:.0%}"
        for name, seconds in sorted(parts.items(), key=lambda part: -part[1])
        if seconds > 0.05 * record["seconds"]
    ]
    programs = f"{spent.get('programs', 0):.0f} programs for {record['examples']} examples"
    return f"{', '.join(words)}; {programs}"


def main() -> None:
    """Run it and print where the time goes, the slowest first."""
    with tempfile.TemporaryDirectory() as name:
        results, parts = Path(name) / "results.json", Path(name) / "parts"
        parts.touch()
        command = [sys.executable, "-m", "pytest", "-q", "--pallas-suite=reference_kernels"]
        paths = [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
        started = time.perf_counter()
        run = subprocess.run(
            [*command, f"--pallas-results={results}", "-pmain_job", *sys.argv[1:]],
            stdout=subprocess.DEVNULL,
            env={
                **os.environ,
                PARTS: str(parts),
                "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            },
        )
        wall = time.perf_counter() - started
        records = json.loads(results.read_text())["records"]
        lines = map(json.loads, parts.read_text().splitlines())
        spent = {each["test"]: each for each in lines}
    print(f"{len(records)} checks in {wall:.0f} s, exit status {run.returncode}")
    for words in (("kernel", "backend"), ("check",)):
        total, kernels, examples = Counter(), Counter(), Counter()
        for record in records:
            key = " on ".join(record[word] for word in words)
            total[key] += record["seconds"]
            kernels[key] += record["kernel_seconds"]
            examples[key] += record["examples"]
        print(f"\n{' on '.join(words):<40}{'seconds':>9}{'in kernel':>11}{'examples':>10}")
        for key, value in total.most_common():
            print(f"{key:<40}{value:>9.1f}{kernels[key]:>11.1f}{examples[key]:>10}")
    print(f"\n{'the ten slowest checks':<60}{'seconds':>9}  why")
    for record in sorted(records, key=lambda record: -record["seconds"])[:10]:
        where = record["test"].rpartition("::")[2]
        print(f"{where:<60}{record['seconds']:>9.1f}  {reason(record, spent[record['test']])}")


if __name__ == "__main__":
    main()
