"""How often the judgement refuses right kernels: reference kernels and published ones.

    uv run python benchmarks/false_alarms.py [--examples BACKEND=N]... [--suite SUITE]

Three suites: `reference_kernels`, `published` (examples/published: the kernels that come with JAX,
without those that are known to be wrong), and `right_specs` (beside this file: kinds of kernels
that were accused). Target: no failure in 20,000 examples on `tpu-sim` and 2,000 on
`tpu-interpret`. Pytest runs the suite in processes of its own, with another seed each time, until
there are enough examples; what was run is read from the records. The last line says how many
examples and failures there were; with a failure the exit status is 1.

Measured on 27 November 2026 on `tpu-sim`: no failure in 11,792 examples of `right_specs` (seeds 11
to 15), in 29,721 of `reference_kernels` (seed 31) and in 12,087 of `published` (seed 23; one test
reached its time limit beside other work). What was found on the way, and mended: gradients that the
reference has as 0 to the bit (one key), rows that are masked as a whole, exponents that are
computed again, and one element of 300,000 whose deviation was underestimated.

Measured on 23 November 2026, JAX 0.12.0.1, without kernels that have DMAs or semaphores: two
failures in 21,749 examples on `tpu-sim` (seed 2, 60 a run): gradients of attention in bfloat16, of
a query that sees one key only and next to nothing of the others, from a `delta` of the rounded
output (see docs/judgement.md). What was found on the way, and mended: references that mask with
-inf had no noise (five failures in 21,255 examples of seed 1, of which four pass now). On 21
November: no failure in 11,768 examples on `interpret` (seeds 1 to 3) and in 5,787 on
`tpu-interpret` (seeds 1 and 2).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

#: Folders of packages that are no part of the project.
FOLDERS = (ROOT / "benchmarks", ROOT / "examples" / "published")

SUITES = "reference_kernels,published,right_specs"

#: Examples to run on each backend.
TARGETS = {"tpu-sim": 20_000, "tpu-interpret": 2_000}

#: Exit codes of pytest in which it has written records: all passed, or some failed.
FINISHED = (0, 1)


@dataclass
class Row:
    """What became of one check of one kernel on one backend, over all seeds.

    Attributes:
      examples: how many were run.
      failures: how many runs ended with a failure; a run stops at its first.
      multiple: the worst error as a multiple of the baseline's.
      share: the worst error relative to what the judgement allows at least, ``2 * baseline + 4``
        ulps; None where the answer had to be exact.
    """

    examples: int = 0
    failures: int = 0
    multiple: float | None = None
    share: float | None = None

    def add(self, record: Mapping[str, Any]) -> None:
        """Add a record of a pytest run."""
        self.examples += record["examples"]
        self.failures += record["outcome"] == "failed"
        if record["error"] is not None:
            error, baseline = float(record["error"]), float(record["baseline"])
            self.multiple = max(self.multiple or 0.0, float(record["multiple"]))
            self.share = max(self.share or 0.0, error / (2 * baseline + 4))


@dataclass
class Found:
    """All records so far.

    Attributes:
      rows: by backend, kernel and check.
      failures: the records of what failed.
    """

    rows: dict[tuple[str, str, str], Row] = field(default_factory=dict[tuple[str, str, str], Row])
    failures: list[Mapping[str, Any]] = field(default_factory=list[Mapping[str, Any]])

    def add(self, records: Iterable[Mapping[str, Any]]) -> int:
        """Add the records of a run; returns how many examples it had."""
        before = self.examples
        for record in records:
            if record["outcome"] == "skipped":
                continue
            key = (record["backend"], record["kernel"], record["check"])
            self.rows.setdefault(key, Row()).add(record)
            if record["outcome"] == "failed":
                self.failures.append(record)
        return self.examples - before

    @property
    def examples(self) -> int:
        """How many examples were run."""
        return sum(row.examples for row in self.rows.values())


def run(
    suite: str, backend: str, seed: int, examples: int, words: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The records of one pytest run, with further options.

    Raises:
      RuntimeError: pytest did not get as far as writing records; with the end of its output.
    """
    with tempfile.TemporaryDirectory() as name:
        results = Path(name) / "results.json"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"),
            f"--pallas-suite={suite}",
            f"--pallas-backend={backend}",
            f"--pallas-max-examples={examples}",
            f"--pallas-seed={seed}",
            f"--pallas-results={results}",
            *words,
        ]
        # Failures of other runs are no examples of this one: a database of its own.
        environment = {
            "JAX_PLATFORMS": "cpu",
            **os.environ,
            "HYPOTHESIS_STORAGE_DIRECTORY": str(Path(name) / "hypothesis"),
            "PYTHONPATH": os.pathsep.join(map(str, FOLDERS)),
        }
        done = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode not in FINISHED or not results.exists():
            raise RuntimeError(
                f"pytest ended with {done.returncode}: {' '.join(command)}\n"
                f"{(done.stdout + done.stderr)[-3000:]}"
            )
        return json.loads(results.read_text())["records"]


