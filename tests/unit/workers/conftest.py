from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Iterator
from inspect import signature
from pathlib import Path

import pytest

from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import JobResult, WorkerSetup


@pytest.fixture(autouse=True)
def buffered(monkeypatch):
    """What is printed is not lost, although Python is not told by others to buffer nothing."""
    monkeypatch.delenv("PYTHONUNBUFFERED", raising=False)


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    with WorkerPool(1) as pool:
        yield pool


#: Of workers that are new interpreters, and of those that are forks.
NEW, FORKED = (), ("json",)


def pytest_generate_tests(metafunc):
    """Tests that ask for ``preloads`` run with workers of both kinds."""
    parametrized = [mark.args[0] for mark in metafunc.definition.iter_markers("parametrize")]
    if "preloads" in signature(metafunc.function).parameters and "preloads" not in parametrized:
        metafunc.parametrize("preloads", [NEW, FORKED], ids=["new", "forked"])


@pytest.fixture
def preloads() -> tuple[str, ...]:
    return FORKED


@pytest.fixture
def setup_for(preloads) -> Callable[..., WorkerSetup]:
    def make(entry: str, **rest) -> WorkerSetup:
        options = {"name": "test", "preloads": preloads, **rest}
        return WorkerSetup(entry=f"pallas_test_support.worker_entries:{entry}", **options)

    return make


@pytest.fixture
def do(pool, setup_for) -> Iterator[Callable[..., JobResult]]:
    """Run one function of ``worker_entries`` in the pool and wait for what becomes of it.

    All are run by one entry, in one worker while that lives. Whatever a test does to it, a job that
    comes afterwards must be served.
    """
    used: set[WorkerSetup] = set()

    def run(name: str, payload: bytes = b"", *, timeout: float = 20.0, **rest) -> JobResult:
        setup = setup_for("call", **rest)
        used.add(setup)
        job = pool.submit(setup, name.encode() + b" " + payload, timeout=timeout)
        return job.result(timeout=30)

    yield run
    for setup in used:
        job = pool.submit(setup, b"echo next", timeout=20)
        assert job.result(timeout=30).value == b"next"


def _becomes(pid: int, state: str) -> bool:
    """Whether a process is in a state of proc(5) within ten seconds; a dead one is in ``"Z"``."""
    limit = time.monotonic() + 10
    while time.monotonic() < limit:
        try:
            os.kill(pid, 0)
            letter = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (ProcessLookupError, FileNotFoundError):
            letter = "Z"
        if letter == state:
            return True
        time.sleep(0.01)
    return False


@pytest.fixture(scope="session")
def gone() -> Callable[[int], bool]:
    """Whether a process ends within ten seconds (or is dead and not yet waited for)."""

    def ends(pid: int) -> bool:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return True
        except (AttributeError, OSError):
            return _becomes(pid, "Z")
        try:  # its first thread may be a zombie while others still end
            poll = select.poll()
            poll.register(descriptor, select.POLLIN)
            return bool(poll.poll(10_000))
        finally:
            os.close(descriptor)

    return ends


@pytest.fixture(scope="session")
def stopped() -> Callable[[int], bool]:
    """Whether a process is stopped within ten seconds."""
    return lambda pid: _becomes(pid, "T")


@pytest.fixture(scope="session")
def appear() -> Callable[[Path], int]:
    """Wait for a file that a worker writes a number to."""

    def number(path: Path) -> int:
        limit = time.monotonic() + 10
        while not (path.exists() and path.read_text()):
            assert time.monotonic() < limit, f"no worker wrote {path}"
            time.sleep(0.01)
        return int(path.read_text())

    return number
