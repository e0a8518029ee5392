"""The files that a session writes at its end: checked at its start, written atomically."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pallas_sim.errors import OptionError
from pytest_pallas.record import Record
from pytest_pallas.session import PytestSession

if TYPE_CHECKING:
    from pytest_pallas.report.runs.keeping import RunKeeper

#: User and password in a URL such as that of ``--pallas-database``.
_PASSWORD = re.compile(r"(?<=://)[^/@\s]*@")


def settle_files(session: PytestSession) -> None:
    """Make paths absolute, because a test may change the working directory.

    Raises:
      OptionError: a file cannot be written, or a package for it is not installed.
    """
    folder = session.config.invocation_params.dir
    for name in ("results", "html"):
        path: Path | None = getattr(session.options, name)
        if path is None:
            continue
        flag = f"--pallas-{name}={path}"
        if name == "html":
            from pytest_pallas.report.html.page import check_installed

            check_installed(flag)
        path = folder / path
        session.options = dataclasses.replace(session.options, **{name: path})
        check_writable(path, flag)


def write_files(
    session: PytestSession,
    records: Sequence[Record],
    sections: Sequence[tuple[str, str]],
    kept: RunKeeper | None = None,
) -> Iterator[tuple[bool, str]]:
    """Write the requested files; yields whether each was written, and a line about it.

    Args:
      session: the session.
      records: its records.
      sections: those of the project: names and texts.
      kept: the tests of the run; its journal is closed, and removed once the results are written.
    """
    for name in ("results", "html"):
        path: Path | None = getattr(session.options, name)
        if path is None:
            continue
        if name == "html":
            parts, what = _page(session, records, sections), "report of"
        else:
            from pytest_pallas.report.results import document

            tests = ((), (), {}) if kept is None else (kept.collected, kept.tests, kept.parts)
            parts, what = document(session, records, *tests), ""
        shown = _shown(session, path)
        count = "1 record" if len(records) == 1 else f"{len(records)} records"
        try:
            write(path, parts)
        except OSError as error:  # the folder existed at the start
            if name == "results" and kept is not None:
                kept.close(written=False)
            yield False, f"--pallas-{name}={shown}: cannot write the file: {error}"
        else:
            if name == "results" and kept is not None:
                kept.close(written=True)
            yield True, f"{what} {count} written to {shown}".strip()


def _page(
    session: PytestSession, records: Sequence[Record], sections: Sequence[tuple[str, str]]
) -> Iterable[str]:
    from datetime import UTC, datetime

    from pytest_pallas.report.html.page import page
    from pytest_pallas.report.results import environment, option_values

    written = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    words = ["pytest", *session.config.invocation_params.args]
    command = _PASSWORD.sub("***@", shlex.join(words))
    return page(
        records,
        environment={**environment(), "written": written},
        options={**option_values(session), "command": command},
        recorded=None if session.costs is None else session.costs.entries,
        families=list(session.families),
        sections=sections,
    )


def check_writable(path: Path, flag: str) -> None:
    """Check before any test runs that a file can be written.

    Raises:
      OptionError: it cannot be written.
    """
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
            pass
        if path.is_dir():
            raise IsADirectoryError(f"{path} is a folder")
    except OSError as error:
        raise OptionError(
            f"{flag}: cannot write the file: {error}. Give a file in a writable folder that exists."
        ) from None


def write(path: Path, parts: Iterable[str]) -> None:
    """Write a file atomically, so that no reader sees a part of it.

    Args:
      path: the file.
      parts: its text in parts, so that large files need not be in memory as a whole.
    """
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            for part in parts:
                file.write(part)
        Path(temporary).chmod(0o644)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _shown(session: PytestSession, path: Path) -> Path:
    """A path as the user gave it."""
    folder = session.config.invocation_params.dir
    return path.relative_to(folder) if path.is_relative_to(folder) else path
