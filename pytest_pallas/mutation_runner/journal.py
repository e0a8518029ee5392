"""The verdicts so far, in a file that survives a crash of the process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from pathlib import Path
from typing import Any, TypedDict

import pytest

from pytest_pallas.decoding import DataError, decode, parse
from pytest_pallas.errors import DIED
from pytest_pallas.mutation_runner.verdict import MutantVerdict, to_json

#: The path of an item's journal, where it has one.
JOURNAL = pytest.StashKey[str]()


class _Line(TypedDict, total=False):
    """A line of a journal, which has one of both."""

    begin: MutantVerdict
    end: MutantVerdict


class Journal:
    """A file with two lines for each mutant: one at its start, and one with its verdict.

    If a mutant crashes the process, its start has no verdict. The parent process adds the verdict,
    and starts another process, which continues with the next mutant.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Read the existing file; without a path, keep verdicts in memory only."""
        self._path = path
        self.verdicts: dict[str, MutantVerdict] = {}
        self.begun: MutantVerdict | None = None
        if path is not None and path.exists():
            for line in path.read_bytes().splitlines():
                with contextlib.suppress(DataError):  # its writer died in the middle
                    self._take(parse(line))

    def begin(self, verdict: MutantVerdict) -> None:
        """Record the start of a mutant."""
        self._write({"begin": to_json(verdict)})

    def end(self, verdict: MutantVerdict) -> None:
        """Record the verdict of a mutant."""
        self._write({"end": to_json(verdict)})

    def _take(self, plain: dict[str, Any]) -> None:
        line: _Line = decode(_Line, plain)
        if "begin" in line:
            self.begun = line["begin"]
        elif "end" in line:
            verdict = line["end"]
            self.verdicts[verdict.key] = verdict
            self.begun = None

    def _write(self, plain: dict[str, Any]) -> None:
        self._take(plain)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(plain) + "\n")


def died_of_a_mutant(path: Path, error: Exception) -> bool:
    """Whether a process died while it ran a mutant, which is then recorded as killed.

    Args:
      path: the journal of the process.
      error: the error of the crash.
    """
    journal = Journal(path)
    if journal.begun is None or not isinstance(error, DIED):
        return False
    how = type(error).__name__
    journal.end(dataclasses.replace(journal.begun, status="killed", how=how))
    return True
