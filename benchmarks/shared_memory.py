"""Shared memory of every Mosaic GPU kernel and tuning: as the simulator counts it, and as lowered.

    uv run python benchmarks/shared_memory.py

Draws 40 calls of each spec, and lowers those that differ in tuning or dtypes. It needs no compiler.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
sys.path.append(str(Path(__file__).parents[1] / "tests/support"))

from pallas_test_support.lowered_shared_memory import counted_and_lowered, tunings

from pallas_sim.chips import GPUS
from pytest_pallas import suite
from pytest_pallas.spec import KernelSpec

DRAWS = 40


def main() -> None:
    """Print what differs, what does not fit, and how many were compared."""
    started, calls, kernels, wrong = time.perf_counter(), 0, 0, 0
    for spec in suite("reference_kernels").specs():
        if not isinstance(spec, KernelSpec) or not isinstance(spec.kernel, dict):
            continue
        for call, target in tunings(spec, DRAWS):
            counts, lowered = counted_and_lowered(call, target)
            calls += 1
            kernels += len(lowered)
            fits = max(lowered, default=0) <= GPUS[target].shared_per_block
            if counts != lowered or not fits:
                wrong += 1
                print(f"{spec.name} on {target}: {counts} counted, {lowered} lowered")
    seconds = time.perf_counter() - started
    print(f"{calls} calls, {kernels} kernels, {wrong} wrong, {seconds:.0f} s")


if __name__ == "__main__":
    main()
