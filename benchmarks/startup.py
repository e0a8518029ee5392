"""What the plugin costs a pytest run that uses no Pallas: whole processes, in pairs.

    uv run python benchmarks/startup.py

Target: under 20 ms. The two runs of a pair follow each other, so that both see the same machine.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAIRS = 15


def seconds(folder: Path, *options: str) -> float:
    """Wall time of a pytest run of one empty test."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
    started = time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    """Print the medians, and the median of the paired differences."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_nothing.py").write_text("def test_nothing():\n    pass\n")
        seconds(folder), seconds(folder, "-p", "no:pallas")
        pairs = [(seconds(folder), seconds(folder, "-p", "no:pallas")) for _ in range(PAIRS)]
    with_plugin, without = zip(*pairs, strict=True)
    extra = statistics.median(a - b for a, b in pairs)
    print(f"with the plugin     {1000 * statistics.median(with_plugin):7.1f} ms")
    print(f"without             {1000 * statistics.median(without):7.1f} ms")
    print(f"paired difference   {1000 * extra:7.1f} ms  (median of {PAIRS} pairs)")


if __name__ == "__main__":
    main()
