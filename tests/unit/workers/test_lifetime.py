"""No worker outlives the session that started it, however that ends; and nothing complains."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from pytest_pallas.workers.child import JOB, header
from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import Worker, WorkerSetup, exchange

SUPPORT = Path(__file__).parents[2] / "support"

PROLOGUE = f"""\
import os, signal, sys, time
sys.path.insert(0, {str(SUPPORT)!r})
from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import WorkerSetup
def submit(entry, payload=b"", timeout=60):
    entry = "pallas_test_support.worker_entries:" + entry
    setup = WorkerSetup(name="t", entry=entry, preloads=preloads)
    return pool.submit(setup, payload, timeout=timeout)
pool = WorkerPool(2)
"""


@pytest.fixture
def session(preloads):
    """Run a script in a Python that makes an error of every warning."""
    running: list[subprocess.Popen[str]] = []

    def start(script: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [
                sys.executable,
                "-X",
                "dev",
                "-W",
                "error",
                "-c",
                f"preloads = {preloads}\n{PROLOGUE}{script}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        running.append(process)
        return process

    yield start
    for process in running:
        process.kill()
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="needs PR_SET_PDEATHSIG")
def test_a_worker_busy_in_c_code_dies_with_a_killed_session(
    session, preloads, tmp_path, appear, gone
):
    path = tmp_path / "pid"
    process = session(f"submit('hang_in_c', {bytes(path)!r}).result()")
    pid = appear(path)
    process.kill()
    assert gone(pid)


def test_an_idle_worker_dies_with_a_killed_session(session, preloads, gone):
    process = session("print(submit('pid').result().value.decode(), flush=True); time.sleep(60)")
    pid = int(process.stdout.readline())
    process.kill()
    assert gone(pid)


@pytest.mark.parametrize("end", ["", "sys.exit(0)", "del pool", "pool.close()", "1/0"])
def test_an_interpreter_ends_at_once_and_quietly(session, tmp_path, appear, gone, end):
    path = tmp_path / "pid"
    script = f"""
submit('echo', b'x').result()
job = submit('hang_with_child', {bytes(path)!r})
while not (os.path.exists({str(path)!r}) and os.path.getsize({str(path)!r})): time.sleep(0.01)
{end}
"""
    process = session(script)
    _, errors = process.communicate(timeout=10)
    if end == "1/0":
        assert errors.rstrip().endswith("ZeroDivisionError: division by zero")
    else:
        assert (process.returncode, errors) == (0, "")
    assert gone(appear(path))


def test_an_interrupt_reaches_the_session_and_not_the_worker(session, preloads):
    script = """
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
os.setpgid(0, 0)
job = submit("pid", b"0.5")
try:
    os.killpg(0, signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    assert job.result(timeout=10).status == "done"
pool.close()
"""
    process = session(script)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


def test_a_worker_ends_when_nobody_holds_its_pipe(tmp_path, setup_for, appear, gone):
    """Where the system has no signal for the death of a parent, this stands for it."""
    path = tmp_path / "pid"
    worker = Worker(setup_for("hang_with_child"))
    payload = bytes(path)
    message = (header(JOB, payload), payload)
    soon = time.monotonic() + 0.5
    exchange(worker, *message, deadline=soon, stopping=threading.Event())
    child = appear(path)
    with open(os.devnull) as null:
        os.dup2(null.fileno(), worker.requests)
    assert worker.dies_within(2)
    assert gone(child)
    worker.end()


def test_a_worker_does_not_read_the_stdin_of_the_session(session):
    process = session("print(submit('stdin', timeout=5).result().status, flush=True)")
    assert process.stdout.readline() == "done\n"


def test_a_fork_of_the_session_leaves_its_workers_alone(session):
    script = """
import warnings
pid = submit("pid").result().value
warnings.simplefilter("ignore")
if os.fork() == 0:
    try:
        submit("pid")
    except RuntimeError as error:
        assert "another process" in str(error)
        pool.close()
        sys.exit(0)
    sys.exit(1)
assert os.wait()[1] == 0
assert submit("pid").result().value == pid
pool.close()
"""
    process = session(script)
    _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


def test_a_pool_that_is_forgotten_ends_its_workers(setup_for, gone):
    pool = WorkerPool(1)
    pid = int(pool.submit(setup_for("pid"), b"", timeout=10).result(timeout=60).value)
    del pool
    assert gone(pid)


def test_closing_leaves_no_process_thread_or_descriptor(setup_for, preloads, gone):
    def use() -> int:
        with WorkerPool(2) as pool:
            jobs = [pool.submit(setup_for("pid"), b"0.05", timeout=10) for _ in range(3)]
            pool.submit(setup_for("hang"), b"", timeout=0.1).result(timeout=10)
            return int(jobs[0].result(timeout=10).value)

    use()
    descriptors, threads = os.listdir("/dev/fd"), threading.active_count()
    pid = use()
    if preloads:
        assert gone(pid)
    else:  # this process has waited for it
        with pytest.raises(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
    assert (os.listdir("/dev/fd"), threading.active_count()) == (descriptors, threads)


def test_a_worker_without_pidfd_is_supervised_too(setup_for, preloads, monkeypatch, gone):
    monkeypatch.setattr("pytest_pallas.workers.process._death_of", lambda pid: None)
    with WorkerPool(1) as pool:

        def do(entry: str, payload: bytes = b"", timeout: float = 10):
            return pool.submit(setup_for(entry), payload, timeout=timeout).result(timeout=60)

        assert do("pid").value != b""
        assert "code 3" in do("leave", b"3").message
        assert "SIGSEGV" in do("raise_signal", b"SIGSEGV").message
        assert do("hang", timeout=0.1).status == "timed out"
        pid = int(do("pid").value)
    assert gone(pid)


def test_a_worker_leaves_no_core_file(tmp_path, monkeypatch, pool, request):
    soft, hard = resource.getrlimit(resource.RLIMIT_CORE)
    if hard == 0:
        pytest.skip("no process may leave a core file here")
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    request.addfinalizer(lambda: resource.setrlimit(resource.RLIMIT_CORE, (soft, hard)))
    monkeypatch.syspath_prepend(tmp_path)
    source = (
        "import resource\n"
        "def run(payload): return b'%d' % resource.getrlimit(resource.RLIMIT_CORE)[0]\n"
    )
    tmp_path.joinpath("core_limit.py").write_text(source)
    job = pool.submit(WorkerSetup(name="core", entry="core_limit:run"), b"", timeout=5)
    assert job.result(timeout=10).value == b"0"
