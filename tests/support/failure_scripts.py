"""Runs the scripts of failures, and compares what they say with what the failing tests said."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Runs scripts in a fork each of one process: importing jax takes longer than all that comes after.
DRIVER = """
import os, runpy, sys, warnings

import jax, jax.experimental.pallas.tpu, numpy, pytest_pallas.standalone
warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)  # there are no threads yet
for path in sys.argv[1:]:
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


def run_scripts(
    scripts: Sequence[Path], environment: Mapping[str, str] | None = None
) -> list[Ended]:
    """Run scripts, each in a process of its own, without the settings of this one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "PYTEST"))}
    driven = subprocess.run(
        [sys.executable, "-c", DRIVER, *map(str, scripts)],
        env={**kept, **(environment or {})},
        cwd=scripts[0].parent,
        capture_output=True,
        text=True,
        timeout=60 + 60 * len(scripts),
    )
    statuses = driven.stdout.split()
    assert len(statuses) == len(scripts), driven.stdout + driven.stderr
    return [
        Ended(int(status), Path(f"{path}.output").read_text())
        for status, path in zip(statuses, scripts, strict=True)
    ]


def message_of(record: Mapping[str, Any]) -> str:
    """The message of a failure without what was drawn, which a script need not know."""
    lines = record["message"].splitlines()
    return "\n".join(line for line in lines if not line.startswith("  drawn"))


def repeat(records: Sequence[Mapping[str, Any]], environment: Mapping[str, str]) -> None:
    """The scripts of failures fail with the same message; with the environment they pass."""
    scripts = [Path(record["script"]) for record in records]
    for ended, record in zip(run_scripts(scripts), records, strict=True):
        assert ended.status == 1, ended.output
        assert message_of(record) in ended.output, f"{record['message']}\n{ended.output}"
    if environment:
        for ended in run_scripts(scripts, environment):
            assert ended.status == 0, ended.output
            assert ended.output.endswith("no failure\n")
