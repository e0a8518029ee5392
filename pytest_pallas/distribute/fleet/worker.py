"""In a Dask worker: run the tests of a task in a child process.

A kernel that crashes or hangs ends the child, as on one machine, and never the worker. A child
serves one run, stays for the next task of that run, and ends when none comes.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import tempfile
import threading
import uuid
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_pallas.distribute.messages import (
    Answer,
    FleetTask,
    RunSetup,
    TestResult,
)
from pytest_pallas.isolate.messages import Opening, WorkerReply, WorkerRequest, decoded, encoded
from pytest_pallas.isolate.supervise import run_in, worker_setup
from pytest_pallas.pytest_session import RAISED_ON
from pytest_pallas.workers.pool import WorkerPool

#: Seconds that a child without a task stays.
IDLE_SECONDS = 60.0

#: Time limit in seconds for the comparison of the projects.
_COMPARISON = 60.0

#: Limit on the size of a file that goes to the controller, in bytes.
_MOST_BYTES = 256 * 2**20


def dask_setup(worker: object) -> None:
    """Leave the terminal's process group in a worker of ``local:N``: Ctrl-C is the controller's.

    Dask loads this module there before it starts.
    """
    del worker
    os.setpgrp()


def greet(setup: bytes) -> bytes:
    """Answer whether this worker can take part in a run: an encoded ``Answer``."""
    run = decoded(RunSetup, setup)
    with _leased(run) as child:
        return encoded(_answer(run, child))


def answer_key(key: str) -> str:
    """Return the name under which the scheduler has the answer to a task."""
    return f"{key}-answer"


def work(setup: bytes, task: bytes) -> bytes:
    """Run the tests of an encoded ``FleetTask``.

    The answer, an encoded ``Answer``, goes to the scheduler before this returns: what a function
    returns stays with the worker, and a later test may end that.

    Returns:
      An encoded ``Answer`` if nothing ran; otherwise no bytes.
    """
    from distributed import get_client

    run, todo = decoded(RunSetup, setup), decoded(FleetTask, task)
    before = _claim(todo.key)
    if before:
        return encoded(Answer(worker=name(), before=before))
    with _leased(run) as child:
        answer = _answer(run, child)
        if answer.refused:
            return encoded(answer)
        results = encoded(Answer(worker=answer.worker, results=child.run(todo)))
    client: Any = get_client()
    client.set_metadata([answer_key(todo.key)], results)
    return b""


def name() -> str:
    """Return this worker's name in messages: its address, host and process."""
    from distributed import get_worker

    try:
        address = get_worker().address
    except ValueError:  # not in a worker
        address = "this process"
    return f"{address} (process {os.getpid()} of {platform.node()})"


def _claim(key: str) -> str:
    """Begin a task, unless another worker has; returns the name of that worker, or "".

    Dask gives a task to another worker if the first one is lost. Then the controller decides.
    """
    from distributed import get_client

    client: Any = get_client()
    before = client.get_metadata([key], default="")
    if not before:
        client.set_metadata([key], name())
    return str(before)


def _answer(run: RunSetup, child: Child) -> Answer:
    with _LOCK:
        known = _ANSWERS.get(run.run)
    if known is None:
        known = child.compared()
        with _LOCK:
            _ANSWERS.clear()  # of earlier runs
            _ANSWERS[run.run] = known
    return known


