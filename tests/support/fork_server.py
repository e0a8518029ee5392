"""Runs pytest in forks of a process that has imported JAX: importing takes longer than most runs.

A server imports packages of others only, none of this project, and has no threads. Each run is a
fork of it with the arguments, the folder and the variables that a new process would have. Variables
that are read while something is imported are the server's own: for other ones there is another
server.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

#: What a server imports.
MODULES = (
    *("jax", "jax.experimental.pallas.tpu", "jax.experimental.pallas.triton"),
    *("jax.experimental.pallas.mosaic_gpu", "numpy", "hypothesis.strategies"),
    *("hypothesis.internal.conjecture.engine", "pytest", "rich.console", "rich.table"),
)

#: Variables that JAX, Python and others read while they are imported begin with these.
_AT_IMPORT = ("CUDA", "HYPOTHESIS", "JAX_", "LD_", "LIBTPU", "MKL_", "NVIDIA", "OMP_", "OPENBLAS")
_AT_IMPORT += ("PYTHON", "TF_", "TPU_", "XLA_")

_SERVER = """
import gc, json, os, runpy, sys

for name in sys.argv[1:]:
    __import__(name)
# Otherwise pytest warns that it cannot rewrite the assertions of a plugin's package.
for name in ("hypothesis", "_hypothesis_globals"):
    sys.modules[name].__doc__ = "PYTEST_DONT_REWRITE"
from hypothesis.configuration import set_hypothesis_home_dir
tasks = "/proc/self/task"
assert not os.path.isdir(tasks) or len(os.listdir(tasks)) == 1, "a fork would lack other threads"
requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
path = sys.path[1:]
gc.collect()
gc.freeze()  # or the collector of each fork looks through all, and copies it
for line in requests:
    request = json.loads(line)
    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        print(status, file=replies, flush=True)
        continue
    for stream, file in enumerate((os.devnull, *request["outputs"])):
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC if stream else os.O_RDONLY
        os.dup2(os.open(file, flags | os.O_APPEND), stream)
    requests.close()
    replies.close()
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    if "HYPOTHESIS_STORAGE_DIRECTORY" not in os.environ:  # hypothesis has asked for the folder
        set_hypothesis_home_dir(os.path.join(request["folder"], ".hypothesis"))
    sys.path[:] = [request["folder"], *request["path"], *path]
    sys.argv[1:] = request["arguments"]
    runpy.run_module("pytest", run_name="__main__", alter_sys=True)
    sys.exit()
"""


def run_pytest(
    arguments: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    outputs: tuple[Path, Path],
) -> tuple[int, float]:
    """Run ``python -m pytest`` in a fork.

    Args:
      arguments: of pytest.
      folder: its working directory.
      environment: its variables.
      outputs: files for its stdout and stderr.

    Returns:
      Its exit status, and the seconds it took.
    """
    kept = {**environment}
    path = kept.pop("PYTHONPATH", "")
    at_import = {name: text for name, text in kept.items() if name.startswith(_AT_IMPORT)}
    server = _server(frozenset(at_import.items()))
    request = {
        "arguments": [*arguments],
        "folder": str(folder),
        "environment": {**environment},
        "path": [entry for entry in path.split(os.pathsep) if entry],
        "outputs": [str(output) for output in outputs],
    }
    assert server.stdin is not None
    assert server.stdout is not None
    began = time.monotonic()
    try:
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        reply = server.stdout.readline()
        assert reply, f"the server ended with status {server.wait()}"
    except BaseException:  # a later run must not get the reply of this one
        server.kill()
        _server.cache_clear()
        raise
    return int(reply), time.monotonic() - began


@functools.cache
def _server(at_import: frozenset[tuple[str, str]]) -> subprocess.Popen[str]:
    others = {k: v for k, v in os.environ.items() if not k.startswith(_AT_IMPORT)}
    server = subprocess.Popen(
        [sys.executable, "-c", _SERVER, *MODULES],
        env={**others, **dict(at_import), "OPENBLAS_NUM_THREADS": "1"},  # it starts none
        cwd="/",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    """Let a server end, which it does when nobody can ask it any more."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        server.communicate(timeout=10)
