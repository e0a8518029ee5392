"""What a well-behaved job gets and gives."""

from __future__ import annotations

import sys
import time
from concurrent.futures import CancelledError

import pytest

from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import WorkerSetup


def test_bytes_go_in_and_come_out(do):
    result = do("echo", b"\x00\xff payload")
    assert (result.status, result.value, result.message) == ("done", b"\x00\xff payload", "")


def test_an_empty_payload_is_a_payload(do):
    assert do("echo").status == "done"


def test_large_payloads_pass_in_both_directions(do):
    payload = bytes(range(256)) * (100 * 2**20 // 256)
    result = do("echo", payload)
    assert result.value == payload


def test_a_worker_is_kept_warm(do):
    assert do("pid").value == do("pid").value


def test_seconds_are_those_of_the_job_alone(do):
    result = do("pid", b"0.2")
    assert 0.2 <= result.seconds < 2


def test_the_environment_is_set_before_the_worker_starts(do, monkeypatch):
    monkeypatch.setenv("INHERITED", "from the session")
    environment = (("OF_THE_SETUP", "own"),)
    assert do("variable", b"OF_THE_SETUP", environment=environment).value == b"own"
    assert do("variable", b"INHERITED", environment=environment).value == b"from the session"


def test_the_entry_is_found_on_the_search_path_of_this_process(pool, tmp_path, monkeypatch):
    tmp_path.joinpath("late_module.py").write_text("def answer(payload): return b'found'\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    job = pool.submit(WorkerSetup(name="late", entry="late_module:answer"), b"", timeout=10)
    assert job.result(timeout=30).value == b"found"


def test_what_it_raises_comes_back_as_its_traceback(do):
    result = do("fail", b"wrong \xc3\xa9")
    assert result.status == "raised"
    assert result.message.endswith("ValueError: wrong é\n")
    assert "worker_entries.py" in result.message
    assert "pytest_pallas" not in result.message


def test_a_worker_that_raised_is_kept(do):
    before = do("pid").value
    assert do("fail").status == "raised"
    assert do("pid").value == before


def test_submitting_to_a_closed_pool(setup_for):
    pool = WorkerPool(1)
    pool.close()
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.submit(setup_for("echo"), b"", timeout=1)


def test_closing_cancels_what_waits_and_ends_what_runs(setup_for):
    pool = WorkerPool(1)
    running = pool.submit(setup_for("hang"), b"", timeout=60)
    waiting = pool.submit(setup_for("echo"), b"", timeout=60)
    begin = time.monotonic()
    pool.close()
    assert time.monotonic() - begin < 15
    with pytest.raises(CancelledError):
        waiting.result(timeout=1)
    assert running.result(timeout=1).status == "crashed"
    assert "pool was closed" in running.result().message


def test_a_job_cancelled_before_its_turn_is_not_done(pool, setup_for, tmp_path):
    first = pool.submit(setup_for("pid"), b"0.3", timeout=10)
    file = tmp_path / "touched"
    second = pool.submit(setup_for("hang_with_child"), bytes(file), timeout=10)
    assert second.cancel()
    assert first.result(timeout=10).status == "done"
    assert pool.submit(setup_for("echo"), b"", timeout=10).result(timeout=10).status == "done"
    assert not file.exists()


def test_a_callback_may_close_its_pool(setup_for):
    pool = WorkerPool(2)
    job = pool.submit(setup_for("pid"), b"0.1", timeout=10)
    closed = []
    job.add_done_callback(lambda _: closed.append(pool.close()))
    assert job.result(timeout=10).status == "done"
    pool.close()  # Waits for the thread of the callback.
    assert closed == [None]
