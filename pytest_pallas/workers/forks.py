"""Start workers as forks of a process that has imported what they need.

To import JAX, hypothesis, pytest and this package takes seconds of a core, and a fork takes
milliseconds. The process that forks runs nothing of a test, starts no backend of JAX, and is the
parent of its forks. It serves the process that has started it, and all that know its folder:
the workers of a fleet on one machine import everything once.

A request is one message with descriptors: of the worker's three files, and of a pipe for its fate.
Into that pipe, the process that forks writes the worker's id, and how it ended. Once nobody reads
the pipe any more, it kills the worker.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import importlib
import json
import os
import select
import signal
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

#: Number of environments for which a process keeps one that forks.
SERVERS = 3

#: The variable with the folder in which processes find those that fork. Only their user may use it.
FOLDER = "PYTEST_PALLAS_FORKS"

#: Seconds that a process in such a folder stays without anybody who may ask it, and between looks
#: whether the folder is still there.
LINGER, _LOOK_FOR_FOLDER = 300.0, 1.0

#: Variables with these beginnings decide nothing while JAX, numpy, hypothesis, pytest and this
#: package are imported. Where another one differs, another process forks.
_READ_LATER = (
    *("PYTEST_", "DASK_", "__DASK_", "HOME", "USERPROFILE", "PWD", "OLDPWD", "TMPDIR", "PY_COLORS"),
    "PYTHONPATH",  # each request has the search path
    # JAX sets these when it is imported, which the process that asks may do meanwhile.
    *("MOSAIC_GPU_", "TPU_LIBRARY_PATH", "TPU_SKIP_MDS_QUERY", "TF_CPP_MIN_LOG_LEVEL"),
)

#: Size of a request, in bytes; a larger one needs a new process.
_MOST = 1 << 17

#: An answer: the id of the worker, and later its return code as ``subprocess`` has it.
_NUMBER = struct.Struct(">i")

#: Time limit in seconds for the process that forks to import everything and to fork.
_FORK_SECONDS = 60.0

#: Seconds between looks whether the start of a worker is still wanted.
_LOOK_SECONDS = 0.1

# As in ``process``: the search path is set before anything is imported by it.
_BOOTSTRAP = (
    "import json, sys; a = json.loads(sys.argv[1]); sys.path[:] = a.pop('path'); "
    "from pytest_pallas.workers.forks import serve; serve(**a)"
)


class Fork:
    """A worker that was forked, with what is used of ``subprocess.Popen``.

    Attributes:
      pid: its process id.
      returncode: how it ended, as in ``subprocess``; None before ``wait``, or if nobody knows.
    """

    def __init__(self, pid: int, fate: int) -> None:
        """Keep the id of a worker, and the descriptor that gives its return code."""
        self.pid = pid
        self.returncode: int | None = None
        self._fate: int | None = fate

    def wait(self, timeout: float) -> int | None:
        """Wait for its end.

        Raises:
          subprocess.TimeoutExpired: it has not ended within so many seconds.
        """
        if self._fate is not None:
            code = _number(self._fate, timeout)
            if code is None:
                raise subprocess.TimeoutExpired("fork", timeout)
            self.returncode = code if code != _UNKNOWN else None
            self.release()
        return self.returncode

    def release(self) -> None:
        """Let it be killed, if it lives, and forgotten. A second call does nothing."""
        if self._fate is not None:
            os.close(self._fate)
            self._fate = None


#: In place of a return code: the process that forks has ended without one.
_UNKNOWN = 1 << 30


def _number(descriptor: int, seconds: float) -> int | None:
    """Read the next number of a pipe; None if none comes in time, ``_UNKNOWN`` at its end."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    if not poll.poll(seconds * 1000):
        return None
    data = os.read(descriptor, _NUMBER.size)
    return _NUMBER.unpack(data)[0] if len(data) == _NUMBER.size else _UNKNOWN


