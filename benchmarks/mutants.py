"""How many mutants a minute are tried.

    uv run python benchmarks/mutants.py [PACKAGE ...] [--processes N] [--max-examples N]

Runs ``pytest --pallas-mutate`` on packages of small kernels, and prints mutants a minute of the
whole command, with the time to start, to draw, and to trace; the same without the time to start,
import and collect; and how the time is spent on mutants that are killed and on those that survive,
which are asked about in every check.

Target: 3,000 a minute with two processes. Measured on 23 November 2026, two cores that nothing else
used, JAX 0.12.0.1: 3,930 (583 mutants in 9 s); 2,310 before that day's changes. Other work on the
machine counts: at a load average of 5.7 it was 875.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]

#: Small kernels.
PACKAGES = ("reference_kernels.reductions", "reference_kernels.basics")


def main() -> int:
    """Run, and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("packages", nargs="*", default=list(PACKAGES))
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--max-examples", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.json"
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
        command += ["-n", str(options.processes), "--pallas-mutate"]
        command += [f"--pallas-suite={','.join(options.packages)}"]
        command += [f"--pallas-max-examples={options.max_examples}", f"--pallas-results={results}"]
        started = time.monotonic()
        done = subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False)
        seconds = time.monotonic() - started
        if not results.exists():
            print(f"pytest ended with {done.returncode} and wrote no results", file=sys.stderr)
            return 1
        records = json.loads(results.read_text())["records"]
    busy = sum(record["seconds"] for record in records)
    verdicts = [verdict for record in records for verdict in record["mutants"]]
    counts = Counter(verdict["status"] for verdict in verdicts)
    spent: Counter[str] = Counter()
    for verdict in verdicts:
        spent[verdict["status"]] += verdict["seconds"]
    print(
        f"{len(verdicts)} mutants in {seconds:.0f} s: {60 * len(verdicts) / seconds:.0f} a minute"
    )
    alone = 60 * len(verdicts) * options.processes / busy
    print(f"  without starting, importing and collecting: {alone:.0f} a minute")
    for status, count in counts.most_common():
        print(f"  {status}: {count}, {spent[status] / count:.2f} s each")
    return 0


if __name__ == "__main__":
    sys.exit(main())
