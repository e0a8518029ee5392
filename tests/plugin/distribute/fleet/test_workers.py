"""Workers that differ, are killed, stop, or come late: a Dask scheduler and its workers."""

from __future__ import annotations

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_pallas.distribute.fleet import ledger
from pytest_pallas.distribute.fleet.cluster import DaskCluster, Workers

pytestmark = pytest.mark.usefixtures("dask")

#: Time limit in seconds for a run; then it loses all workers.
LIMIT = 240

#: Only the first test ends while a file ``hold-PID`` has the number of the worker's process.
TESTS = """
    import os
    import time

    import pytest

    @pytest.mark.parametrize("n", range({count}))
    def test_it(n):
        worker = int(os.environ["PYTEST_PALLAS_SUPERVISOR"])
        with open(f"began-{{n}}-{{worker}}", "w"):
            pass
        while n and os.path.exists(f"hold-{{worker}}"):
            time.sleep(0.02)
        assert n != 1
"""


class Fleet:
    """A scheduler, processes of Dask on this machine, and runs of pytest on them."""

    def __init__(self, project, address, scheduler=None):
        self.project, self.address, self.scheduler = project, address, scheduler
        self.processes = []

    def start(self, *arguments, folder=None):
        command = [sys.executable, "-m", "dask", *arguments]
        with open(self.project.path / f"log-{len(self.processes)}", "w") as log:
            self.processes.append(
                subprocess.Popen(command, cwd=folder or self.project.path, stdout=log, stderr=log)
            )
        return self.processes[-1]

    def worker(self, *arguments, folder=None, holds=False):
        """Start a worker, which ``holds`` its tests or not."""
        started = self.start(
            *("worker", self.address, "--nthreads", "1", "--no-nanny", "--no-dashboard"),
            # or it would be silent while its first task imports this
            *(
                "--host",
                "127.0.0.1",
                "--preload",
                "pytest_pallas.distribute.fleet.worker",
                *arguments,
            ),
            folder=folder,
        )
        if holds:
            self.held(started).touch()
        return started

    def knows(self, count):
        """Wait until so many workers are there: a run whose workers are all refused ends."""
        until = time.monotonic() + LIMIT / 2
        while len(self.scheduler.workers) < count:
            assert time.monotonic() < until, "a worker does not come"
            time.sleep(0.02)

    def held(self, worker):
        """The file that holds the tests of a worker."""
        return self.project.path / f"hold-{worker.pid}"

    def run(self, *args, meanwhile: Callable[[], None] = lambda: None):
        """The result of pytest and its output; another thread does something ``meanwhile``."""

        def act():
            try:
                meanwhile()
            except BaseException:
                self.close()  # or the run would wait for it
                raise

        options = (f"--pallas-fleet={self.address}", "--pallas-results=r.json")
        hangs = threading.Timer(LIMIT, self.close)
        hangs.start()
        with ThreadPoolExecutor(1) as pool:
            done = pool.submit(act)
            result = self.project.run(*options, *args)
            hangs.cancel()
            done.result()
        return result, "\n".join((*result.outlines, *result.errlines))

    def appears(self, name):
        """Wait for a file of the project."""
        until = time.monotonic() + LIMIT / 2
        while not list(self.project.path.glob(name)):
            assert time.monotonic() < until, f"there is no file {name}"
            time.sleep(0.02)

    def began(self, worker):
        """Wait until a worker, which has this process, runs a test after the first one."""
        self.appears(f"began-[1-9]-{worker.pid}")

    def results(self):
        return json.loads((self.project.path / "r.json").read_text())

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@pytest.fixture
def fleet(project):
    """Has a scheduler in this process."""
    from distributed import LocalCluster

    options = {"n_workers": 0, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    with LocalCluster(**options, silence_logs="CRITICAL") as cluster:
        made = Fleet(project, cluster.scheduler_address, cluster.scheduler)
        yield made
        made.close()


@pytest.fixture
def certificate(tmp_path):
    """A certificate of its own authority, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    paths = tmp_path / "cert.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"]
    command += ["-out", paths[0], "-keyout", paths[1], "-subj", "/CN=localhost"]
    subprocess.run(command, check=True, capture_output=True)
    return paths


def test_a_scheduler_with_tls(project, certificate):
    """Dask's options say which certificates."""
    from dask import config
    from distributed import LocalCluster

    cert, key = map(str, certificate)
    tls = {"distributed.comm.tls.ca-file": cert}
    for role in ("client", "scheduler", "worker"):
        tls |= {
            f"distributed.comm.tls.{role}.cert": cert,
            f"distributed.comm.tls.{role}.key": key,
        }
    options = {"n_workers": 0, "host": "127.0.0.1", "dashboard_address": "127.0.0.1:0"}
    options |= {"protocol": "tls://", "silence_logs": "CRITICAL"}
    with config.set(tls), LocalCluster(**options) as cluster:
        made = Fleet(project, cluster.scheduler_address, cluster.scheduler)
        write(made, count=3)
        try:
            made.worker("--tls-ca-file", cert, "--tls-cert", cert, "--tls-key", key)
            result, text = made.run()
            result.assert_outcomes(passed=2, failed=1)
            assert "which executes what it is sent by those with a certificate (TLS)" in text
            with config.set(dict.fromkeys(tls)):
                result, text = made.run()
            assert result.ret == pytest.ExitCode.USAGE_ERROR
            assert "no Dask scheduler can be reached there" in text
        finally:
            made.close()


def write(fleet, count):
    fleet.project.write(test_it=TESTS.format(count=count))


def test_killed_stopped_and_late_workers(fleet, monkeypatch):
    """Only a worker that is stopped is silent, however slow the machine is."""
    monkeypatch.setenv("PYTEST_PALLAS_FLEET_SILENT_SECONDS", "3")
    write(fleet, count=8)
    names = ("killed", "stopped", "steady")
    killed, stopped, steady = (fleet.worker("--name", name, holds=True) for name in names)
    late = []
    is_stopped, are_greeted = threading.Event(), threading.Event()
    workers, greeted = DaskCluster.workers, Workers.greeted

    def heard(self):
        states = fleet.scheduler.workers
        silent = {address for address, state in states.items() if state.name == "stopped"}
        return {
            address: info
            if address in silent and is_stopped.is_set()
            else replace(info, silence=0.0)
            for address, info in workers(self).items()
        }

    def greet(self, key, ended):
        known = greeted(self, key, ended)
        if len(self.active) == len(names):
            are_greeted.set()
        return known

    monkeypatch.setattr(DaskCluster, "workers", heard)
    monkeypatch.setattr(Workers, "greeted", greet)

    def meanwhile():
        assert are_greeted.wait(60)
        fleet.began(steady)
        fleet.began(stopped)
        fleet.began(killed)
        killed.kill()
        stopped.send_signal(signal.SIGSTOP)
        is_stopped.set()
        late.append(fleet.worker())
        fleet.began(late[0])
        fleet.held(steady).unlink()

    result, text = fleet.run(meanwhile=meanwhile)
    assert result.ret == 1
    assert re.search(r"1 failed, 7 passed in", text), text
    facts = fleet.results()["fleet"]
    assert facts["workers"] == 4
    assert facts["repeated"] >= 2
    lost = {
        int(re.search(r"process (\d+) of", worker)[1]): how for worker, how in facts["lost"].items()
    }
    assert lost[killed.pid] == "its connection to the scheduler was closed"
    assert lost[stopped.pid].startswith("silent for ")
    assert steady.pid not in lost
    assert f"(process {late[0].pid} of " in text


def test_a_test_that_ends_its_workers_fails_and_the_others_pass(fleet, monkeypatch):
    monkeypatch.setattr(ledger, "TRIES", 2)  # each needs a worker
    fleet.project.write(
        test_it="""
        import os
        import signal

        def test_before():
            pass

        def test_ends_its_worker():
            os.kill(int(os.environ["PYTEST_PALLAS_SUPERVISOR"]), signal.SIGKILL)
            signal.pause()

        def test_after():
            pass
    """
    )
    workers = [fleet.worker() for _ in range(3)]
    _, text = fleet.run()
    assert "1 failed, 2 passed" in text
    assert "FleetError: test_ends_its_worker: each of the 2 workers that ran this test was" in text
    assert sum(worker.poll() is not None for worker in workers) == 2
    facts = fleet.results()["fleet"]
    assert facts["repeated"] == len(facts["lost"]) == 2
    for worker in facts["lost"]:  # the last of them at the end of the run
        assert worker in text


def test_an_answer_outlives_its_worker(fleet, monkeypatch):
    """The next test may end the worker before the answer to the last one was read."""
    fleet.project.write(test_it="def test_it(): pass")
    worker = fleet.worker()
    ended = DaskCluster.ended

    def late(self, key):
        if not key.startswith("pallas-greeting"):
            worker.kill()
            worker.wait()
        return ended(self, key)

    monkeypatch.setattr(DaskCluster, "ended", late)
    _, text = fleet.run()
    assert "1 passed" in text
    assert fleet.results()["fleet"]["repeated"] == 0


def hidden(tmp_path: Path, folder: Path) -> str:
    """A module that hides a folder from a worker, as on another machine."""
    path = tmp_path / "hides.py"
    path.write_text(
        "import os.path\n"
        "if os.path.isdir.__name__ == 'isdir':\n"  # Dask loads this twice
        "    real = os.path.isdir\n"
        f"    os.path.isdir = lambda path: str(path) != {str(folder)!r} and real(path)\n"
    )
    return str(path)


def copied(project, folder: Path) -> Path:
    """Another folder with the modules of a project."""
    folder.mkdir()
    for path in project.path.glob("*.py"):
        (folder / path.name).write_text(path.read_text())
    return folder


def test_workers_with_file_systems_of_their_own(fleet, tmp_path):
    """One that has another project gets no tests; files of the other one come back."""
    pytest.importorskip("safetensors")
    project = fleet.project
    project.specs('name="add", kernel=add', 'name="add_off", kernel=add_off')
    write(fleet, count=3)
    project.write(conftest="X = 1")
    preload = ("--preload", hidden(tmp_path, project.path))
    other = copied(project, tmp_path / "other")
    (other / "conftest.py").write_text("")
    (other / "test_it.py").write_text("def test_it(): pass")
    differs = fleet.worker(*preload, folder=other)
    result, text = fleet.run("test_it.py")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert "no worker has the project and the versions of this process:" in text
    why = "conftest.py has another content; test_it.py has another content"
    assert re.search(rf"\(process {differs.pid} of .*\): {re.escape(why)}", text)

    same = copied(project, tmp_path / "same")
    steady = fleet.worker(*preload, folder=same)
    fleet.knows(2)
    arguments = ("--pallas-suite=specs", "--pallas-checks=forward", "--pallas-sanitize=none")
    arguments += ("--pallas-backend=tpu-sim", "--pallas-golden=record")
    _, text = fleet.run(*arguments, "test_it.py", "--pallas-trace=t.json")
    assert re.search(r"2 failed, 3 passed in", text), text
    assert not list(other.glob("began-*"))
    assert len(list(same.glob(f"began-*-{steady.pid}"))) == 3
    [refused] = fleet.results()["fleet"]["refused"].items()
    assert f"process {differs.pid} of" in refused[0]
    assert refused[1] == why
    assert f"refused worker {refused[0]}: {why}" in text

    records = fleet.results()["records"]
    [failed] = [record for record in records if record["outcome"] == "failed"]
    for name in ("script", "example"):
        path = Path(failed[name])
        assert path.parent == project.path / "pallas-failures"
        assert path.is_file()
        assert f"{name:<9} {path}" in text
    assert json.loads((project.path / "t.json").read_text())["traceEvents"]
    goldens = list((project.path / "pallas_goldens").rglob("*.json"))
    assert len(goldens) == sum(record["goldens"].get("recorded", 0) for record in records) > 1
    # The failing example is in the database here: a run of one example replays it.
    kept = [path for path in (project.path / ".hypothesis/examples").rglob("*") if path.is_file()]
    assert kept
    again = project.records(*arguments, "--pallas-max-examples=1")
    [repeated] = [record for record in again if record["outcome"] == "failed"]
    assert repeated["explanation"] == failed["explanation"]


def test_a_scheduler_without_workers(fleet, monkeypatch):
    write(fleet, count=1)
    monkeypatch.setenv("PYTEST_PALLAS_FLEET_WAIT_SECONDS", "0.5")
    result, text = fleet.run()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"no worker within 0.5 s. Start some with `dask worker {fleet.address}" in text


@pytest.fixture
def scheduler(project):
    """A fleet whose scheduler is a process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    made = Fleet(project, f"tcp://127.0.0.1:{port}")
    made.start("scheduler", "--host", "127.0.0.1", "--port", str(port), "--no-dashboard")
    until = time.monotonic() + LIMIT / 2
    while True:
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) == 0:
                break
        assert time.monotonic() < until, "the scheduler does not start"
        time.sleep(0.05)
    yield made
    made.close()


def test_what_was_computed_is_reported_if_the_scheduler_is_lost(scheduler):
    scheduler.project.write(
        test_it="""
        import signal

        import pytest

        @pytest.mark.parametrize("n", range(3))
        def test_it(n):
            if n:
                signal.pause()
        """,
        conftest="""
        import os

        def pytest_runtest_logreport(report):
            if "PYTEST_PALLAS_RUN" not in os.environ:  # not in a worker
                open("reported", "w").close()
        """,
    )
    scheduler.worker()

    def meanwhile():
        scheduler.appears("reported")
        scheduler.processes[0].kill()

    result, text = scheduler.run(meanwhile=meanwhile)
    assert result.ret == pytest.ExitCode.INTERRUPTED, text
    assert re.search(r"the scheduler of --pallas-fleet=\S+ is lost", text)
    assert "1 passed" in text
