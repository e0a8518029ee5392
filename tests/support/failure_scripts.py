"""Runs the scripts of failures, and compares what they say with what the failing tests said."""

from __future__ import annotations

import functools
import importlib
import os
import pkgutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from forked_scripts import Ended, run_forked

#: What every script imports.
MODULES = (
    *("jax", "numpy", "hypothesis.strategies", "pytest_pallas.standalone"),
    *("jax.experimental.pallas.tpu", "jax.experimental.pallas.triton"),
)

#: Packages whose modules a script imports when it needs them, most of it before its first check.
PACKAGES = (
    *("analysis", "backends", "bindings", "checking", "checks", "devices", "numerics", "oracle"),
    *("replay", "sampling", "sanitizers", "simulator", "strategies"),
)


def run_scripts(
    scripts: Sequence[Path], environment: Mapping[str, str] | None = None
) -> list[Ended]:
    """Run scripts, each in a process of its own, without the settings of this one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "PYTEST"))}
    return run_forked(
        scripts,
        modules=_modules(),
        environment={**kept, **(environment or {})},
        folder=scripts[0].parent,
    )


def run_script(script: Path) -> Ended:
    """Run a script in a new interpreter, which has imported nothing."""
    done = subprocess.run(
        [sys.executable, script],
        env={k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "PYTEST"))},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Ended(done.returncode, done.stdout)


@functools.cache
def _modules() -> str:
    return " ".join((*MODULES, *(name for package in PACKAGES for name in _names(package))))


def _names(package: str) -> Iterator[str]:
    module = importlib.import_module(f"pytest_pallas.{package}")
    yield module.__name__
    for found in pkgutil.walk_packages(getattr(module, "__path__", ()), f"{module.__name__}."):
        yield found.name


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
