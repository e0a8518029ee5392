"""The setup of a job's worker, and the result of the job."""

from __future__ import annotations

import contextlib
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
from collections.abc import Generator
from dataclasses import dataclass
from typing import Literal

from pallas_sim.findings import Text
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
      talks: whether the function takes a second argument, ``say(note: bytes)``, with which it
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

    def __post_init__(self) -> None:
        module, colon, function = self.entry.partition(":")
        if not (module and colon and function):
            raise ValueError(
                f"The entry of the worker {self.name!r} is {self.entry!r}: write it as "
                '"module:function".'
            )
        if self.memory_bytes is not None and self.memory_bytes <= 0:
            raise ValueError(
                f"The memory limit of the worker {self.name!r} is {self.memory_bytes} bytes: give "
                "a positive number, or None for no limit."
            )


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


# One worker process, from the parent's side: start it, capture its output, end it.


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
        """The descriptor for a process's stdout and stderr."""
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
        """The end of the output since ``clear``; invalid UTF-8 is replaced."""
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
        with contextlib.ExitStack() as on_error:
            self.output = Capture()
            on_error.callback(self.output.close)
            childs_requests, self.requests = os.pipe()
            on_error.callback(os.close, self.requests)
            with _closing(childs_requests):
                self.replies, childs_replies = os.pipe()
                on_error.callback(os.close, self.replies)
                with _closing(childs_replies):
                    pipes = childs_requests, childs_replies
                    self._process = _launch(setup, *pipes, self.output, stopping)
            on_error.pop_all()
        os.set_blocking(self.requests, False)
        os.set_blocking(self.replies, False)
        self.death = _death_of(self.pid)

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def dies_within(self, seconds: float) -> bool:
        """Whether it is dead, or dies within some seconds."""
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


@contextlib.contextmanager
def _closing(descriptor: int) -> Generator[None]:
    try:
        yield
    finally:
        os.close(descriptor)