@contextlib.contextmanager
def shared() -> Generator[None]:
    """Let all processes that this one starts share those that fork, so that they import once."""
    if FOLDER in os.environ:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="pallas-forks-") as folder:
        os.environ[FOLDER] = folder
        try:
            yield
        finally:
            os.environ.pop(FOLDER, None)


def _is_private(folder: str) -> bool:
    """Return whether only this user can put a socket there, which executes what it is sent."""
    try:
        status = os.stat(folder)
    except OSError:
        return False
    return (
        stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o077
    )


class _ForkServer:
    """A process that forks, from the side of those that ask it."""

    def __init__(
        self, key: Any, preloads: Sequence[str], path: Sequence[str], environ: Mapping[str, str]
    ) -> None:
        """Start it, or find the one in the folder.

        Raises:
          OSError: neither is possible.
        """
        self._process: subprocess.Popen[bytes] | None = None
        arguments = {"preloads": preloads, "path": path}
        folder = os.environ.get(FOLDER, "")
        if _is_private(folder):
            self._socket = self._connected(os.path.join(folder, _digest(key)), arguments, environ)
        else:
            self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            with theirs:
                self._start(arguments, theirs, environ)
        self._owner = os.getpid()

    def _start(
        self, arguments: Mapping[str, Any], theirs: socket.socket, environ: Mapping[str, str]
    ) -> None:
        text = json.dumps({**arguments, "descriptor": theirs.fileno()})
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-P", "-c", _BOOTSTRAP, text],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                env=environ,
            )
        except BaseException:
            self._socket.close()
            raise

    def _connected(
        self, path: str, arguments: Mapping[str, Any], environ: Mapping[str, str]
    ) -> socket.socket:
        """Connect to the process in a folder, which is started if there is none."""
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            try:
                self._socket.connect(path)
            except (FileNotFoundError, ConnectionRefusedError) as error:
                if isinstance(error, ConnectionRefusedError):  # of one that was killed
                    os.unlink(path)
                with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as theirs:
                    theirs.bind(path)
                    theirs.listen()
                    self._start({**arguments, "socket_path": path}, theirs, environ)
                self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise
        return self._socket

    def fork(
        self, request: bytes, descriptors: Sequence[int], stopping: threading.Event | None
    ) -> Fork | None:
        """Fork a worker; returns None if that is not possible."""
        fate, theirs = os.pipe()
        try:
            try:
                socket.send_fds(self._socket, [request], [*descriptors, theirs])
            finally:
                os.close(theirs)
            left = _FORK_SECONDS
            while (pid := _number(fate, _LOOK_SECONDS)) is None and left > 0:
                left -= _LOOK_SECONDS
                if stopping is not None and stopping.is_set():
                    break
            if pid is not None and 0 < pid < _UNKNOWN:
                made = Fork(pid, fate)
                fate = -1
                return made
        except OSError:
            pass  # it has ended, or the request is too large
        finally:
            if fate >= 0:
                os.close(fate)
        return None

    def close(self) -> None:
        """Let it end with its last worker. In a fork of its parent, only this copy is closed."""
        self._socket.close()
        process = self._process
        if process is not None and os.getpid() == self._owner:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_SECONDS)
            process.returncode = process.returncode or 0  # Python warns otherwise


_LOCK = threading.Lock()
_SERVERS: OrderedDict[Any, _ForkServer] = OrderedDict()


def fork(
    preloads: Sequence[str],
    arguments: Mapping[str, Any],
    *,
    path: Sequence[str],
    environ: Mapping[str, str],
    files: Sequence[int],
    stopping: threading.Event | None = None,
) -> Fork | None:
    """Start ``child.main`` in a fork of a process with the same variables.

    Args:
      preloads: the modules that the process has imported before.
      arguments: of ``child.main``, without descriptors and ``parent``.
      path: the search path of the worker.
      environ: its variables.
      files: descriptors of its requests, its replies and its output.
      stopping: set if the worker is not wanted any more.

    Returns:
      The worker; None where the system has no such processes, or this one cannot be started: then
      the caller starts a new interpreter, whose error says what is wrong.
    """
    if sys.platform != "linux":
        return None
    try:
        os.close(os.pidfd_open(os.getpid()))
    except (AttributeError, OSError):  # Linux before 5.3
        return None
    key = (tuple(preloads), _read_before(environ))
    with contextlib.suppress(FileNotFoundError):
        body = {"arguments": arguments, "path": path, "environ": environ, "folder": os.getcwd()}
        request = json.dumps(body).encode()
        if len(request) > _MOST:
            return None
        for _ in range(3):  # one may be ending, and others may start one at the same time
            try:
                server = _server(key, preloads, path, environ)
            except OSError:
                continue
            if (made := server.fork(request, files, stopping)) is not None:
                return made
            if stopping is not None and stopping.is_set():
                return None
            _forget(key, server)
    return None


