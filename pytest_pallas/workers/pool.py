"""Hand jobs to a limited number of workers, each supervised by a thread of its own."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import TracebackType

from pytest_pallas.workers.jobs import Result, Setup
from pytest_pallas.workers.work import do

#: How many jobs may be done before the oldest one, because a worker of their setup was at hand.
PATIENCE = 16

#: How many jobs in a row may try in vain to start a worker of their setup.
STARTS = 2

#: How long to wait for the threads that kill the workers, in seconds.
_CLOSING_SECONDS = 15.0


class Pool:
    """Worker processes that are started when they are needed, kept warm, and killed on misconduct.

    There are at most ``size`` processes. A job goes to an idle worker of its setup, or else to a
    new one, for which the one that was idle longest makes room. A pool that is forgotten or left
    open when the interpreter ends is closed then.
    """

    def __init__(self, size: int) -> None:
        """Start nothing yet.

        Args:
          size: how many jobs may run at once.

        Raises:
          ValueError: ``size`` is below 1.
        """
        if size < 1:
            raise ValueError(f"A pool of {size} workers does nothing: give at least 1.")
        # What the threads use, and not the pool itself: a pool that is forgotten shall go.
        self._state = _State(size=size)
        self._finalizer = weakref.finalize(self, _stop, self._state)

    def submit(self, setup: Setup, payload: bytes, *, timeout: float) -> Future[Result]:
        """Have a job done, once, as soon as there is room.

        Args:
          setup: the worker that it wants.
          payload: what the setup's function is called with.
          timeout: seconds that it may take once it is handed to a worker that is ready.

        Returns:
          A future of the result. It raises nothing but ``CancelledError``, if it was cancelled
          before it was begun, or an error of the operating system.

        Raises:
          RuntimeError: the pool is closed, or was made before this process was forked.
          TypeError: ``payload`` is not bytes.
          ValueError: ``timeout`` is not positive.
        """
        if not isinstance(payload, bytes):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise TypeError(f"The payload of a job is bytes, not {type(payload).__name__}.")
        if not timeout > 0:
            raise ValueError(f"A job cannot be done within {timeout} s: give a positive number.")
        state = self._state
        if state.owner != os.getpid():
            raise RuntimeError("This pool of workers belongs to another process: make a new one.")
        job = _Job(setup=setup, payload=payload, timeout=timeout)
        with state.lock:
            if state.stopping.is_set():
                raise RuntimeError("This pool of workers is closed: nothing can be submitted.")
            state.jobs.append(job)
            _dispatch(state)
        return job.future

    def close(self) -> None:
        """End every worker at once, and cancel what has not been begun; again, does nothing."""
        self._finalizer.detach()
        state = self._state
        if state.owner != os.getpid():
            return
        with state.lock:
            state.stopping.set()
        _stop(state)

    def __enter__(self) -> Pool:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


@dataclass(kw_only=True, eq=False)
class _Job:
    setup: Setup
    payload: bytes
    timeout: float
    future: Future[Result] = field(default_factory=Future[Result])
    overtaken: int = 0


@dataclass(kw_only=True, eq=False)
class _Place:
    """Room for one worker, and the thread that supervises it.

    ``setup`` is that of the worker that lives here or is about to; None if there is none.
    """

    inbox: queue.SimpleQueue[_Job | None] = field(default_factory=queue.SimpleQueue)
    setup: Setup | None = None
    idle_since: float = 0.0
    busy: bool = True
    thread: threading.Thread | None = None


@dataclass(kw_only=True, eq=False)
class _State:
    # Reentrant: the garbage collector may run anything in a thread that holds the lock.
    lock: threading.RLock = field(default_factory=threading.RLock)
    stopping: threading.Event = field(default_factory=threading.Event)
    jobs: deque[_Job] = field(default_factory=deque[_Job])
    places: list[_Place] = field(default_factory=list[_Place])
    size: int
    owner: int = field(default_factory=os.getpid)
    # Results of jobs of which none got a worker since one last did.
    unstartable: dict[Setup, list[Result]] = field(default_factory=dict[Setup, list[Result]])


def _dispatch(state: _State) -> None:
    """Hand out as many jobs as there is room for; the caller holds the lock."""
    while found := _choose(state):
        job, place = found
        state.jobs.remove(job)
        if not job.future.set_running_or_notify_cancel():
            continue
        if place is None:
            place = _Place()
            place.thread = threading.Thread(
                target=_supervise, args=(state, place), name="worker supervisor", daemon=True
            )
            place.thread.start()
            state.places.append(place)
        place.busy = True
        place.setup = job.setup
        place.inbox.put(job)


def _choose(state: _State) -> tuple[_Job, _Place | None] | None:
    """The next job and its place, None for a new one; None if there is no job or no room."""
    idle = sorted((p for p in state.places if not p.busy), key=lambda place: place.idle_since)
    room = len(state.places) < state.size
    if not state.jobs or not (idle or room):
        return None
    oldest = state.jobs[0]
    # Of several workers that would do, the one that worked last is the least likely to be needed
    # as room for another setup.
    warm = {place.setup: place for place in idle}
    if place := warm.get(oldest.setup):
        return oldest, place
    if place := warm.get(None):
        return oldest, place
    if room:
        return oldest, None
    if oldest.overtaken < PATIENCE:
        for job in state.jobs:
            if place := warm.get(job.setup):
                oldest.overtaken += 1
                return job, place
    return oldest, idle[0]


def _supervise(state: _State, place: _Place) -> None:
    """Do what comes to a place, until the pool is closed."""
    worker = None
    while (job := place.inbox.get()) is not None:
        result: Result | Exception
        hopeless = state.unstartable.get(job.setup, [])
        try:
            if len(hopeless) < STARTS:
                worker, result = do(worker, job.setup, job.payload, job.timeout, state.stopping)
            else:
                result = hopeless[-1]
        except Exception as unforeseen:
            worker, result = None, unforeseen
        with state.lock:
            # Before the result is known: who waits for it finds this worker idle.
            place.setup = worker.setup if worker else None
            place.idle_since = time.monotonic()
            place.busy = False
            if isinstance(result, Result) and result.started:
                state.unstartable.pop(job.setup, None)
            elif isinstance(result, Result) and len(hopeless) < STARTS:
                state.unstartable.setdefault(job.setup, []).append(result)
            if not state.stopping.is_set():
                _dispatch(state)
        if isinstance(result, Result):
            job.future.set_result(result)
        else:
            job.future.set_exception(result)
        del job, result  # They may be large.
    if worker is not None:
        worker.end()
    _cancel_jobs(state)


def _cancel_jobs(state: _State) -> None:
    """Cancel what has not been begun."""
    with state.lock:
        jobs = list(state.jobs)
        state.jobs.clear()
    for job in jobs:
        job.future.cancel()
        job.future.set_running_or_notify_cancel()


def _stop(state: _State) -> None:
    """Let every thread kill its worker and end.

    Takes no lock and leaves the lists alone, since the garbage collector may call it anywhere.
    """
    if state.owner != os.getpid():
        return  # In a fork of the process that the workers and threads belong to.
    state.stopping.set()
    threads = [place.thread for place in state.places if place.thread]
    for place in state.places:
        place.inbox.put(None)
    # The callback of a future may close its pool, from a thread that others may wait for.
    if threading.current_thread() not in threads:
        for thread in threads:
            thread.join(_CLOSING_SECONDS)
