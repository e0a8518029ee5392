"""Runs ``python ...`` in forks of one process, which has imported what most commands import.

Importing JAX, hypothesis and the plugin takes two seconds, and most of what tests start in a
process of its own takes less. A fork has the arguments, the folder and the variables that a new
process would have. What a test says of imports, or of how Python itself starts, needs a process
that is new: ``subprocess``.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import jax

#: What is imported before the forks, of packages of others.
_MODULES = (
    *("jax", "jax.experimental.pallas.tpu", "jax.experimental.pallas.triton"),
    *("jax.experimental.pallas.mosaic_gpu", "numpy", "hypothesis.strategies"),
    *("hypothesis.internal.conjecture.engine", "pytest", "rich.console", "rich.table"),
)

#: Variables that are read while something is imported begin with these: where they differ, so does
#: the process. XLA reads its flags later, when a fork starts JAX.
_READ_AT_IMPORT = ("CUDA", "HYPOTHESIS", "JAX_", "LD_", "LIBTPU", "MKL_", "NVIDIA", "OMP_")
_READ_AT_IMPORT += ("OPENBLAS", "PYTHON", "TF_", "TPU_", "XLA_PYTHON")

#: Each fork reads them.
_READ_BY_FORKS = ("JAX_NUM_CPU_DEVICES", "JAX_PLATFORMS", "PYTHONPATH")

SERVER = """
import atexit, contextlib, gc, json, os, runpy, sys, threading, warnings

def run(first, *rest):
    if first == "-m":
        sys.argv, sys.path[:] = [*rest], [os.getcwd(), *more, *before]
        sys.modules.pop(rest[0] + ".__main__", None)  # which pytest has rewritten
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv, sys.path[:] = ["-c", *rest[1:]], ["", *more, *before]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = [first, *rest]
        sys.path[:] = [os.path.dirname(os.path.abspath(first)), *more, *before]
        runpy.run_path(first, run_name="__main__")

support, programs, ours, *modules = sys.argv[1:]
before, filters = sys.path[1:], [*warnings.filters]
sys.path.append(support)
if ours:
    from _pytest.config import _prepareconfig
    config = _prepareconfig(["--noconftest", "-c", os.devnull])
    from pallas_test_support.imported import import_modules
    import_modules()
    config._ensure_unconfigure()
else:
    for name in modules:
        __import__(name)
    # Otherwise pytest warns that it cannot rewrite the assertions of a plugin's package.
    for name in ("hypothesis", "_hypothesis_globals"):
        sys.modules[name].__doc__ = "PYTEST_DONT_REWRITE"
if programs:
    from pallas_test_support.compiled_programs import keep_programs
    from pathlib import Path
    keep_programs(Path(programs))
