"""Forks are like new processes, as far as the commands of tests can tell."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from pallas_test_support.forked_python import ForkedProcess, run_python

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


@pytest.mark.parametrize(
    "variable",
    [("JAX_NUM_CPU_DEVICES", "3"), ("XLA_FLAGS", "--xla_force_host_platform_device_count=3")],
)
def test_variables_that_are_read_when_jax_starts_hold(variable: tuple[str, str]) -> None:
    code = "import jax; print(jax.default_backend(), jax.device_count())"
    name, value = variable
    unset = {k: v for k, v in os.environ.items() if not k.startswith(("JAX_", "XLA_FLAGS"))}
    done = run_python("-c", code, env={**unset, "JAX_PLATFORMS": "cpu", name: value})
    assert done.stdout == "cpu 3\n"


def test_errors_may_be_among_the_output() -> None:
    code = "import sys; print(1, flush=True); print(2, file=sys.stderr); print(3)"
    assert run_python("-c", code, merged=True).stdout == "1\n2\n3\n"


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="only Linux can wait for such a process")
def test_a_process_that_runs_on_is_written_to_and_ends() -> None:
    process = ForkedProcess("import sys; print(sys.stdin.readline().upper(), flush=True, end='')")
    with process.stdin, process.stdout:
        process.stdin.write(b"abc\n")
        process.stdin.flush()
        assert process.stdout.read() == b"ABC\n"
    process.wait()
    endless = ForkedProcess("import time; time.sleep(3600)")
    with endless.stdin, endless.stdout:
        endless.kill()
        endless.wait()
        assert endless.stdout.read() == b""
