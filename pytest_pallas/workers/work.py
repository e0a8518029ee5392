"""Run one job in a worker: in the existing one if it is suitable, otherwise in a new one."""

from __future__ import annotations

import dataclasses
import signal
import threading
import time

from pytest_pallas.workers.exchange import DONE, JOB, READY, Exchange, exchange, header
from pytest_pallas.workers.jobs import JobResult, Status, WorkerSetup
from pytest_pallas.workers.memory import resident_bytes
from pytest_pallas.workers.process import Worker

#: Time limit in seconds for a worker to start and to import its entry.
START_SECONDS = 60.0

#: Time limit in seconds for a worker to exit after it closed its pipe.
_DYING_SECONDS = 1.0


def do(
    worker: Worker | None,
    setup: WorkerSetup,
    payload: bytes,
    timeout: float,
    stopping: threading.Event,
) -> tuple[Worker | None, JobResult]:
    """Run one job, once.

    Args:
      worker: a free worker, of any setup, or None. This function takes ownership.
      setup: the setup of the job's worker.
      payload: the argument of the function.
      timeout: time limit in seconds, from the handover to the worker.
      stopping: set when the pool is being closed.

    Returns:
      The worker, if it can run another job, and the result.
    """
    if worker is not None and (worker.setup != setup or worker.dies_within(0)):
        worker.end()
        worker = None
    if worker is None:
        try:
            worker = Worker(setup, stopping)
        except OSError as error:
            message = f"The {setup.name} worker could not be started: {error}."
            return None, JobResult(status="crashed", message=message, started=False)
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
) -> tuple[Worker | None, JobResult]:
    """Send a job to a ready worker, and wait for its end."""
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
        return left, JobResult(status="done", value=found.body, output=text, seconds=seconds)
    message = found.body.decode(errors="replace")
    return left, JobResult(status="raised", message=message, output=text, seconds=seconds)


def _get_ready(worker: Worker, stopping: threading.Event) -> JobResult | None:
    """Wait until the worker is ready; returns the result of the job if it fails to start."""
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
        return JobResult(status="raised", message=message, output=text, started=False)
    result = _end(worker, found, task="its start", limit=START_SECONDS, seconds=0.0)
    return dataclasses.replace(result, started=False)


def _end(worker: Worker, found: Exchange, *, task: str, limit: float, seconds: float) -> JobResult:
    """Kill a worker that did not answer, and describe its end during ``task``."""
    if found.end == "gone":
        # Its last output may still be in the pipe.
        worker.dies_within(_DYING_SECONDS)
    text = worker.output.text()
    code = worker.end()
    status: Status = "crashed"
    match found.end:
        case "late":
            status = "timed out"
            what = f"was killed: {task} exceeded its time limit of {limit:g} s"
        case "large":
            status = "out of memory"
            allowed = worker.setup.memory_bytes or 0
            what = (
                f"was killed during {task}: it used {_mebibytes(found.resident)} MiB of memory, "
                f"and the limit is {_mebibytes(allowed)} MiB"
            )
        case "stopped":
            what = f"was killed during {task}: its pool was closed"
        case _:
            what = f"{_describe(code)} during {task}"
    message = f"The {worker.setup.name} worker {what}."
    return JobResult(status=status, message=message, fate=f"{what}.", output=text, seconds=seconds)


def _describe(code: int | None) -> str:
    """The meaning of a return code of ``subprocess``, as a predicate."""
    if code is None:
        return "closed its connection and was killed"
    if code >= 0:
        return f"exited with code {code}"
    if code == -signal.SIGKILL:
        return "was killed by SIGKILL from outside (the system may have run out of memory)"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        return f"died of signal {-code}"
    return f"died of {name} ({signal.strsignal(-code)})"


def _is_bloated(worker: Worker) -> bool:
    """Whether earlier jobs left less than half of the memory of a fresh worker."""
    limit = worker.setup.memory_bytes
    return limit is not None and resident_bytes(worker.pid) > (worker.fresh_bytes + limit) / 2


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f}"