from hypothesis.configuration import set_hypothesis_home_dir
gc.collect()
gc.freeze()  # what no fork needs to look through
tasks = "/proc/self/task"
assert not os.path.isdir(tasks) or len(os.listdir(tasks)) == 1, "a fork would lack other threads"
requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
running = []  # processes that nobody has waited for
for line in requests:
    waits, arguments, folder, environment, *streams = json.loads(line)
    running = [child for child in running if os.waitpid(child, os.WNOHANG) == (0, 0)]
    child = os.fork()
    if child:
        if waits:
            reply = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        else:
            running.append(reply := child)
        print(reply, file=replies, flush=True)
        continue
    for stream, file in enumerate(streams):
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND if stream else os.O_RDONLY
        opened = os.open(file, flags)
        os.dup2(opened, stream)
        os.close(opened)
    requests.close()
    replies.close()
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    if "HYPOTHESIS_STORAGE_DIRECTORY" not in os.environ:  # hypothesis has asked for the folder
        set_hypothesis_home_dir(os.path.join(folder, ".hypothesis"))
    for name, read in (("JAX_NUM_CPU_DEVICES", int), ("JAX_PLATFORMS", str)):
        if name in environment:
            sys.modules["jax"].config.update(name.lower(), read(environment[name]))
    warnings.filters[:] = filters
    more = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    status = 0
    try:
        run(*arguments)
    except SystemExit as ended:
        status = ended.code
        if status is not None and not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    # What Python does at its end, but for deleting all modules: most commands take less time.
    threading._shutdown()
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit((status or 0) & 0xFF)
"""


def run_python(
    *arguments: str | Path,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    ours: bool = True,
    merged: bool = False,
) -> subprocess.CompletedProcess[str]:
    """``python`` with arguments: ``-m module ...``, ``-c code ...`` or ``script ...``.

    Args:
      arguments: of the command.
      cwd: its working directory.
      env: its variables; those of this process, unless they are given.
      ours: whether this project's modules are imported already, too.
      merged: whether its errors are among its output, as on a terminal.

    Returns:
      What ``subprocess.run(..., capture_output=True, text=True)`` returns.
    """
    files = [_outputs() / f"{next(_numbers)}" for _ in range(1 if merged else 2)]
    words = [str(argument) for argument in arguments]
    streams = [os.devnull, str(files[0]), str(files[-1])]
    status = _ask(words, cwd, env, streams, ours=ours, waits=True)
    texts = [file.read_text(encoding="utf-8") for file in files]
    for file in files:
        file.unlink()
    return subprocess.CompletedProcess([sys.executable, *words], status, *texts)


class ForkedProcess:
    """What runs ``python -c code`` in a fork and has been started, like ``subprocess.Popen``.

    Its working directory and its variables are those of this process; its errors go nowhere.
    """

    def __init__(self, code: str) -> None:
        pipes = [_outputs() / f"{next(_numbers)}" for _ in range(2)]
        for pipe in pipes:
            os.mkfifo(pipe)
        streams = [*map(str, pipes), os.devnull]
        self.pid = _ask(["-c", code], None, None, streams, ours=True, waits=False)
        self._ended = os.pidfd_open(self.pid)
        #: What it reads, and what it writes.
        self.stdin, self.stdout = pipes[0].open("wb"), pipes[1].open("rb")
        for pipe in pipes:
            pipe.unlink()

    def wait(self) -> None:
        """Wait for its end."""
        select.select([self._ended], [], [])

    def kill(self) -> None:
        """End it."""
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._ended, signal.SIGKILL)


def _ask(
    words: list[str],
    cwd: str | Path | None,
    env: Mapping[str, str] | None,
    streams: list[str],
    *,
    ours: bool,
    waits: bool,
) -> int:
    """Let a fork run a command: the status with which it ended, or its process id."""
    environment = dict(os.environ if env is None else env)
    read = {name: value for name, value in environment.items() if _is_read_at_import(name)}
    server = _server(tuple(sorted(read.items())), ours)
    request = [waits, words, str(cwd or Path.cwd()), environment, *streams]
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        reply = server.stdout.readline()
        assert reply, f"the process that forks ended with status {server.wait()}"
    except BaseException:  # a later run must not get the reply of this one
        server.kill()
        _server.cache_clear()
        raise
    return int(reply)


def _is_read_at_import(name: str) -> bool:
    return name.startswith(_READ_AT_IMPORT) and name not in _READ_BY_FORKS


_numbers = itertools.count()


@functools.cache
def _outputs() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="forked-"))
    _at_end(lambda: shutil.rmtree(folder, ignore_errors=True))
    return folder


def _at_end(action: Callable[[], object]) -> None:
    """Do something at the end of this process, and not at that of its own forks."""
    process = os.getpid()
    atexit.register(lambda: action() if os.getpid() == process else None)


@functools.cache
def _server(read: tuple[tuple[str, str], ...], ours: bool) -> subprocess.Popen[str]:
    others = {k: v for k, v in os.environ.items() if not _is_read_at_import(k)}
    for name in _READ_BY_FORKS:
        others.pop(name, None)
    programs = jax.config.jax_compilation_cache_dir or ""
    words = [str(Path(__file__).parents[1]), programs, "ours" * ours, *_MODULES]
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, *words],
        cwd=Path(__file__).parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**others, **dict(read), "OPENBLAS_NUM_THREADS": "1"},  # it starts none
    )
    _at_end(lambda: _end(server))
    return server


def _end(server: subprocess.Popen[str]) -> None:
    """Let a server end, which it does when nobody can ask it any more."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        server.communicate(timeout=10)
