"""Jobs that hang, crash or fill the memory; the next job finds a fresh worker."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest

from pytest_pallas.workers import pool as work
from pytest_pallas.workers import process as exchange
from pytest_pallas.workers.process import WorkerSetup

linux = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc or pidfd")


def test_a_job_that_hangs_is_killed(do):
    begin = time.monotonic()
    result = do("hang", timeout=0.2)
    assert (result.status, result.value) == ("timed out", b"")
    assert "The test worker was killed: a job exceeded its time limit of 0.2 s" in result.message
    assert 0.2 <= result.seconds < 10
    assert time.monotonic() - begin < 15


def test_a_job_that_holds_the_interpreters_lock_is_killed(do, tmp_path):
    assert do("hang_in_c", bytes(tmp_path / "pid"), timeout=0.2).status == "timed out"


def test_its_children_are_killed_too(do, tmp_path, appear, gone):
    path = tmp_path / "pid"
    assert do("hang_with_child", bytes(path), timeout=0.5).status == "timed out"
    assert gone(appear(path))


@linux
def test_a_worker_that_does_not_read_is_killed(do, stopped):
    assert stopped(int(do("stop_when_idle").value))
    assert do("echo", b"x" * 2**22, timeout=0.3).status == "timed out"


@linux
def test_a_worker_that_dies_while_it_is_sent_a_job(do, stopped, monkeypatch):
    pid = int(do("stop_when_idle").value)
    assert stopped(pid)
    send, sent = exchange._send, []

    def send_and_kill(descriptor, unsent):
        send(descriptor, unsent)
        if not sent:
            os.kill(pid, signal.SIGKILL)
        sent.append(descriptor)

    monkeypatch.setattr(exchange, "_send", send_and_kill)
    result = do("echo", b"x" * 2**22)
    assert result.status == "crashed"
    assert "SIGKILL from outside" in result.message


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGILL", "SIGABRT", "SIGTERM"])
def test_a_job_that_dies_of_a_signal(do, preloads, name):
    result = do("raise_signal", name.encode())
    assert result.status == "crashed"
    assert f"The test worker died of {name} (" in result.message
    assert "about to die" in result.output


def test_a_job_that_aborts_shows_where(do):
    result = do("abort")
    assert "SIGABRT" in result.message
    assert "worker_entries.py" in result.output


def test_a_segmentation_fault(do):
    result = do("segfault")
    assert result.status == "crashed"
    assert "SIGSEGV" in result.message


@pytest.mark.parametrize("entry", ["leave", "leave_at_once"])
@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_exits(do, preloads, entry, code):
    result = do(entry, str(code).encode())
    assert result.status == "crashed"
    assert f"exited with code {code} during a job" in result.message


def test_a_worker_killed_by_others_may_have_been_short_of_memory(do, preloads):
    result = do("raise_signal", b"SIGKILL")
    assert result.status == "crashed"
    assert "may have run out of memory" in result.message


@linux
def test_a_death_shows_although_a_child_holds_the_pipes(do):
    result = do("die_with_heir", b"5", timeout=10)
    assert result.status == "crashed"
    assert "code 5" in result.message
    assert result.seconds < 9


def test_a_job_that_closes_the_pools_pipes(do, monkeypatch):
    monkeypatch.setattr(work, "_DYING_SECONDS", 0.1)
    result = do("close_everything", timeout=10)
    assert result.status == "crashed"
    assert "closed its connection" in result.message


def test_a_function_that_returns_in_two_processes_is_answered_once(do):
    for value in (b"0", b"1", b"2"):
        assert do("fork_and_return", value).value == value


def test_a_worker_that_dies_between_jobs_fails_none(do, gone):
    for _ in range(2):
        result = do("die_when_idle")
        assert result.status == "done"
        assert gone(int(result.value))


@linux
@pytest.mark.parametrize("entry", ["fill", "fill_in_child"])
def test_a_job_above_its_memory_limit_is_killed(do, entry):
    result = do(entry, b"300", memory_bytes=200 * 2**20)
    assert result.status == "out of memory"
    assert "MiB of memory, and the limit is 200 MiB" in result.message
    assert result.seconds < 15


@linux
def test_a_job_late_and_above_its_memory_limit_is_told_to_be_too_large(do, monkeypatch):
    monkeypatch.setattr(
        exchange, "_LOOK_SECONDS", 60.0
    )  # As if the supervisor got no time to look.
    result = do("fill", b"300", memory_bytes=200 * 2**20, timeout=2)
    assert result.status == "out of memory"


@linux
def test_a_job_below_its_memory_limit_is_left_alone(do):
    assert do("fill", b"20", memory_bytes=200 * 2**20, timeout=0.5).status == "timed out"


@linux
def test_a_worker_that_earlier_jobs_have_filled_is_replaced(do):
    first, second, third = (do("hoard", b"60", memory_bytes=200 * 2**20).value for _ in range(3))
    assert first == second != third


def test_an_entry_that_cannot_be_imported(pool):
    job = pool.submit(WorkerSetup(name="lost", entry="no_such_module:run"), b"", timeout=5)
    result = job.result(timeout=10)
    assert result.status == "raised"
    assert "The lost worker could not import its entry 'no_such_module:run'" in result.message
    assert "ModuleNotFoundError" in result.message


def test_a_function_that_is_not_there(pool, setup_for):
    job = pool.submit(setup_for("no_such_function"), b"", timeout=5)
    assert "no attribute 'no_such_function'" in job.result(timeout=10).message


def test_a_worker_that_dies_at_its_start(pool):
    setup = WorkerSetup(name="frail", entry="pallas_test_support.worker_that_dies_at_import:run")
    for _ in range(2):  # The second job has its own attempt.
        result = pool.submit(setup, b"", timeout=5).result(timeout=10)
        assert result.status == "crashed"
        assert result.message == "The frail worker exited with code 7 during its start."
        assert result.output == "importing\n"


def test_a_worker_that_hangs_at_its_start(pool, monkeypatch):
    monkeypatch.setattr(work, "START_SECONDS", 0.5)
    setup = WorkerSetup(name="slow", entry="pallas_test_support.worker_that_hangs_at_import:run")
    result = pool.submit(setup, b"", timeout=5).result(timeout=10)
    assert result.status == "timed out"
    assert "its start exceeded its time limit of 0.5 s" in result.message


@pytest.mark.parametrize("preloads", [()])
def test_a_process_that_cannot_be_started(do, preloads, monkeypatch):
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    result = do("echo")
    assert result.status == "crashed"
    assert "could not be started" in result.message
    monkeypatch.undo()


def test_an_unforeseen_error_reaches_who_waits(pool, setup_for):
    setup = setup_for("echo", environment=(("NULL", "\0"),))
    with pytest.raises(ValueError, match="null"):
        pool.submit(setup, b"", timeout=5).result(timeout=10)


def test_a_worker_that_cannot_start_is_not_tried_for_ever(pool, tmp_path):
    starts = tmp_path / "starts"
    setup = WorkerSetup(
        name="counted",
        entry="pallas_test_support.worker_that_dies_at_import:run",
        environment=(("COUNT_STARTS", str(starts)),),
    )
    results = [pool.submit(setup, b"", timeout=5.0).result() for _ in range(5)]
    assert [result.started for result in results] == [False] * 5
    assert len({result.message for result in results}) == 1
    assert len(starts.read_text().splitlines()) == 2


def test_another_worker_may_start_all_the_same(pool, setup_for):
    broken = WorkerSetup(name="frail", entry="pallas_test_support.worker_that_dies_at_import:run")
    for _ in range(3):
        pool.submit(broken, b"", timeout=5.0).result()
    result = pool.submit(setup_for("echo"), b"here", timeout=5.0).result()
    assert (result.status, result.value, result.started) == ("done", b"here", True)
