"""Runs the scripts of failures, and compares what they say with what the failing tests said."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from forked_scripts import Ended, run_forked

#: What every script imports.
MODULES = "jax jax.experimental.pallas.tpu numpy pytest_pallas.standalone"


def run_scripts(
    scripts: Sequence[Path], environment: Mapping[str, str] | None = None
) -> list[Ended]:
    """Run scripts, each in a process of its own, without the settings of this one."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "PYTEST"))}
    return run_forked(
        scripts,
        modules=MODULES,
        environment={**kept, **(environment or {})},
        folder=scripts[0].parent,
    )


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
