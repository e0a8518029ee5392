"""``pytest-pallas new MODULE:FUNCTION``: write a test module, and run it once."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from pallas_sim.errors import OptionError

_DESCRIPTION = """\
Write a test module for a function that calls a Pallas kernel, and run it once. The shapes and
dtypes of its arguments are guessed from its signature, annotations, docstring and source, and from
trial traces. Lines with FILL IN are for you."""


def add_parser(commands: Any) -> None:
    """Add the command ``new`` to the subparsers of an ``argparse.ArgumentParser``."""
    parser = commands.add_parser(
        "new",
        help="write a test module for a kernel, and run it once",
        description=_DESCRIPTION,
    )
    parser.add_argument(
        "target", metavar="MODULE:FUNCTION", help="such as mykernels.softmax:softmax"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE.py",
        help="the file to write (default: tests/test_FUNCTION_kernel.py)",
    )
    parser.add_argument("--force", action="store_true", help="overwrite the file if it exists")
    parser.add_argument("--no-run", action="store_true", help="write the file and do not run it")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    """Write the module and run it.

    Returns:
      The exit status of pytest; 0 with ``--no-run``.

    Raises:
      OptionError: there is no such function, or the file exists.
    """
    from pytest_pallas.scaffold.loading import load

    loaded = load(given.target)
    path: Path = given.output or Path("tests") / f"test_{loaded.short}_kernel.py"
    if path.exists() and not given.force:
        raise OptionError(f"{path} exists; give --force to overwrite it, or -o another file")
    if path.suffix != ".py":
        raise OptionError(f"-o {path}: a test module ends in .py, such as {path.stem}.py")

    from pytest_pallas.scaffold.guess import guess
    from pytest_pallas.scaffold.module import FILL_IN, gaps, text_of

    made = guess(loaded)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text_of(made), encoding="utf-8")
    print(f"wrote {path} (looked at {loaded.module}:{loaded.name} for {made.seconds:.1f} s)")  # noqa: T201
    for gap in gaps(made):
        print(f"  {FILL_IN} {gap}")  # noqa: T201
    command = ["pytest", str(path)]
    if loaded.unlisted:
        command = ["python", "-m", *command]
    if given.no_run:
        print(f"run it: {' '.join(command)}")  # noqa: T201
        return 0
    print(f"$ {' '.join(command)} --pallas-profile=quick", flush=True)  # noqa: T201
    return _pytest(path)


def _pytest(path: Path) -> int:
    """Run pytest on a file, with what can be imported here."""
    words = [sys.executable, "-m", "pytest", str(path), "--pallas-profile=quick", "-q"]
    folders = [entry for entry in sys.path if entry]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(folders)}
    return subprocess.run(words, env=environment, check=False).returncode
