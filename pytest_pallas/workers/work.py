"""Do one job in a worker: the worker that there is if it will do, or else a fresh one."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time

from pytest_pallas.workers.exchange import DONE, JOB, READY, Exchange, exchange, header
from pytest_pallas.workers.jobs import Result, Setup, Status
from pytest_pallas.workers.memory import resident_bytes
from pytest_pallas.workers.process import Worker

#: How long a worker may take to start and to import its entry, in seconds.
START_SECONDS = 60.0

#: How long a worker that hung up may take to die, in seconds.
_DYING_SECONDS = 1.0


def do(
    worker: Worker | None, setup: Setup, payload: bytes, timeout: float, stopping: threading.Event
) -> tuple[Worker | None, Result]:
    """Do one job, once.

    Args:
      worker: a free worker, of any setup, or None. Belongs to this function from now on.
      setup: the worker that the job wants.
      payload: what the function is called with.
      timeout: seconds that the job may take, once it is handed to the worker.
      stopping: set when the pool is being closed.

    Returns:
      The worker, if it is there and fit for another job, and the result.
    """
    if worker is not None and (worker.setup != setup or worker.dies_within(0)):
        worker.end()
        worker = None
    if worker is None:
        try:
            worker = Worker(setup)
        except OSError as error:
            message = f"The {setup.name} worker could not be started: {error}."
            return None, Result(status="crashed", message=message, started=False)
    try:
        failure = None if worker.ready else _get_ready(worker, stopping)
        if failure is not None:
            return None, failure
        return _ask(worker, payload, timeout, stopping)
    except BaseException:
        worker.end()
        raise


def _ask(
    worker: Worker, payload: bytes, timeout: float, stopping: threading.Event
) -> tuple[Worker | None, Result]:
    """Hand a job to a worker that is ready, and wait for its end."""
    worker.output.clear()
    begin = time.monotonic()
    head = header(JOB, payload)
    patience = timeout if worker.setup.talks else None
    found = exchange(
        worker, head, payload, deadline=begin + timeout, stopping=stopping, patience=patience
    )
    seconds = time.monotonic() - begin
    if found.end != "answered":
        job = worker.setup.job
        task = f"{job}, after {seconds:.1f} s" if found.end != "late" else job
        result = _end(worker, found, task=task, limit=timeout, seconds=seconds)
        return None, dataclasses.replace(result, note=found.note, silence=found.silence)
    text = worker.output.text()
    bloated = _is_bloated(worker)
    if bloated:
        worker.end()
    left = None if bloated else worker
    if found.kind == DONE:
        return left, Result(status="done", value=found.body, output=text, seconds=seconds)
    message = found.body.decode(errors="replace")
    return left, Result(status="raised", message=message, output=text, seconds=seconds)


def _get_ready(worker: Worker, stopping: threading.Event) -> Result | None:
    """Wait until the worker is ready; the result of its job if it never will be."""
    deadline = time.monotonic() + START_SECONDS
    found = exchange(worker, deadline=deadline, stopping=stopping)
    if found.kind == READY:
        worker.ready = True
        if worker.setup.memory_bytes is not None:
            worker.fresh_bytes = resident_bytes(worker.pid)
        return None
    if found.end == "answered":
        text = worker.output.text()
        worker.end()
        name, entry = worker.setup.name, worker.setup.entry
        message = f"The {name} worker could not import its entry {entry!r}:\n"
        message += found.body.decode(errors="replace")
        return Result(status="raised", message=message, output=text, started=False)
    result = _end(worker, found, task="its start", limit=START_SECONDS, seconds=0.0)
    return dataclasses.replace(result, started=False)


def _end(worker: Worker, found: Exchange, *, task: str, limit: float, seconds: float) -> Result:
    """End a worker that did not answer, and say what happened to it during ``task``."""
    if found.end == "gone":
        # Its last words may still be on their way.
        worker.dies_within(_DYING_SECONDS)
    text = worker.output.text()
    code = worker.end()
    status: Status = "crashed"
    match found.end:
        case "late":
            status = "timed out"
            what = f"was killed: it was not done with {task} within {limit:g} s"
        case "large":
            status = "out of memory"
            allowed = worker.setup.memory_bytes or 0
            what = (
                f"was killed during {task}: it used {_mebibytes(found.resident)} MiB of memory "
                f"and may use {_mebibytes(allowed)} MiB"
            )
        case "stopped":
            what = f"was killed during {task}: its pool was closed"
        case _:
            what = f"{_describe(code)} during {task}"
    message = f"The {worker.setup.name} worker {what}."
    return Result(status=status, message=message, fate=f"{what}.", output=text, seconds=seconds)


def _describe(code: int | None) -> str:
    """What a return code of ``subprocess`` means, with a verb."""
    if code is None:
        return "closed its connection and was killed"
    if code >= 0:
        return f"exited with code {code}"
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL from elsewhere (the system may have run out of memory)"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"died of signal {-code}"
    return f"died of {name} ({signal.strsignal(-code)})"


def _is_bloated(worker: Worker) -> bool:
    """Whether earlier jobs left less than half of the memory that a fresh worker offers."""
    limit = worker.setup.memory_bytes
    return limit is not None and resident_bytes(worker.pid) > (worker.fresh_bytes + limit) / 2


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f}"
