"""Workers that differ, are killed, stop, or come late: a Dask scheduler and its workers."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = """
    import os
    import time

    import pytest

    @pytest.mark.parametrize("n", range({count}))
    def test_it(n):
        with open(f"began-{{n}}-{{os.getppid()}}", "w"):
            pass
        time.sleep({seconds})
        assert n != 1
"""


class Fleet:
    """Processes of Dask on this machine, and a run of pytest on them."""

    def __init__(self, project):
        self.project = project
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
        self.processes = []
        port = self.address.rpartition(":")[2]
        self.start("scheduler", "--host", "127.0.0.1", "--port", port, "--no-dashboard")

    def start(self, *words, folder=None):
        command = [sys.executable, "-m", "dask", *words]
        with open(self.project.path / f"log-{len(self.processes)}", "w") as log:
            self.processes.append(
                subprocess.Popen(command, cwd=folder or self.project.path, stdout=log, stderr=log)
            )
        return self.processes[-1]

    def worker(self, **options):
        words = ("--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1")
        return self.start("worker", self.address, *words, **options)

    def listens(self):
        host, port = self.address.removeprefix("tcp://").split(":")
        until = time.monotonic() + 20
        while time.monotonic() < until:
            with socket.socket() as client:
                if client.connect_ex((host, int(port))) == 0:
                    return
            time.sleep(0.1)
        raise AssertionError("the scheduler does not start")

    def pytest(self, *args):
        """Start pytest; ``communicate`` gives its output."""
        self.listens()
        options = ("-W", "error", "-p", "no:jaxtyping", f"--pallas-fleet={self.address}")
        return subprocess.Popen(
            [sys.executable, "-m", "pytest", *options, "--pallas-results=r.json", *args],
            cwd=self.project.path,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "PYTEST_PALLAS_FLEET_SILENT_SECONDS": "3"},
        )

    def began(self, worker):
        """Wait until a worker, which has this process, runs a test."""
        until = time.monotonic() + 40
        while time.monotonic() < until:
            if list(self.project.path.glob(f"began-*-{worker.pid}")):
                return
            time.sleep(0.05)
        raise AssertionError("the worker has no test")

    def results(self):
        return json.loads((self.project.path / "r.json").read_text())

    def close(self):
        for process in reversed(self.processes):
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()


@pytest.fixture
def fleet(project):
    made = Fleet(project)
    yield made
    made.close()


def write(fleet, count=6, seconds=0.5):
    fleet.project.write(test_it=TESTS.format(count=count, seconds=seconds))


def test_killed_stopped_and_late_workers(fleet):
    write(fleet, count=12)
    killed, stopped, steady = fleet.worker(), fleet.worker(), fleet.worker()
    run = fleet.pytest()
    fleet.began(killed)
    killed.kill()
    fleet.began(stopped)
    stopped.send_signal(signal.SIGSTOP)
    late = fleet.worker()
    fleet.began(late)
    text = run.communicate(timeout=90)[0]
    assert run.returncode == 1
    assert re.search(r"1 failed, 11 passed in", text), text
    facts = fleet.results()["fleet"]
    assert facts["workers"] == 4
    assert facts["repeated"] >= 2
    lost = {
        int(re.search(r"process (\d+) of", worker)[1]): how for worker, how in facts["lost"].items()
    }
    assert lost[killed.pid] == "its connection to the scheduler was closed"
    assert lost[stopped.pid].startswith("silent for ")
    assert steady.pid not in lost
    assert f"(process {late.pid} of " in text


def test_a_test_that_ends_its_workers_fails_and_the_others_pass(fleet):
    fleet.project.write(
        test_it="""
        import os
        import signal

        def test_before():
            pass

        def test_ends_its_worker():
            os.kill(os.getppid(), signal.SIGKILL)
            signal.pause()

        def test_after():
            pass
    """
    )
    workers = [fleet.worker() for _ in range(4)]
    text = fleet.pytest().communicate(timeout=90)[0]
    assert "1 failed, 2 passed" in text
    assert "FleetError: test_ends_its_worker: each of the 3 workers that ran this test was" in text
    assert sum(worker.poll() is not None for worker in workers) == 3
    facts = fleet.results()["fleet"]
    assert facts["repeated"] == len(facts["lost"]) == 3
    for worker in facts["lost"]:  # the last of them at the end of the run
        assert worker in text


def test_workers_with_another_project_get_no_tests(fleet, tmp_path):
    write(fleet, count=3, seconds=0.1)
    other = tmp_path / "other"
    other.mkdir()
    for path in fleet.project.path.glob("*.py"):
        (other / path.name).write_text(path.read_text())
    (other / "conftest.py").write_text("")
    fleet.project.write(conftest="X = 1")
    (other / "test_it.py").write_text("def test_it(): pass")
    # The folder of the controller does not exist on the machine of this worker.
    differs = fleet.start(
        *("worker", fleet.address, "--nthreads", "1", "--no-nanny", "--no-dashboard"),
        *("--host", "127.0.0.1", "--preload", str(hidden(tmp_path, fleet.project.path))),
        folder=other,
    )
    alone = fleet.pytest()
    text = alone.communicate(timeout=90)[0]
    assert alone.returncode == pytest.ExitCode.USAGE_ERROR
    assert "no worker has the project and the versions of this process:" in text
    why = "conftest.py has another content; test_it.py has another content"
    assert re.search(rf"\(process {differs.pid} of .*\): {re.escape(why)}", text)
    steady = fleet.worker()
    both = fleet.pytest()
    text = both.communicate(timeout=90)[0]
    assert "1 failed, 2 passed" in text
    assert not list(fleet.project.path.glob(f"began-*-{differs.pid}"))
    assert len(list(fleet.project.path.glob(f"began-*-{steady.pid}"))) == 3
    [refused] = fleet.results()["fleet"]["refused"].items()
    assert f"process {differs.pid} of" in refused[0]
    assert refused[1] == why
    assert f"refused worker {refused[0]}: {why}" in text


def hidden(tmp_path: Path, folder: Path) -> Path:
    """A module that hides a folder from a worker."""
    path = tmp_path / "hides.py"
    path.write_text(
        "import os.path\n"
        "if os.path.isdir.__name__ == 'isdir':\n"  # Dask loads this twice
        "    real = os.path.isdir\n"
        f"    os.path.isdir = lambda path: str(path) != {str(folder)!r} and real(path)\n"
    )
    return path


def test_files_come_back_from_a_worker_with_a_file_system_of_its_own(fleet, tmp_path):
    pytest.importorskip("safetensors")
    project = fleet.project
    project.specs('name="add", kernel=add', 'name="add_off", kernel=add_off')
    other = tmp_path / "other"
    other.mkdir()
    for path in project.path.glob("*.py"):
        (other / path.name).write_text(path.read_text())
    fleet.start(
        *("worker", fleet.address, "--nthreads", "1", "--no-nanny", "--no-dashboard"),
        *("--host", "127.0.0.1", "--preload", str(hidden(tmp_path, project.path))),
        folder=other,
    )
    words = ("--pallas-suite=specs", "--pallas-checks=forward", "--pallas-sanitize=none")
    run = fleet.pytest(
        *words, "--pallas-backend=tpu-sim", "--pallas-golden=record", "--pallas-trace=t.json"
    )
    text = run.communicate(timeout=90)[0]
    assert re.search(r"1 failed, 1 passed in", text), text
    [failed] = [each for each in fleet.results()["records"] if each["outcome"] == "failed"]
    for name in ("script", "example"):
        path = Path(failed[name])
        assert path.parent == project.path / "pallas-failures"
        assert path.is_file()
        assert f"{name:<9} {path}" in text
    assert json.loads((project.path / "t.json").read_text())["traceEvents"]
    goldens = list((project.path / "pallas_goldens").rglob("*.json"))
    records = fleet.results()["records"]
    assert len(goldens) == sum(each["goldens"].get("recorded", 0) for each in records) > 1
    # The failing example is in the database here: a run of one example replays it.
    local = ("-p", "no:jaxtyping", "--pallas-backend=tpu-sim", "--pallas-results=r.json")
    kept = [path for path in (project.path / ".hypothesis/examples").rglob("*") if path.is_file()]
    assert kept
    project.spawn(*words, *local, "--pallas-max-examples=1", "--pallas-golden=record")
    [again] = [each for each in fleet.results()["records"] if each["outcome"] == "failed"]
    assert again["explanation"] == failed["explanation"]


def test_a_scheduler_without_workers(fleet, monkeypatch):
    write(fleet)
    monkeypatch.setenv("PYTEST_PALLAS_FLEET_WAIT_SECONDS", "2")
    run = fleet.pytest()
    text = run.communicate(timeout=60)[0]
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"no worker within 2 s. Start some with `dask worker {fleet.address}" in text


def test_what_was_computed_is_reported_if_the_scheduler_is_lost(fleet):
    write(fleet, count=40, seconds=0.2)
    worker = fleet.worker()
    run = fleet.pytest()
    fleet.began(worker)
    time.sleep(2)
    fleet.processes[0].kill()
    text = run.communicate(timeout=90)[0]
    assert run.returncode == pytest.ExitCode.INTERRUPTED, text
    assert re.search(r"the scheduler of --pallas-fleet=\S+ is lost", text)
    assert re.search(r"\d+ passed", text)
