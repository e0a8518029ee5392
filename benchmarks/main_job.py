"""The time of the main job, by kernel, backend and check, from its own records.

    uv run python benchmarks/main_job.py [pytest options, such as -n 2]

Target: under 4 minutes on 2 cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path


def main() -> None:
    """Run it and print where the time goes, the slowest first."""
    with tempfile.TemporaryDirectory() as name:
        results = Path(name) / "results.json"
        command = [sys.executable, "-m", "pytest", "-q", "--pallas-suite=reference_kernels"]
        started = time.perf_counter()
        run = subprocess.run(
            [*command, f"--pallas-results={results}", *sys.argv[1:]], stdout=subprocess.DEVNULL
        )
        wall = time.perf_counter() - started
        records = json.loads(results.read_text())["records"]
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


if __name__ == "__main__":
    main()
