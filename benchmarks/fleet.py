"""A fleet: what a task costs, what a second worker brings, how many workers one scheduler feeds.

    uv run python benchmarks/fleet.py [tests]

Three measurements, of runs that follow each other on one machine:

- overhead: seconds from one result of a test that does nothing to the next, with one worker.
- speed: tests that compute for half a second, with 1 and with 2 workers; 2.0 is the best.
- hand-out: calls that do nothing, as large as a task, which the controller and one scheduler give
  to two workers in a second.

The last one gives an extrapolation, which is not measured: with so many calls a second, 1,000
workers have something to do all the time if their tasks take so long on average.

Measured on 25 November 2026 on 2 cores that other work shared (load 8 to 12), with distributed
2026.8.0: 12.7 ms a task, of 2.0 ms on one machine; 1.6 times with 2 workers; 100 calls a second, of
which the controller and the scheduler, in one process, computed for about a third. Extrapolated,
not measured: 1,000 workers have something to do if a task takes 10 s on average.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NOTHING = """
    import pytest

    @pytest.mark.parametrize("number", range({count}))
    def test_nothing(number):
        pass
"""

BUSY = """
    import time

    import pytest

    @pytest.mark.parametrize("number", range({count}))
    def test_busy(number):
        until = time.process_time() + 0.5
        while time.process_time() < until:
            pass
"""

#: Bytes of a message as large as that of a small project.
SIZE = 8000

#: Number of calls of the hand-out.
CALLS = 1000


def loop_seconds(source: str, count: int, *options: str) -> float:
    """Seconds from the first to the last result of a run of pytest."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_it.py").write_text(textwrap.dedent(source.format(count=count)))
        (folder / "conftest.py").write_text(CONFTEST)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        done = subprocess.run(
            command, cwd=folder, env=dict(os.environ), stdout=subprocess.PIPE, text=True
        )
        if done.returncode:
            sys.exit(done.stdout)
        times = json.loads((folder / "times.json").read_text())
    return max(times) - min(times)


CONFTEST = """
import json, time
TIMES = []

def pytest_runtest_logfinish(nodeid):
    TIMES.append(time.monotonic())

def pytest_sessionfinish(session):
    if hasattr(session.config, "workerinput") or not TIMES:
        return
    with open("times.json", "w") as file:
        json.dump(TIMES, file)
"""


def overhead(count: int) -> None:
    """Print the seconds of one more task, and of one more test on one machine."""
    here = loop_seconds(NOTHING, count, "--pallas-seed=1") / (count - 1)
    there = loop_seconds(NOTHING, count, "--pallas-fleet=local:1") / (count - 1)
    print(f"overhead    {1000 * there:6.1f} ms a task, of {1000 * here:.2f} ms on one machine")


def speed(count: int) -> None:
    """Print the ratio of the times with one and with two workers."""
    one, two = (loop_seconds(BUSY, count, f"--pallas-fleet=local:{workers}") for workers in (1, 2))
    print(f"speed       {one / two:6.2f} times with 2 workers ({one:.1f} s and {two:.1f} s)")


@contextmanager
def cluster(workers: int) -> Generator[Any]:
    """A scheduler with workers on this machine."""
    from pytest_pallas.distribute.fleet.cluster import DaskCluster
    from pytest_pallas.options import FleetPlace

    made = DaskCluster(FleetPlace(workers=workers))
    try:
        while len(made.workers()) < workers:
            time.sleep(0.1)
        yield made
    finally:
        made.close()


def nothing(setup: bytes, task: bytes) -> bytes:
    """A task that does nothing."""
    del setup
    return task


def hand_out(calls: int) -> None:
    """Print how many calls a second are handed out, and for how many workers that would do."""
    with cluster(2) as made:
        body, started, first, sent, done = b"x" * SIZE, 0.0, 0, 0, 0
        while done < calls:
            while sent < calls and sent - done < 8:
                made.call(f"call-{sent}", nothing, body, body)
                sent += 1
            made.ended(made.ends.get())
            done += 1
            if done == calls // 10:  # the first ones start threads and connections
                started, first = time.perf_counter(), done
        rate = (calls - first) / (time.perf_counter() - started)
    print(f"hand-out    {rate:6.0f} calls a second, to 2 workers")
    print(
        f"extrapolated, not measured: 1,000 workers have something to do if a task takes "
        f"{1000 / rate:.1f} s on average"
    )


if __name__ == "__main__":
    tests = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    overhead(tests)
    speed(max(4, tests // 10))
    hand_out(CALLS)
