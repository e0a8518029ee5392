"""Runs the scripts of failures, and compares what they say with what the failing tests said."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pallas_test_support.forked_python import run_python
from pallas_test_support.forked_scripts import Ended


def run_scripts(
    scripts: Sequence[Path], environment: Mapping[str, str] | None = None
) -> list[Ended]:
    """Run scripts, each in a process of its own, without the settings of this one."""
    env = {**_without_settings(), **(environment or {})}
    done = [run_python(script, cwd=script.parent, env=env, merged=True) for script in scripts]
    return [Ended(each.returncode, each.stdout) for each in done]


def run_script(script: Path) -> Ended:
    """Run a script in a new interpreter, which has imported nothing."""
    done = subprocess.run(
        [sys.executable, script],
        env=_without_settings(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return Ended(done.returncode, done.stdout)


def _without_settings() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_", "PYTEST"))}


def message_of(record: Mapping[str, Any]) -> str:
    """The message of a failure without what a script need not know: what was drawn, and larger."""
    message = re.sub(r"(?m)^  larger .*\n(?:   .*\n?)*?(?=^ {0,2}\S|\Z)", "", record["message"])
    return "\n".join(line for line in message.splitlines() if not line.startswith("  drawn"))


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