def table(found: Found) -> Iterator[str]:
    """The lines of the table: a row a backend, kernel and check."""
    yield (
        f"{'backend':<14} {'kernel':<24} {'check':<14} {'examples':>8} {'failed':>6} "
        f"{'multiple':>8} {'of limit':>8}"
    )
    for (backend, kernel, check), row in sorted(found.rows.items()):
        multiple = "exact" if row.multiple is None else f"{row.multiple:.2f}"
        share = "" if row.share is None else f"{100 * row.share:.0f} %"
        yield (
            f"{backend:<14} {kernel:<24} {check:<14} {row.examples:>8} {row.failures:>6} "
            f"{multiple:>8} {share:>8}"
        )


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Count false alarms over right kernels.")
    parser.add_argument(
        "--suite", default=SUITES, help=f"packages of right kernels (default: {SUITES})"
    )
    parser.add_argument(
        "--examples",
        action="append",
        metavar="BACKEND=N",
        help="examples to run on a backend; "
        + ", ".join(f"{backend}={count}" for backend, count in TARGETS.items()),
    )
    parser.add_argument(
        "--per-run", type=int, default=40, help="--pallas-max-examples of a run (default: 40)"
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of the first run (default: 1)")
    parser.add_argument(
        "--with", dest="words", action="append", default=[], help="a further option of pytest"
    )
    parsed = parser.parse_args(words)
    if parsed.examples:
        try:
            pairs = [entry.split("=") for entry in parsed.examples]
            parsed.targets = {backend: int(count) for backend, count in pairs}
        except ValueError:
            parser.error(f"--examples must be BACKEND=N, not {parsed.examples}")
    else:
        parsed.targets = dict(TARGETS)
    return parsed


def main(words: Sequence[str] | None = None) -> int:
    """Run until there are enough examples, print the table and the failures."""
    asked, total, started = arguments(words), Found(), time.monotonic()
    for backend, target in asked.targets.items():
        found, seed = Found(), asked.seed
        while found.examples < target:
            records = run(asked.suite, backend, seed, asked.per_run, asked.words)
            total.add(records)
            if not found.add(records):
                raise RuntimeError(f"{asked.suite} has no examples on {backend}")
            print(
                f"{backend}, seed {seed}: {found.examples} of {target} examples, "
                f"{len(found.failures)} failures, {time.monotonic() - started:.0f} s",
                flush=True,
            )
            seed += 1
    print("\n".join(["", *table(total), ""]))
    for failure in total.failures:
        print(f"{failure['message']}\n  replay    {failure['replay']}\n")
    print(f"{total.examples} examples, {len(total.failures)} failures")
    return 1 if total.failures else 0


if __name__ == "__main__":
    sys.exit(main())
