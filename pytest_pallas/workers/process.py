"""A worker process from the side of the process that started it: start, ask, limit, end it.

``WorkerSetup`` says what a worker is, and ``JobResult`` what became of a job. ``Worker`` is the
process, ``exchange`` sends it a message and waits for the answer while it watches the time, the
memory and the output.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import math
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pallas_sim.findings import Text
from pytest_pallas.workers.child import NOTE, parse
from pytest_pallas.workers.forks import Fork, fork

Status = Literal["done", "raised", "timed out", "crashed", "out of memory"]


@dataclass(frozen=True, kw_only=True)
class WorkerSetup:
    """A kind of worker. Jobs of equal setups share processes.

    Attributes:
      name: for messages, such as ``"libtpu"``.
      job: the name of a job in messages.
      entry: ``"module:function"``. A worker imports the module once, with the ``sys.path`` that
        this process has then, and calls ``function(payload: bytes) -> bytes`` for each job.
      environment: environment variables of the worker, as pairs, besides those of this process.
      memory_bytes: limit on the resident memory of the worker and its children, in bytes; None for
        no limit. Shared pages count once for each process. Enforced on Linux only.
      talks: whether the function also takes ``say``, a function of bytes, with which it
        reports its next step. Each note restarts the time limit of the job.
      preloads: on Linux, one process imports these modules, and the workers are its forks; with ()
        each worker is a new interpreter. None may start a thread or a backend of JAX.

    Raises:
      ValueError: ``entry`` is not of that form, or ``memory_bytes`` is not positive.
    """

    name: str
    entry: str
    environment: tuple[tuple[str, str], ...] = ()
    memory_bytes: int | None = None
    talks: bool = False
    job: str = "a job"
    preloads: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class JobResult:
    """The result of a job.

    Attributes:
      status: ``"done"`` if the function returned, ``"raised"`` if it raised an ``Exception``, or
        how its worker ended.
      value: the return value of the function, if it is done.
      message: the traceback of its error, or a sentence about the failure.
      fate: the end of the worker, as in the message after the worker's name: ``"died of SIGABRT
        (Aborted) during a job."``; "" if it answered.
      output: the last 64 kB of the worker's stdout and stderr during the job, or during its start
        if that failed.
      seconds: from the handover to the worker until the end, without the start of a process.
      started: whether a worker was ready for the job. After two failed starts in a row, a pool
        gives the same result to all further jobs of that setup.
      note: the last note of the worker during the job.
      silence: seconds from the last note, or from the start, to the end of the job.
    """

    status: Status
    value: bytes = b""
    message: Text = ""
    fate: Text = ""
    output: Text = ""
    seconds: float = 0.0
    started: bool = True
    note: bytes = b""
    silence: float = 0.0


#: Number of bytes at the end of the output that are kept.
KEPT_BYTES = 64 * 1024

#: The variable with the id of the process that supervises a worker. Its parent may be another one.
SUPERVISOR = "PYTEST_PALLAS_SUPERVISOR"

#: Size of the file above which only its end is kept.
FILE_BYTES = 16 * 1024 * 1024


class Capture:
    """An unnamed file for the output of one process, cleared for each job."""

    def __init__(self) -> None:
        # A pipe would block a worker with a slow supervisor, and lose the output of a dead one.
        self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
        self._earlier = b""
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        # O_APPEND: writers continue at the end of the file after it is truncated.
        fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_APPEND)

    def fileno(self) -> int:
        """Return the descriptor for a process's stdout and stderr."""
        return self._file.fileno()

    def clear(self) -> None:
        """Clear the file."""
        self._earlier = b""
        os.ftruncate(self.fileno(), 0)

    def trim(self) -> None:
        """Keep only the end of the file, if it is large."""
        if os.fstat(self.fileno()).st_size > FILE_BYTES:
            self._earlier = self._tail()
            os.ftruncate(self.fileno(), 0)

    def text(self) -> str:
        """Return the end of the output since ``clear``; invalid UTF-8 is replaced."""
        return self._tail().decode(errors="replace")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _tail(self) -> bytes:
        size = os.fstat(self.fileno()).st_size
        end = os.pread(self.fileno(), KEPT_BYTES, max(0, size - KEPT_BYTES))
        return (self._earlier + end)[-KEPT_BYTES:]


# The search path is set before anything is imported by it, so that the worker finds this package
# and the entry wherever this process does.
_BOOTSTRAP = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a.pop('path'); "
    "from pytest_pallas.workers.child import main; main(**a)"
)

#: Time limit in seconds for a killed process to disappear.
_LAST_SECONDS = 10.0


