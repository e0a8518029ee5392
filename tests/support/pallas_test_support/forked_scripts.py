"""Runs scripts in forks of one process: importing jax takes longer than the scripts do."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

DRIVER = """
import gc, os, runpy, sys, warnings

settings, modules, *paths = sys.argv[1:]
exec(settings)
for module in modules.split():
    __import__(module)
gc.collect()
gc.freeze()  # or the collector of each fork looks through all, and copies it
warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # there are no threads yet
for path in paths:
    child = os.fork()
    if not child:
        output = os.open(path + ".output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        warnings.resetwarnings()
        sys.argv, sys.path[0] = [path], os.path.dirname(path)
        runpy.run_path(path, run_name="__main__")
        sys.exit()
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@dataclass(frozen=True)
class Ended:
    """How a script ended: its exit status, and what it wrote."""

    status: int
    output: str


def run_forked(
    scripts: Sequence[Path],
    *,
    modules: str,
    environment: Mapping[str, str],
    folder: Path,
    settings: str = "",
    flags: Sequence[str] = (),
) -> list[Ended]:
    """Run scripts, each in a fork of a process that imported some modules before.

    Args:
      scripts: the files.
      modules: what the process imports, separated by blanks.
      environment: its variables.
      folder: its working directory.
      settings: statements that it runs before it imports anything.
      flags: of the interpreter.
    """
    driven = subprocess.run(
        [sys.executable, *flags, "-c", DRIVER, settings, modules, *map(str, scripts)],
        env=dict(environment),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60 + 60 * len(scripts),
    )
    assert driven.returncode == 0, driven.stdout
    statuses = driven.stdout.split()
    assert len(statuses) == len(scripts), driven.stdout
    outputs = [Path(f"{path}.output") for path in scripts]
    ended = [
        Ended(int(status), output.read_text())
        for status, output in zip(statuses, outputs, strict=True)
    ]
    for output in outputs:
        output.unlink(missing_ok=True)  # a script may be there twice
    return ended
