"""Distribute jobs to a limited number of workers, each supervised by its own thread.

``WorkerPool`` is for callers. Below it: which job goes to which worker (``_choose``), the loop of a
supervising thread (``_supervise``), and how one job is run and its end described (``do``).
"""

from __future__ import annotations

import dataclasses
import os
import queue
import signal
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from pytest_pallas.workers.child import DONE, JOB, READY, header
from pytest_pallas.workers.process import (
    Exchange,
    JobResult,
    Status,
    Worker,
    WorkerSetup,
    exchange,
    resident_bytes,
)

#: Time limit in seconds for a worker to start and to import its entry.
START_SECONDS = 60.0

#: Time limit in seconds for a worker to exit after it closed its pipe.
_DYING_SECONDS = 1.0

#: Number of jobs that may overtake the oldest one, because a worker of their setup is ready.
PATIENCE = 16

#: Number of consecutive failures to start a worker of a setup.
STARTS = 2

#: Seconds to wait for the threads that kill the workers.
_CLOSING_SECONDS = 15.0


class WorkerPool(AbstractContextManager["WorkerPool"]):
    """Worker processes that start on demand, stay warm, and are killed if they misbehave.

    There are at most ``size`` processes. A job goes to an idle worker of its setup, or to a new
    worker, which may replace the one that was idle longest. A pool that is garbage-collected or
    still open at exit is closed.
    """

    def __init__(self, size: int) -> None:
        """Start nothing yet.

        Args:
          size: the maximum number of concurrent jobs.
        """
        # The threads use this instead of the pool, so that an unused pool is garbage-collected.
        self._state = _PoolState(size=size)
        self._finalizer = weakref.finalize(self, _stop, self._state)

    def submit(self, setup: WorkerSetup, payload: bytes, *, timeout: float) -> Future[JobResult]:
        """Run a job once, as soon as a worker is free.

        Args:
          setup: the setup of its worker.
          payload: the argument of the setup's function.
          timeout: time limit in seconds, from the handover to a ready worker.

        Returns:
          A future of the result. It raises only ``CancelledError``, if it was cancelled before its
            start, or an error of the operating system.

        Raises:
          RuntimeError: the pool is closed, or was made before this process was forked.
        """
        state = self._state
        if state.owner != os.getpid():
            raise RuntimeError("This pool of workers belongs to another process: make a new one.")
        job = _Job(setup=setup, payload=payload, timeout=timeout)
        with state.lock:
            if state.stopping.is_set():
                raise RuntimeError("This pool of workers is closed: it accepts no more jobs.")
            state.jobs.append(job)
            _dispatch(state)
        return job.future

    def close(self) -> None:
        """Kill every worker at once, and cancel the waiting jobs; a second call does nothing."""
        self._finalizer.detach()
        state = self._state
        if state.owner != os.getpid():
            return
        with state.lock:
            state.stopping.set()
        _stop(state)

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(kw_only=True, eq=False)
class _Job:
    setup: WorkerSetup
    payload: bytes
    timeout: float
    future: Future[JobResult] = field(default_factory=Future[JobResult])
    overtaken: int = 0


@dataclass(kw_only=True, eq=False)
class _Slot:
    """A slot for one worker, and the thread that supervises it.

    ``setup`` is that of its current or next worker; None without a worker.
    """

    inbox: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)
    setup: WorkerSetup | None = None
    idle_since: float = 0.0
    busy: bool = True
    thread: threading.Thread | None = None


@dataclass(kw_only=True, eq=False)
class _PoolState:
    # Reentrant: the garbage collector may run anything in a thread that holds the lock.
    lock: threading.RLock = field(default_factory=threading.RLock)
    stopping: threading.Event = field(default_factory=threading.Event)
    jobs: deque[_Job] = field(default_factory=deque[_Job])
    slots: list[_Slot] = field(default_factory=list[_Slot])
    size: int
    owner: int = field(default_factory=os.getpid)
    # Results of consecutive jobs whose worker failed to start.
    unstartable: dict[WorkerSetup, list[JobResult]] = field(
        default_factory=dict[WorkerSetup, list[JobResult]]
    )


def _dispatch(state: _PoolState) -> None:
    """Assign jobs to all free slots; the caller holds the lock."""
    while choice := _choose(state):
        job, slot = choice
        state.jobs.remove(job)
        if not job.future.set_running_or_notify_cancel():
            continue
        if slot is None:
            slot = _Slot()
            slot.thread = threading.Thread(
                target=_supervise, args=(state, slot), name="worker supervisor", daemon=True
            )
            slot.thread.start()
            state.slots.append(slot)
        slot.busy = True
        slot.setup = job.setup
        slot.inbox.put(job)


def _choose(state: _PoolState) -> tuple[_Job, _Slot | None] | None:
    """Choose the next job and its slot, None for a new one; None without a job or a free slot."""
    idle = sorted((p for p in state.slots if not p.busy), key=lambda slot: slot.idle_since)
    room = len(state.slots) < state.size
    if not state.jobs or not (idle or room):
        return None
    oldest = state.jobs[0]
    # Use the last active one of several suitable workers: the one that was idle longest can be
    # replaced then.
    warm = {slot.setup: slot for slot in idle}
    if slot := warm.get(oldest.setup):
        return oldest, slot
    if slot := warm.get(None):
        return oldest, slot
    if room:
        return oldest, None
    if oldest.overtaken < PATIENCE:
        for job in state.jobs:
            if slot := warm.get(job.setup):
                oldest.overtaken += 1
                return job, slot
    return oldest, idle[0]


