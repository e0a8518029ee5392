"""Workers that are forks of a process that has imported what they need."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_pallas.workers import forks
from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import SUPERVISOR, WorkerSetup

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers are forked on Linux only")


@pytest.fixture(autouse=True)
def _own_processes(monkeypatch):
    """Share no process that forks with other tests."""
    monkeypatch.delenv(forks.FOLDER, raising=False)
    forks._close()
    yield
    forks._close()


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
    monkeypatch.setenv("MOSAIC_GPU_CUDA_ROOT", "/as/an/import/of/jax/does")
    (tmp_path / "inside").mkdir()
    monkeypatch.chdir(tmp_path / "inside")
    monkeypatch.syspath_prepend(tmp_path / "elsewhere")
    parent, variables, folder, _, _, path = where(environment=(("PYTEST_X", "1"),))
    assert parent == before
    assert variables == {**os.environ, SUPERVISOR: str(os.getpid()), "PYTEST_X": "1"}
    assert folder == str(tmp_path / "inside")
    assert path == sys.path


def test_what_hypothesis_and_others_keep_is_in_the_folder_of_the_worker(
    pool, setup_for, monkeypatch, tmp_path
):
    preloads = ("hypothesis.configuration", "numpy.random", "tempfile")
    monkeypatch.delenv("HYPOTHESIS_STORAGE_DIRECTORY", raising=False)
    answers = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        monkeypatch.setenv("TMPDIR", str(tmp_path / name))
        setup = setup_for("places", name=name, preloads=preloads)
        answers.append(json.loads(pool.submit(setup, b"", timeout=20).result().value))
    for name, (examples, temporary, _) in zip(("one", "two"), answers, strict=True):
        assert examples == str(tmp_path / name / ".hypothesis" / "examples")
        assert temporary == str(tmp_path / name)
    assert answers[0][2] != answers[1][2], "each draws other numbers"


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


#: Prints the parent of a worker, and stays until its input ends.
ASKS = """
import sys
from pytest_pallas.workers.pool import WorkerPool
from pytest_pallas.workers.process import WorkerSetup
setup = WorkerSetup(name="t", entry="pallas_test_support.worker_entries:parent", preloads=("json",))
with WorkerPool(1) as pool:
    print(pool.submit(setup, b"", timeout=20).result().value.decode(), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def asking(tmp_path, monkeypatch):
    """Starts processes that share a folder, each with a worker."""
    monkeypatch.setenv(forks.FOLDER, str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "support"))
    started = []

    def start() -> tuple[subprocess.Popen[str], int]:
        process = subprocess.Popen(
            [sys.executable, "-c", ASKS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        return process, int(process.stdout.readline())

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_processes_that_share_a_folder_share_the_process_that_forks(asking, tmp_path, gone):
    first, parent = asking()
    _, same = asking()
    assert parent == same
    first.kill()
    assert asking()[1] == parent, "it goes on when the process that started it is killed"
    os.kill(parent, signal.SIGKILL)
    assert gone(parent)
    _, another = asking()
    assert another != parent
    os.kill(another, signal.SIGKILL)


def test_a_folder_for_the_processes_that_this_one_starts(monkeypatch):
    with forks.shared():
        folder = Path(os.environ[forks.FOLDER])
        assert folder.stat().st_mode & 0o077 == 0
        with forks.shared():  # which are those of a process above
            assert os.environ[forks.FOLDER] == str(folder)
        assert folder.exists()
    assert forks.FOLDER not in os.environ
    assert not folder.exists()


@pytest.mark.parametrize("removed", [False, True])
def test_in_a_folder_it_ends_when_nobody_can_ask(monkeypatch, tmp_path, removed):
    """That is when the folder is removed, or some time after the last that asked."""
    monkeypatch.setattr(forks, "_LOOK_FOR_FOLDER", 0.01)
    if not removed:
        monkeypatch.setattr(forks, "LINGER", 0.02)
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
            client.connect(str(path))
            forking = forks._Forking(os.dup(listener.fileno()), str(path))
            client.close()
            if removed:
                path.unlink()
            assert forking.run() is None
    assert not path.exists()


def test_a_folder_that_cannot_be_used_needs_new_interpreters(
    pool, setup_for, monkeypatch, tmp_path
):
    folder = tmp_path / ("long" * 40)  # longer than the path of a socket may be
    folder.mkdir(0o700)
    monkeypatch.setenv(forks.FOLDER, str(folder))
    pid = int(pool.submit(setup_for("pid"), b"", timeout=20).result().value)
    assert parent_of(pid) == os.getpid()


@pytest.mark.parametrize("mode", [0o700, 0o770, 0o707])
def test_only_a_folder_of_ones_own_is_trusted(tmp_path, mode):
    tmp_path.chmod(mode)
    assert forks._is_private(str(tmp_path)) == (mode == 0o700)
    assert not forks._is_private(str(tmp_path / "missing"))
    assert not forks._is_private("")
