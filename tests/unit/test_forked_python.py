"""Forks are like new processes, as far as the commands of tests can tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from forked_python import run_python

LOOK = """
import os, sys
print(sys.argv, sys.path[:2], os.getcwd(), os.environ.get("SEEN"), sys.stdin.read(), __name__)
"""


@pytest.mark.parametrize("words", [("-c", LOOK, "a"), ("look.py", "a"), ("-m", "look", "a")])
def test_what_a_command_sees_of_its_process(tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "look.py").write_text(LOOK)
    (tmp_path / "more").mkdir()
    environment = {**os.environ, "SEEN": "seen", "PYTHONPATH": str(tmp_path / "more")}
    new = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    forked = run_python(*words, cwd=tmp_path, env=environment)
    seen = new.stdout.splitlines()
    assert (forked.stdout.splitlines()[0], forked.returncode) == (
        seen[0],
        new.returncode == 0 and 0,
    )


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("pass", 0, ""),
        ("raise SystemExit(3)", 3, ""),
        ("raise SystemExit('words')", 1, "words\n"),
        ("1 / 0", 1, "ZeroDivisionError"),
        ("import os; os.abort()", -6, ""),
        ("import atexit, sys; atexit.register(lambda: sys.stderr.write('end'))", 0, "end"),
    ],
)
def test_how_a_command_ends(code: str, status: int, error: str) -> None:
    done = run_python("-c", code)
    assert done.returncode == status
    assert error in done.stderr


def test_a_fork_leaves_nothing_to_the_next() -> None:
    code = "import os, sys; os.environ['LEFT'] = sys.left = '1'"
    assert run_python("-c", code).returncode == 0
    code = "import os, sys; sys.exit('LEFT' in os.environ or hasattr(sys, 'left'))"
    assert run_python("-c", code).returncode == 0


def test_variables_that_are_read_at_import_hold() -> None:
    code = "import jax; print(jax.config.jax_enable_x64)"
    done = run_python("-c", code, env={**os.environ, "JAX_ENABLE_X64": "True"})
    assert done.stdout == "True\n"
