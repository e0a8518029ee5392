"""Runs ``python ...`` in forks of one process, which has imported what most commands import.

Importing JAX, hypothesis and the plugin takes two seconds, and most of what tests start in a
process of its own takes less. What a test says of imports, or of how Python itself starts, needs a
process that is new: ``subprocess``.
"""

from __future__ import annotations

import atexit
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

#: Variables that are read while modules are imported: where they differ, so does the process.
_READ_AT_IMPORT = ("JAX_", "XLA_", "PYTHON", "TF_", "CUDA_", "HYPOTHESIS_")

#: Each fork reads it.
_PATH = "PYTHONPATH"

SERVER = """
import gc, json, os, runpy, sys, warnings

before, filters = [*sys.path], [*warnings.filters]
sys.path.append(sys.argv[1])
from _pytest.config import _prepareconfig
config = _prepareconfig(["--noconftest", "-c", os.devnull])
from imported import import_modules
import_modules()
config._ensure_unconfigure()
if sys.argv[2]:
    from compiled_programs import keep_programs
    from pathlib import Path
    keep_programs(Path(sys.argv[2]))
sys.path[:] = before
gc.collect()
gc.freeze()  # what no fork needs to look through
warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # there are no threads yet
for line in sys.stdin:
    arguments, folder, environment, output, error = json.loads(line)
    pid = os.fork()
    if pid:
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
        continue
    for number, path in enumerate((os.devnull, output, error)):
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    warnings.filters[:] = filters
    sys.path[1:1] = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    first, *rest = arguments
    if first == "-m":
        sys.argv, sys.path[0] = rest, os.getcwd()
        sys.modules.pop(rest[0] + ".__main__", None)  # which pytest has rewritten
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    elif first == "-c":
        sys.argv, sys.path[0] = ["-c", *rest[1:]], ""
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    else:
        sys.argv, sys.path[0] = arguments, os.path.dirname(os.path.abspath(first))
        runpy.run_path(first, run_name="__main__")
    break
"""


def run_python(
    *arguments: str | Path, cwd: str | Path | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """``python`` with arguments: ``-m module ...``, ``-c code ...`` or ``script ...``.

    Args:
      arguments: of the command.
      cwd: its working directory.
      env: its variables; those of this process, unless they are given.

    Returns:
      What ``subprocess.run(..., capture_output=True, text=True)`` returns.
    """
    environment = dict(os.environ if env is None else env)
    read = {name: value for name, value in environment.items() if _is_read_at_import(name)}
    words = [str(argument) for argument in arguments]
    server = _server(tuple(sorted(read.items())))
    files = [_outputs() / f"{next(_numbers)}" for _ in range(2)]
    request = [words, str(cwd or Path.cwd()), environment, *map(str, files)]
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    status = server.stdout.readline()
    assert status, "the process that forks has ended"
    output, error = (file.read_text() for file in files)
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
def _server(read: tuple[tuple[str, str], ...]) -> subprocess.Popen[str]:
    others = {k: v for k, v in os.environ.items() if not _is_read_at_import(k) and k != _PATH}
    command = [sys.executable, "-c", SERVER, str(Path(__file__).parent)]
    server = subprocess.Popen(
        [*command, jax.config.jax_compilation_cache_dir or ""],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**others, **dict(read)},
    )

    def end() -> None:
        assert server.stdin is not None
        server.stdin.close()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()

    _at_end(end)
    return server