@dataclass(eq=False)
class Child:
    """A process that runs tests of one run.

    Attributes:
      setup: the run.
      retired: how many processes were replaced because a test changed their state.
    """

    setup: RunSetup
    retired: int = 0
    timer: threading.Timer | None = None
    _close: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __post_init__(self) -> None:
        made = tempfile.TemporaryDirectory(prefix="pallas-fleet-", ignore_cleanup_errors=True)
        self.scratch = Path(self._close.enter_context(made))
        self.pool = self._close.enter_context(WorkerPool(1))
        here = self.setup.folder
        options = {
            **self.setup.options,
            # Files of failures are written beside the results.
            **{
                f"pallas_{kind}": str(self.scratch / f"{kind}.json")
                for kind in ("results", "trace")
                if self.setup.options.get(f"pallas_{kind}")
            },
        }
        self.folder = here if os.path.isdir(here) else os.getcwd()
        opening = Opening(args=self.setup.args, folder=self.folder, options=options, attributes={})
        self.opening = encoded(opening)

    def close(self) -> None:
        """End the process."""
        self._close.close()

    def compared(self) -> Answer:
        """Compare its project with that of the controller."""
        request = WorkerRequest(
            opening=self.opening,
            nodeid="",
            path=None,
            timeout=_COMPARISON,
            project=self.setup.project,
        )
        done = self.pool.submit(self._worker, encoded(request), timeout=_COMPARISON).result()
        if done.status == "done":
            reply = decoded(WorkerReply, done.value)
            return Answer(worker=name(), differences=reply.differences)
        text = f"{done.message}\n{done.output}".strip()
        last = text.splitlines()[-1:] or ["no message"]
        return Answer(
            worker=name(), problem=f"pytest cannot be started in {self.folder}: {last[0]}"
        )

    def run(self, task: FleetTask) -> list[TestResult]:
        """Run the tests of a task until one ends its process."""
        results: list[TestResult] = []
        raised, changes, failures = dict(task.raised), task.changes, 0
        for test in task.tests:
            request = dataclasses.replace(
                test,
                opening=self.opening,
                journal=None if test.journal is None else self._journal(),
                raised=raised,
                changes=changes,
                examples=self.setup.examples,
            )
            goldens = _stamps(self._goldens)
            done = run_in(self.pool, self._worker, request)
            files = self._written()
            if done.status != "done":
                results.append(TestResult(nodeid=test.nodeid, files=files, death=done))
                return results
            reply = decoded(WorkerReply, done.value)
            changes = reply.changes
            written = _changed(self._goldens, goldens)
            fields: dict[str, Any] = {**vars(reply), "files": files, "goldens": written}
            results.append(TestResult(nodeid=test.nodeid, **fields))
            self.retired += reply.stained
            for report in reply.reports:
                if (mark := report.get(RAISED_ON)) is not None:
                    kernel, check, item, expected = mark
                    raised.setdefault(kernel, (check, item, expected))
            failures += any(report.get("outcome") == "failed" for report in reply.reports)
            if reply.exit is not None or (task.most and failures >= task.most):
                return results
        return results

    def _journal(self) -> str:
        """Return a new name of a file for the verdicts of a test."""
        folder = self.scratch / "journals"
        folder.mkdir(exist_ok=True)
        return str(folder / uuid.uuid4().hex)

    @property
    def _goldens(self) -> Path | None:
        """The folder of goldens, if tests write some."""
        written = self.setup.goldens
        return None if not written else Path(self.folder) / written

    def _written(self) -> dict[str, bytes]:
        """Take away the files that a test wrote for a person, and return their contents."""
        files: dict[str, bytes] = {}
        for path in sorted(self.scratch.rglob("*")):
            if path.is_file() and path.parent.name != "journals":
                if path.stat().st_size <= _MOST_BYTES:
                    files[str(path)] = path.read_bytes()
                path.unlink()
        return files

    @property
    def _worker(self) -> Any:
        environment = {**self.setup.environment, "PYTEST_PALLAS_RUN": self.setup.run}
        return worker_setup(self.retired, self.setup.gigabytes, **environment)


def _stamps(folder: Path | None) -> dict[Path, tuple[int, int]]:
    if folder is None or not folder.is_dir():
        return {}
    stats = ((path, path.stat()) for path in folder.rglob("*") if path.is_file())
    return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats}


def _changed(folder: Path | None, before: Mapping[Path, tuple[int, int]]) -> dict[str, bytes]:
    """Return the files of a folder that were written since."""
    if folder is None:
        return {}
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path, stamp in _stamps(folder).items()
        if before.get(path) != stamp and not path.name.startswith(".")
    }


#: Children without a task, and the answer of this worker in the current run.
_LOCK = threading.Lock()
_FREE: list[Child] = []
_ANSWERS: dict[str, Answer] = {}


@contextlib.contextmanager
def _leased(run: RunSetup) -> Generator[Child]:
    """Lend a child of this run for one task."""
    with _LOCK:
        child = next((free for free in _FREE if free.setup.run == run.run), None)
        if child is not None:
            _FREE.remove(child)
    if child is None:
        child = Child(run)
    elif child.timer is not None:
        child.timer.cancel()
    try:
        yield child
    except BaseException:
        child.close()
        raise
    child.timer = threading.Timer(IDLE_SECONDS, _end_if_free, (child,))
    child.timer.daemon = True
    with _LOCK:
        _FREE.append(child)
    child.timer.start()


def _end_if_free(child: Child) -> None:
    with _LOCK:
        if child not in _FREE:
            return
        _FREE.remove(child)
    child.close()
