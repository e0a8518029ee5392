"""Which worker a job goes to, and when."""

from __future__ import annotations

import time

import pytest

from pytest_pallas.workers import pool as pool_module
from pytest_pallas.workers.pool import WorkerPool


@pytest.fixture
def kinds(setup_for):
    return [setup_for("pid", name=name) for name in "abc"]


def test_jobs_run_side_by_side_up_to_the_size(kinds):
    with WorkerPool(2) as pool:
        jobs = [pool.submit(kinds[0], b"0.3", timeout=10) for _ in range(4)]
        pids = [job.result(timeout=20).value for job in jobs]
    assert len(set(pids)) == 2


def test_one_after_the_other_needs_one_worker(kinds):
    with WorkerPool(2) as pool:
        pids = {pool.submit(kinds[0], b"", timeout=10).result(timeout=20).value for _ in range(5)}
    assert len(pids) == 1


def test_a_new_setup_takes_the_place_that_was_idle_longest(kinds, gone):
    a, b, c = kinds

    with WorkerPool(2) as pool:

        def ask(setup) -> bytes:
            return pool.submit(setup, b"", timeout=10).result(timeout=20).value

        old_a, old_b = ask(a), ask(b)
        ask(c)
        assert gone(int(old_a))
        assert ask(b) == old_b
        assert ask(a) != old_a


def test_a_busy_worker_is_left_alone(kinds):
    a, b, _ = kinds
    with WorkerPool(1) as pool:
        busy = pool.submit(a, b"0.4", timeout=10)
        other = pool.submit(b, b"", timeout=10)
        assert busy.result(timeout=10).status == "done"
        assert other.result(timeout=10).status == "done"


def order_of(pool: WorkerPool, setups) -> str:
    """The names of the setups of jobs that are all waiting, in the order in which they end."""
    ended: list[str] = []
    jobs = [pool.submit(setups[0], b"0.3", timeout=10)]
    for setup in setups[1:]:
        job = pool.submit(setup, b"", timeout=10)
        job.add_done_callback(lambda _, name=setup.name: ended.append(name))
        jobs.append(job)
    for job in jobs:
        job.result(timeout=20)
    limit = time.monotonic() + 5
    while len(ended) < len(setups) - 1 and time.monotonic() < limit:
        time.sleep(0.01)
    return "".join(ended)


def test_jobs_of_one_setup_are_done_in_order_of_submission(kinds):
    with WorkerPool(1) as pool:
        jobs = [pool.submit(kinds[0], b"", timeout=10) for _ in range(5)]
        jobs[-1].result(timeout=20)
        assert all(job.done() for job in jobs)


def test_jobs_whose_worker_is_warm_go_first(kinds):
    a, b, _ = kinds
    with WorkerPool(1) as pool:
        assert order_of(pool, [a, b, a, b, a]) == "aabb"


def test_but_no_job_waits_for_ever(kinds, monkeypatch):
    monkeypatch.setattr(pool_module, "PATIENCE", 1)
    a, b, _ = kinds
    with WorkerPool(1) as pool:
        assert order_of(pool, [a, b, a, a, a]) == "abaa"


def test_no_process_before_there_is_a_job(monkeypatch):
    def refuse(*_):
        raise AssertionError("a worker was started")

    monkeypatch.setattr("pytest_pallas.workers.pool.Worker", refuse)
    WorkerPool(4).close()