def _supervise(state: _PoolState, slot: _Slot) -> None:
    """Run the jobs of a slot, until the pool is closed."""
    worker = None
    while (job := slot.inbox.get()) is not None:
        result: JobResult | Exception
        hopeless = state.unstartable.get(job.setup, [])
        try:
            if len(hopeless) < STARTS:
                worker, result = do(worker, job.setup, job.payload, job.timeout, state.stopping)
            else:
                result = hopeless[-1]
        except Exception as unforeseen:
            worker, result = None, unforeseen
        with state.lock:
            # Before the result is set, so that its reader finds this worker idle.
            slot.setup = worker.setup if worker else None
            slot.idle_since = time.monotonic()
            slot.busy = False
            if isinstance(result, JobResult) and result.started:
                state.unstartable.pop(job.setup, None)
            elif isinstance(result, JobResult) and len(hopeless) < STARTS:
                state.unstartable.setdefault(job.setup, []).append(result)
            if not state.stopping.is_set():
                _dispatch(state)
        if isinstance(result, JobResult):
            job.future.set_result(result)
        else:
            job.future.set_exception(result)
        del job, result  # They may be large.
    if worker is not None:
        worker.end()
    _cancel_jobs(state)


def _cancel_jobs(state: _PoolState) -> None:
    """Cancel the waiting jobs."""
    with state.lock:
        jobs = list(state.jobs)
        state.jobs.clear()
    for job in jobs:
        job.future.cancel()
        job.future.set_running_or_notify_cancel()


def _stop(state: _PoolState) -> None:
    """Tell every thread to kill its worker and exit.

    It takes no lock and does not change the lists, because the garbage collector may call it.
    """
    if state.owner != os.getpid():
        return  # a fork of the process that owns the workers and threads
    state.stopping.set()
    threads = [slot.thread for slot in state.slots if slot.thread]
    for slot in state.slots:
        slot.inbox.put(None)
    # The callback of a future may close its pool, from a thread that other threads wait for.
    if threading.current_thread() not in threads:
        for thread in threads:
            thread.join(_CLOSING_SECONDS)


# Run one job in a worker: in the existing one if it is suitable, otherwise in a new one.


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
    end = exchange(
        worker, head, payload, deadline=begin + timeout, stopping=stopping, patience=patience
    )
    seconds = time.monotonic() - begin
    if end.end != "answered":
        job = worker.setup.job
        task = f"{job}, after {seconds:.1f} s" if end.end != "late" else job
        result = _end(worker, end, task=task, limit=timeout, seconds=seconds)
        return None, dataclasses.replace(result, note=end.note, silence=end.silence)
    text = worker.output.text()
    bloated = _is_bloated(worker)
    if bloated:
        worker.end()
    left = None if bloated else worker
    if end.kind == DONE:
        result = JobResult(status="done", value=end.body, output=text, seconds=seconds)
        return left, dataclasses.replace(result, note=end.note)
    message = end.body.decode(errors="replace")
    return left, JobResult(status="raised", message=message, output=text, seconds=seconds)


def _get_ready(worker: Worker, stopping: threading.Event) -> JobResult | None:
    """Wait until the worker is ready; returns the result of the job if it fails to start."""
    deadline = time.monotonic() + START_SECONDS
    end = exchange(worker, deadline=deadline, stopping=stopping)
    if end.kind == READY:
        worker.ready = True
        if worker.setup.memory_bytes is not None:
            worker.fresh_bytes = resident_bytes(worker.pid)
        return None
    if end.end == "answered":
        text = worker.output.text()
        worker.end()
        name, entry = worker.setup.name, worker.setup.entry
        message = f"The {name} worker could not import its entry {entry!r}:\n"
        message += end.body.decode(errors="replace")
        return JobResult(status="raised", message=message, output=text, started=False)
    result = _end(worker, end, task="its start", limit=START_SECONDS, seconds=0.0)
    return dataclasses.replace(result, started=False)


def _end(worker: Worker, end: Exchange, *, task: str, limit: float, seconds: float) -> JobResult:
    """Kill a worker that did not answer, and describe its end during ``task``."""
    if end.end == "gone":
        # Its last output may still be in the pipe.
        worker.dies_within(_DYING_SECONDS)
    text = worker.output.text()
    code = worker.end()
    status: Status = "crashed"
    match end.end:
        case "late":
            status = "timed out"
            what = f"was killed: {task} exceeded its time limit of {limit:g} s"
        case "large":
            status = "out of memory"
            allowed = worker.setup.memory_bytes or 0
            what = (
                f"was killed during {task}: it used {_mebibytes(end.resident)} MiB of memory, "
                f"and the limit is {_mebibytes(allowed)} MiB"
            )
        case "stopped":
            what = f"was killed during {task}: its pool was closed"
        case _:
            what = f"{_describe(code)} during {task}"
    message = f"The {worker.setup.name} worker {what}."
    return JobResult(status=status, message=message, fate=f"{what}.", output=text, seconds=seconds)


def _describe(code: int | None) -> str:
    """Return the meaning of a return code of ``subprocess``, as a predicate."""
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
    """Return whether earlier jobs left less than half of the memory of a fresh worker."""
    limit = worker.setup.memory_bytes
    return limit is not None and resident_bytes(worker.pid) > (worker.fresh_bytes + limit) / 2


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f}"
