"""Workers that are forks of a process that has imported what they need."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from pytest_pallas.workers import WorkerPool, WorkerSetup, forks

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.fixture
def where(pool, setup_for, tmp_path):
    """What ``worker_facts`` says of a worker: its parent, variables, folder, modules and random."""
    (tmp_path / "worker_facts.py").write_text(
        "import json, os, random, sys\n"
        "def run(payload):\n"
        "    modules = [name for name in payload.decode().split() if name in sys.modules]\n"
        "    threads = len(os.listdir('/proc/self/task'))\n"
        "    return json.dumps([os.getppid(), dict(os.environ), os.getcwd(), modules,\n"
        "                       random.random(), sys.path]).encode()\n"
    )

    def ask(modules: str = "", *, name: str = "facts", **rest):
        setup = WorkerSetup(name=name, entry="worker_facts:run", **{"preloads": ("json",), **rest})
        result = pool.submit(setup, modules.encode(), timeout=20).result(timeout=60)
        assert result.status == "done", result
        import json

        return json.loads(result.value)

    return ask


def test_workers_have_one_parent_and_its_imports(where, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    first = where("this json", name="first", preloads=("this",))
    second = where("this json", name="second", preloads=("this",))
    assert first[0] == second[0] != os.getpid()
    assert first[3] == second[3] == ["this", "json"]
    assert first[4] != second[4], "each draws other numbers"


def test_a_worker_has_the_variables_folder_and_search_path_of_its_start(
    where, monkeypatch, tmp_path
):
    monkeypatch.syspath_prepend(tmp_path)
    before, *_ = where(name="before")
    monkeypatch.setenv("PYTEST_CURRENT_TEST", "another")
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    parent, variables, folder, _, _, path = where(environment=(("PYTEST_X", "1"),))
    assert parent == before
    assert variables == {**os.environ, "PYTEST_X": "1"}
    assert folder == str(tmp_path / "inside")
    assert path == sys.path


def test_a_variable_that_imports_may_read_has_another_parent(where, monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(tmp_path)
    before, *_ = where(name="before")
    parent, variables, *_ = where(environment=(("JAX_NUM_CPU_DEVICES", "3"),))
    assert parent != before
    assert variables["JAX_NUM_CPU_DEVICES"] == "3"


def test_if_the_parent_is_killed_its_workers_die_and_another_one_forks(pool, setup_for, gone):
    setup = setup_for("pid")
    first = int(pool.submit(setup, b"", timeout=20).result().value)
    os.kill(parent_of(first), signal.SIGKILL)
    assert gone(first)
    second = int(pool.submit(setup, b"", timeout=20).result().value)
    assert second != first
    assert parent_of(second) != os.getpid()


def test_what_cannot_be_imported_before_is_an_error_of_who_needs_it(pool, setup_for):
    setup = setup_for("pid", preloads=("no_such_module_of_anybody",))
    pid = int(pool.submit(setup, b"", timeout=20).result().value)
    assert parent_of(pid) == os.getpid(), "a new interpreter"


def test_few_processes_fork_and_one_ends_after_its_last_worker(setup_for, gone):
    forks._close()
    with WorkerPool(forks.SERVERS + 1) as pool:
        setups = [
            setup_for("pid", environment=(("JAX_X", str(number)),))
            for number in range(forks.SERVERS + 1)
        ]
        jobs = [pool.submit(setup, b"0.1", timeout=20) for setup in setups]
        parents = [parent_of(int(job.result().value)) for job in jobs]
        assert len(forks._SERVERS) == forks.SERVERS
        again = [pool.submit(setup, b"", timeout=20).result().status for setup in setups]
        assert again == ["done"] * len(setups)
    alive = [server._process.pid for server in forks._SERVERS.values()]
    [left] = set(parents) - set(alive)
    assert gone(left)


def test_a_request_that_is_too_large_needs_a_new_interpreter(pool, setup_for):
    setup = setup_for("pid", environment=tuple((f"PYTEST_{n}", "x" * 10_000) for n in range(20)))
    pid = int(pool.submit(setup, b"", timeout=20).result().value)
    assert parent_of(pid) == os.getpid()
