"""Save a failure to be repeated: as a script, and as one file for ``--pallas-replay``.

The file holds the call only, and another machine can run it; it needs the extra ``golden``. The
script runs without pytest. Both are beside the results, or in pytest's cache, and the next failure
of the same test overwrites them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection
from dataclasses import dataclass
from importlib import metadata, util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pallas_sim.errors import PallasError, first_line
from pytest_pallas._version import __version__
from pytest_pallas.backends.protocol import label
from pytest_pallas.checks.context import CheckContext
from pytest_pallas.checks.golden import written_call
from pytest_pallas.draw.meshes import fixed_sizes, place_of
from pytest_pallas.errors import facts_of, witness_of
from pytest_pallas.pytest_session import PytestSession, variant_of
from pytest_pallas.replay.goldens import Example, content_of, write_file
from pytest_pallas.replay.script import NoScriptError, script_of

#: The folder of the scripts, beside the results or in pytest's cache.
FOLDER = "pallas-failures"

#: The file for ``--pallas-replay`` is beside the script, with this suffix.
SUFFIX = ".safetensors"

_LINE = "# test: "


def example_of(session: PytestSession, item: pytest.Item, error: PallasError) -> bytes | None:
    """Return the content of the file, or None: the call cannot be written, or is too large.

    Also where safetensors is not installed: the extra ``golden`` has it.
    """
    if util.find_spec("safetensors") is None:
        return None
    failure = facts_of(error).failure
    written = written_call(failure.context.arguments)
    if written.opaque or sum(array.nbytes for array in written.arrays) > session.options.max_bytes:
        return None
    spec: Any = getattr(item, "spec", None)
    example = Example(
        test="" if spec is not None else item.nodeid.partition("[")[0],
        variant="" if spec is not None else variant_of(item),
        suite=session.options.suite if spec is not None else (),
        kernel=failure.name,
        check=failure.check,
        mesh=_mesh(item, failure.context),
        plain=written.plain,
        kinds=tuple((array.dtype.name, array.shape) for array in written.arrays),
        backend=label(failure.context.backend),
        witness=witness_of(error),
        message=first_line(error),
        versions={"jax": metadata.version("jax"), "pytest-pallas": __version__},
    )
    return content_of(example, written.arrays)


def test_of_script(text: str) -> str:
    """Return the test that a script repeats, as its text says; "" if it does not."""
    lines = (line for line in text.splitlines() if line.startswith(_LINE))
    return next(lines, "").removeprefix(_LINE)


@dataclass(frozen=True)
class Saved:
    """What became of the script of a failure.

    Attributes:
      path: where it is; None if there is none.
      note: why there is none, or why it does not run as it is; else "".
      example: the file for ``--pallas-replay``; None if there is none.
    """

    path: Path | None = None
    note: str = ""
    example: Path | None = None

    def __str__(self) -> str:
        """Describe it for the failure message."""
        if self.path is None:
            return f"none: {self.note}"
        return f"{self.path} ({self.note})" if self.note else str(self.path)


def save(
    session: PytestSession,
    item: pytest.Item,
    error: PallasError,
    replay: str,
    *,
    number: int = 1,
) -> Saved | None:
    """Write the script of a failure once, however often it is asked for.

    ``number`` is that of the failure among those of the test, whose scripts are files of their own.

    Never raises: a problem is reported in place of the path. Returns None for an error that no
    check raised, such as a wrong option.
    """
    if facts_of(error).failure is None:
        return None
    if facts_of(error).script is None:
        try:
            facts_of(error).script = _save(session, item, error, replay, number)
        except NoScriptError as reason:
            facts_of(error).script = Saved(note=str(reason))
        except Exception as problem:  # a report must not fail
            facts_of(error).script = Saved(note=f"not written: {type(problem).__name__}: {problem}")
    return facts_of(error).script


def folder_for(session: PytestSession) -> Path:
    """Return the folder of scripts, made if it is not there.

    Raises:
      NoScriptError: nothing says where.
      OSError: it cannot be made.
    """
    results = session.options.results
    if results is not None:
        folder = results.parent / FOLDER
        folder.mkdir(exist_ok=True)
        return folder
    if not hasattr(session.config, "cache"):  # -p no:cacheprovider
        raise NoScriptError("no folder for it without pytest's cache; give --pallas-results=FILE")
    return session.config.cache.mkdir(FOLDER)


def _save(
    session: PytestSession, item: pytest.Item, error: PallasError, replay: str, number: int
) -> Saved:
    folder, failure = folder_for(session), facts_of(error).failure
    test = item.nodeid if number == 1 else f"{item.nodeid}, failure {number}"
    name = f"{failure.name}-{failure.check}-{label(failure.context.backend)}"
    name += place_of(_mesh(item, failure.context))
    path = free_path(folder, script_name(name), test)
    example = path.with_suffix(SUFFIX)
    if not _write(example, example_of(session, item, error)):
        example = None
    if failure.result is not None and failure.result.goldens.get("different"):
        return Saved(None, "it would not have the golden to compare with", example)
    try:
        script = script_of(session, error, failure, test=test, replay=replay)
    except NoScriptError as reason:
        return Saved(None, str(reason), example)
    arrays = io.BytesIO()
    np.savez(arrays, **script.arrays)
    _write(path.with_suffix(".npz"), arrays.getvalue() if script.arrays else None)
    _write(path, script.text.encode())
    note = f"not complete, fill in {'; '.join(script.missing)}" if script.missing else ""
    return Saved(path, note, example)


def _mesh(item: pytest.Item, context: CheckContext) -> dict[str, int]:
    """Return the sizes of the mesh of an example: those that it drew, or of its item."""
    return dict(context.arguments.mesh) or fixed_sizes(getattr(item, "axes", {}))


def _write(path: Path, content: bytes | None) -> bool:
    """Write a file, or remove that of an earlier failure; returns whether it is there."""
    if content is None:
        path.unlink(missing_ok=True)
        return False
    write_file(path, content)
    return True


def script_name(text: str) -> str:
    """Make the name of a file, without its suffix, of a text."""
    return re.sub(r"[^\w.-]+", "-", text)[:200].strip("-.") or "failure"


def free_path(folder: Path, name: str, test: str, taken: Collection[Path] = ()) -> Path:
    """Return the first path with a name that no other test has taken, and that is not ``taken``."""
    number = 1
    while True:
        path = folder / (f"{name}.py" if number == 1 else f"{name}-{number}.py")
        if path in taken:
            number += 1
            continue
        if not path.exists():
            return path
        # What is there may be no script of ours.
        text = path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
        if f"{_LINE}{test}\n" in text:
            return path
        number += 1
