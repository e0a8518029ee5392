"""One worker process, from the parent's side: start it, capture its output, end it."""

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

from pytest_pallas.workers.forks import Fork, fork
from pytest_pallas.workers.jobs import WorkerSetup

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