class Worker:
    """A process in a session and process group of its own, with pipes to and from it.

    One thread must start, use and end it: on Linux the process is killed when the thread that
    started it ends, unless it was forked.

    Attributes:
      setup: its setup.
      output: its stdout and stderr.
      requests: descriptor of the pipe to it, non-blocking.
      replies: descriptor of the pipe from it, non-blocking.
      death: descriptor that becomes readable when it dies, or None on systems without one (Linux
        before 5.3, macOS).
      ready: whether it imported its entry and waits for jobs.
      fresh_bytes: resident memory when it was ready for its first job.
    """

    def __init__(self, setup: WorkerSetup, stopping: threading.Event | None = None) -> None:
        """Start the process; does not wait until it is ready.

        Args:
          setup: its setup.
          stopping: set if it is not wanted any more.

        Raises:
          OSError: the system cannot start it.
        """
        self.setup = setup
        self.ready = False
        self.fresh_bytes = 0
        self._ended = False
        with contextlib.ExitStack() as child_ends, contextlib.ExitStack() as on_error:
            self.output = Capture()
            on_error.callback(self.output.close)
            childs_requests, self.requests = os.pipe()
            child_ends.callback(os.close, childs_requests)
            on_error.callback(os.close, self.requests)
            self.replies, childs_replies = os.pipe()
            child_ends.callback(os.close, childs_replies)
            on_error.callback(os.close, self.replies)
            self._process = _launch(setup, childs_requests, childs_replies, self.output, stopping)
            on_error.pop_all()
        os.set_blocking(self.requests, False)
        os.set_blocking(self.replies, False)
        self.death = _death_of(self.pid)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def dies_within(self, seconds: float) -> bool:
        """Return whether it is dead, or dies within some seconds."""
        poll = select.poll()
        if self.death is not None:
            poll.register(self.death, select.POLLIN)
        else:  # The end of the pipe shows it; poll always reports that.
            poll.register(self.replies, 0)
        return bool(poll.poll(math.ceil(seconds * 1000)))

    def end(self) -> int | None:
        """Kill the process and its group, and release all resources; a second call does nothing.

        Returns:
          The return code of ``subprocess.Popen`` if it died by itself; None if it had to be killed.
        """
        if self._ended:
            return None
        self._ended = True
        by_itself = self.dies_within(0)
        if by_itself and self.death is None:
            # It may be exiting, and killing it would change its return code.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(1)
        # Before anything waits for it: until then its process id is not reused.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.dies_within(_LAST_SECONDS)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_LAST_SECONDS)
        if isinstance(self._process, Fork):
            self._process.release()
        for descriptor in (self.requests, self.replies, self.death):
            if descriptor is not None:
                os.close(descriptor)
        self.output.close()
        return self._process.returncode if by_itself else None


def _launch(
    setup: WorkerSetup,
    requests: int,
    replies: int,
    output: Capture,
    stopping: threading.Event | None,
) -> subprocess.Popen[bytes] | Fork:
    path = _search_path()
    environ = {**os.environ, SUPERVISOR: str(os.getpid()), **dict(setup.environment)}
    arguments = {"entry": setup.entry, "talks": setup.talks}
    if setup.preloads:
        files = (requests, replies, output.fileno())
        forked = fork(
            setup.preloads, arguments, path=path, environ=environ, files=files, stopping=stopping
        )
        if forked is not None:
            return forked
    own = {"path": path, "requests": requests, "replies": replies, "parent": os.getpid()}
    return subprocess.Popen(
        # -u: no output is lost in a crash. -P: no folder is put before the path.
        [sys.executable, "-u", "-P", "-c", _BOOTSTRAP, json.dumps({**arguments, **own})],
        stdin=subprocess.DEVNULL,
        stdout=output.fileno(),
        stderr=output.fileno(),
        pass_fds=(requests, replies),
        start_new_session=True,
        env=environ,
    )


def _search_path() -> list[str]:
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        return [*sys.path]
    return [os.path.join(folder, entry) for entry in sys.path]


def _death_of(pid: int) -> int | None:
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return os.pidfd_open(pid)
    return None


# The memory of a worker.

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pid: int) -> int:
    """Return the resident memory of process ``pid`` and all its descendants, in bytes.

    Shared pages count for each process. A process that ended, or cannot be read (there is no
    ``/proc`` outside Linux), counts as 0.
    """
    return sum(_resident_pages(process) for process in family_of(pid)) * _PAGE_BYTES


def _resident_pages(pid: int) -> int:
    # The second field of statm is VmRSS of status in pages, and quicker to read: proc_pid_statm(5).
    try:
        return int(Path(f"/proc/{pid}/statm").read_bytes().split()[1])
    except (OSError, IndexError):
        return 0