def _read_before(environ: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return the variables that may decide what an import does."""
    return frozenset(pair for pair in environ.items() if not pair[0].startswith(_READ_LATER))


def _digest(key: Any) -> str:
    preloads, variables = key
    parts = (sys.executable, __file__, preloads, sorted(variables))
    return hashlib.blake2b(json.dumps(parts).encode(), digest_size=12).hexdigest()


def _server(
    key: Any, preloads: Sequence[str], path: Sequence[str], environ: Mapping[str, str]
) -> _ForkServer:
    with _LOCK:
        server = _SERVERS.get(key)
        if server is None:
            server = _SERVERS[key] = _ForkServer(key, preloads, path, environ)
        _SERVERS.move_to_end(key)
        while len(_SERVERS) > SERVERS:
            _SERVERS.popitem(last=False)[1].close()
        return server


def _forget(key: Any, server: _ForkServer) -> None:
    with _LOCK:
        if _SERVERS.get(key) is server:
            del _SERVERS[key]
            server.close()


@atexit.register
def _close() -> None:
    while _SERVERS:
        _SERVERS.popitem()[1].close()


# In the process that forks.


def serve(preloads: Sequence[str], descriptor: int, socket_path: str = "") -> None:
    """Import, and fork workers until nobody can ask for one and none is left.

    In a fork this calls ``child.main`` and returns as that does.

    Args:
      preloads: the modules.
      descriptor: of the socket with requests; with ``socket_path``, of one that listens there.
      socket_path: the path of that socket; "" without it.
    """
    import gc

    before = dict(os.environ)
    for name in preloads:
        importlib.import_module(name)
    # Variables that an import sets are set in each new process, too.
    added = {name: value for name, value in os.environ.items() if before.get(name) != value}
    gc.collect()
    gc.freeze()  # or the collector of each fork looks through all of it, and copies it
    worker = _Forking(descriptor, socket_path).run()
    if worker is not None:
        worker(added)


class _Forking:
    """The loop of the process that forks."""

    def __init__(self, descriptor: int, socket_path: str) -> None:
        """Serve a socket, or those that connect to it."""
        made = socket.socket(fileno=descriptor)
        self.socket_path = socket_path
        self.listener = made if socket_path else None
        self.clients = {} if socket_path else {descriptor: made}
        self.poll = select.poll()
        self.poll.register(descriptor, select.POLLIN)
        self.fates: dict[int, int] = {}
        self.deaths: dict[int, int] = {}

    def run(self) -> Callable[[Mapping[str, str]], None] | None:
        """Serve until nobody can ask; returns what a fork does, in a fork, and None in the end."""
        alone = 0.0
        while (busy := self.clients or self.deaths or self.fates) or self.listener is not None:
            events = self.poll.poll(None if busy else _LOOK_FOR_FOLDER * 1000)
            alone = 0.0 if events or busy else alone + _LOOK_FOR_FOLDER
            if self.listener is not None and alone and self._is_forgotten(alone):
                self.listener.close()
                return None
            for descriptor, _ in events:
                if self.listener is not None and descriptor == self.listener.fileno():
                    with contextlib.suppress(ConnectionAbortedError):
                        client, _ = self.listener.accept()
                        self.clients[client.fileno()] = client
                        self.poll.register(client.fileno(), select.POLLIN)
                elif descriptor in self.clients:
                    if (worker := self._answer(descriptor)) is not None:
                        return worker
                elif descriptor in self.deaths:
                    self._died(descriptor)
                elif descriptor in self.fates:
                    self._released(descriptor)
        return None

    def _is_forgotten(self, alone: float) -> bool:
        """Return whether nobody will ask: the folder is gone, or was not used for long."""
        if alone >= LINGER:
            with contextlib.suppress(OSError):
                os.unlink(self.socket_path)
        return not os.path.exists(self.socket_path)

    def _answer(self, client: int) -> Callable[[Mapping[str, str]], None] | None:
        """Fork, and return what the fork does there."""
        try:
            request, descriptors, _, _ = socket.recv_fds(self.clients[client], _MOST, 8)
        except ConnectionResetError:
            request, descriptors = b"", []
        if not request:
            self.poll.unregister(client)
            self.clients.pop(client).close()
            return None
        *files, fate = descriptors
        parent = os.getpid()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # JAX, and Python of the threads of OpenBLAS
                pid = os.fork()
        except OSError:
            pid = -1
        if pid == 0:
            self._forget_others(fate)
            plain = json.loads(request)
            return lambda added: _become(plain, files, parent, added)
        for file in files:
            os.close(file)
        with contextlib.suppress(BrokenPipeError):
            os.write(fate, _NUMBER.pack(pid))
        if pid < 0:
            os.close(fate)
            return None
        death = os.pidfd_open(pid)
        self.deaths[death], self.fates[fate] = pid, pid
        self.poll.register(death, select.POLLIN)
        self.poll.register(fate, 0)  # only that nobody reads it any more
        return None

    def _forget_others(self, fate: int) -> None:
        """Close, in a fork, what belongs to the process that forks."""
        for own in (self.listener, *self.clients.values()):
            if own is not None:
                own.close()
        for descriptor in (fate, *self.fates, *self.deaths):
            os.close(descriptor)

    def _died(self, death: int) -> None:
        """Say how a worker ended. Its id stays taken until somebody has read that."""
        pid = self.deaths.pop(death)
        self.poll.unregister(death)
        os.close(death)
        status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        assert status is not None
        code = status.si_status if status.si_code == os.CLD_EXITED else -status.si_status
        fate = next((fate for fate, other in self.fates.items() if other == pid), None)
        if fate is None:
            os.waitpid(pid, 0)
            return
        with contextlib.suppress(BrokenPipeError):
            os.write(fate, _NUMBER.pack(code))

    def _released(self, fate: int) -> None:
        """Kill a worker that lives, because nobody reads its fate any more."""
        pid = self.fates.pop(fate)
        self.poll.unregister(fate)
        os.close(fate)
        if pid in self.deaths.values():
            for kill in (os.killpg, os.kill):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    kill(pid, signal.SIGKILL)
        else:
            os.waitpid(pid, 0)


def _become(
    request: Mapping[str, Any], files: Sequence[int], parent: int, added: Mapping[str, str]
) -> None:
    """Become the requested worker, in a fork."""
    from pytest_pallas.workers.child import main

    os.setsid()
    requests, replies, output = files
    for stream in (1, 2):
        os.dup2(output, stream)
    os.close(output)
    os.environ.clear()
    os.environ.update({**added, **request["environ"]})
    sys.path[:] = request["path"]
    sys.argv[:] = ["-c"]
    os.chdir(request["folder"])
    _forget_process()
    main(**request["arguments"], requests=requests, replies=replies, parent=parent)


def _forget_process() -> None:
    """Undo, in a fork, what imports have taken from the process and its folder."""
    importlib.invalidate_caches()
    tempfile.tempdir = None
    if (random := sys.modules.get("numpy.random")) is not None:
        random.seed()
    configuration = sys.modules.get("hypothesis.configuration")
    if configuration is not None and "HYPOTHESIS_STORAGE_DIRECTORY" not in os.environ:
        configuration.set_hypothesis_home_dir(os.path.join(os.getcwd(), ".hypothesis"))
