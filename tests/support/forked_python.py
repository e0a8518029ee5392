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
import shutil
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
#: the process.
_READ_AT_IMPORT = ("CUDA", "HYPOTHESIS", "JAX_", "LD_", "LIBTPU", "MKL_", "NVIDIA", "OMP_")
_READ_AT_IMPORT += ("OPENBLAS", "PYTHON", "TF_", "TPU_", "XLA_")

#: Each fork reads it.
_PATH = "PYTHONPATH"

SERVER = """
import gc, json, os, runpy, sys, warnings

support, programs, ours, *modules = sys.argv[1:]
before, filters = sys.path[1:], [*warnings.filters]
sys.path.append(support)
if ours:
    from _pytest.config import _prepareconfig
    config = _prepareconfig(["--noconftest", "-c", os.devnull])
    from imported import import_modules
    import_modules()
    config._ensure_unconfigure()
else:
    for name in modules:
        __import__(name)
    # Otherwise pytest warns that it cannot rewrite the assertions of a plugin's package.
    for name in ("hypothesis", "_hypothesis_globals"):
        sys.modules[name].__doc__ = "PYTEST_DONT_REWRITE"
if programs:
    from compiled_programs import keep_programs
    from pathlib import Path
    keep_programs(Path(programs))
from hypothesis.configuration import set_hypothesis_home_dir
gc.collect()
gc.freeze()  # what no fork needs to look through
tasks = "/proc/self/task"
assert not os.path.isdir(tasks) or len(os.listdir(tasks)) == 1, "a fork would lack other threads"
requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
for line in requests:
    arguments, folder, environment, *outputs = json.loads(line)
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, file=replies, flush=True)
        continue
    for stream, file in enumerate((os.devnull, *outputs)):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND if stream else os.O_RDONLY
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
    warnings.filters[:] = filters
    more = [entry for entry in environment.get("PYTHONPATH", "").split(os.pathsep) if entry]
    first, *rest = arguments
    if first == "-m":
        sys.argv, sys.path[:] = rest, [os.getcwd(), *more, *before]
        sys.modules.pop(rest[0] + ".__main__", None)  # which pytest has rewritten
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv, sys.path[:] = ["-c", *rest[1:]], ["", *more, *before]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv = arguments
        sys.path[:] = [os.path.dirname(os.path.abspath(first)), *more, *before]
        runpy.run_path(first, run_name="__main__")
    sys.exit()
"""


def run_python(
    *arguments: str | Path,
    cwd: str | Path | None = None,
    env: Mapping[str, str] | None = None,
    ours: bool = True,
) -> subprocess.CompletedProcess[str]:
    """``python`` with arguments: ``-m module ...``, ``-c code ...`` or ``script ...``.

    Args:
      arguments: of the command.
      cwd: its working directory.
      env: its variables; those of this process, unless they are given.
      ours: whether this project's modules are imported already, too.

    Returns:
      What ``subprocess.run(..., capture_output=True, text=True)`` returns.
    """
    environment = dict(os.environ if env is None else env)
    read = {name: value for name, value in environment.items() if _is_read_at_import(name)}
    words = [str(argument) for argument in arguments]
    server = _server(tuple(sorted(read.items())), ours)
    files = [_outputs() / f"{next(_numbers)}" for _ in range(2)]
    request = [words, str(cwd or Path.cwd()), environment, *map(str, files)]
    assert server.stdin is not None
    assert server.stdout is not None
    try:
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        status = server.stdout.readline()
        assert status, f"the process that forks ended with status {server.wait()}"
    except BaseException:  # a later run must not get the reply of this one
        server.kill()
        _server.cache_clear()
        raise
    output, error = (file.read_text(encoding="utf-8") for file in files)
    for file in files:
        file.unlink()
    return subprocess.CompletedProcess([sys.executable, *words], int(status), output, error)


def _is_read_at_import(name: str) -> bool:
    return name.startswith(_READ_AT_IMPORT) and name != _PATH


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
    others = {k: v for k, v in os.environ.items() if not _is_read_at_import(k) and k != _PATH}
    programs = jax.config.jax_compilation_cache_dir or ""
    words = [str(Path(__file__).parent), programs, "ours" * ours, *_MODULES]
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, *words],
        cwd=Path(__file__).parents[2],
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