def family_of(pid: int) -> Iterator[int]:
    """Yield ``pid`` and its descendants, which are listed under the thread that started them."""
    waiting = [pid]
    while waiting:
        process = waiting.pop()
        yield process
        threads: list[str] = []
        with contextlib.suppress(OSError):
            threads = os.listdir(f"/proc/{process}/task")
        for thread in threads:
            with contextlib.suppress(OSError):
                children = Path(f"/proc/{process}/task/{thread}/children").read_bytes()
                waiting.extend(int(child) for child in children.split())


# Send a message, and wait for the answer.

#: Seconds between two checks of the memory and of the size of the output.
_LOOK_SECONDS = 0.1

#: A pipe on Linux holds this much: pipe(7).
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class Exchange:
    """The end of an exchange with a worker.

    Attributes:
      end: ``"answered"``; ``"gone"`` if the worker died or closed its pipe; ``"late"``; ``"large"``
        if it used more memory than its setup allows; ``"stopped"`` if the pool was closed.
      kind: the kind of the answer.
      body: the body of the answer.
      resident: bytes of memory when it exceeded its limit.
      note: the last note.
      silence: seconds since the last note, or since the start.
    """

    end: Literal["answered", "gone", "late", "large", "stopped"]
    kind: bytes = b""
    body: bytes = b""
    resident: int = 0
    note: bytes = b""
    silence: float = 0.0


def exchange(
    worker: Worker,
    *message: bytes,
    deadline: float,
    stopping: threading.Event,
    patience: float | None = None,
) -> Exchange:
    """Send all parts of ``message``, and wait for one answer.

    Sending does not block either: a worker that hangs may not read.

    Args:
      worker: a worker that is free.
      message: the parts to send, which may be empty.
      deadline: when to give up, on the clock of ``time.monotonic``.
      stopping: set when the pool is being closed.
      patience: seconds from each note to a new deadline; None: notes do not change the deadline.
    """
    begun = last = time.monotonic()
    note = b""

    def ended(end: Exchange) -> Exchange:
        return dataclasses.replace(end, note=note, silence=time.monotonic() - last)

    unsent = [memoryview(part) for part in message if part]
    received = bytearray()
    poll = select.poll()
    poll.register(worker.replies, select.POLLIN)
    if worker.death is not None:
        poll.register(worker.death, select.POLLIN)
    if unsent:
        poll.register(worker.requests, select.POLLOUT)
    next_look = begun + _LOOK_SECONDS
    while True:
        now = time.monotonic()
        if now >= deadline:
            # The memory limit has precedence over the time limit.
            return ended(_look(worker, stopping) or Exchange(end="late"))
        if now >= next_look:
            next_look = now + _LOOK_SECONDS
            if intervention := _look(worker, stopping):
                return ended(intervention)
        # Rounded up, or the last millisecond would be a busy loop.
        milliseconds = math.ceil((min(next_look, deadline) - now) * 1000)
        ready = {descriptor for descriptor, _ in poll.poll(milliseconds)}
        if worker.requests in ready:
            _send(worker.requests, unsent)
            if not unsent:
                poll.unregister(worker.requests)
        if worker.replies in ready or worker.death in ready:
            dead = worker.death in ready
            over = _receive(worker.replies, received, all_of_it=dead) or dead
            while answer := parse(received):
                kind, body = answer
                if kind != NOTE:
                    return ended(Exchange(end="answered", kind=kind, body=body))
                note, last = body, time.monotonic()
                if patience is not None:
                    deadline = last + patience
            if over:
                return ended(Exchange(end="gone"))


def _look(worker: Worker, stopping: threading.Event) -> Exchange | None:
    if stopping.is_set():
        return Exchange(end="stopped")
    worker.output.trim()
    limit = worker.setup.memory_bytes
    if limit is not None and (resident := resident_bytes(worker.pid)) > limit:
        return Exchange(end="large", resident=resident)
    return None


def _send(descriptor: int, unsent: list[memoryview]) -> None:
    try:
        while unsent:
            sent = os.write(descriptor, unsent[0][:_CHUNK_BYTES])
            unsent[0] = unsent[0][sent:]
            if not unsent[0]:
                del unsent[0]
    except BlockingIOError:
        pass
    except BrokenPipeError:
        # It closed its end. The pipe of the answers shows that it is gone.
        unsent.clear()


def _receive(descriptor: int, received: bytearray, *, all_of_it: bool) -> bool:
    """Read available bytes into ``received``; returns whether the stream ended."""
    with contextlib.suppress(BlockingIOError):
        while chunk := os.read(descriptor, _CHUNK_BYTES):
            received += chunk
            if not all_of_it:
                return False
        return True
    return False
