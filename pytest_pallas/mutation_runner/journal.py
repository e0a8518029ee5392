"""What became of the mutants so far, in a file that outlives the process that one of them kills."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_pallas.errors import DIED
from pytest_pallas.mutation_runner.verdict import Verdict, from_json, to_json

#: The path of an item's journal, where it has one.
JOURNAL = pytest.StashKey[str]()


class Journal:
    """A file with a line for each mutant that was begun, and one for what became of it.

    A process that a mutant kills leaves its beginning without an end; whoever started the process
    adds the end, and starts another one, which goes on behind it.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Read what there is; without a path nothing is kept in a file."""
        self._path = path
        self.verdicts: dict[str, Verdict] = {}
        self.begun: Verdict | None = None
        if path is not None and path.exists():
            for line in path.read_text().splitlines():
                self._take(json.loads(line))

    def begin(self, verdict: Verdict) -> None:
        """A mutant is about to be tried; ``verdict`` is what is known of it."""
        self._write({"begin": to_json(verdict)})

    def end(self, verdict: Verdict) -> None:
        """This became of it."""
        self._write({"end": to_json(verdict)})

    def _take(self, plain: dict[str, Any]) -> None:
        if "begin" in plain:
            self.begun = from_json(plain["begin"])
        else:
            verdict = from_json(plain["end"])
            self.verdicts[verdict.key] = verdict
            self.begun = None

    def _write(self, plain: dict[str, Any]) -> None:
        self._take(plain)
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps(plain) + "\n")


def died_of_a_mutant(path: Path, error: Exception) -> bool:
    """Whether a process died while it tried a mutant, which is then written down as killed.

    Args:
      path: of its journal.
      error: what the death is called.
    """
    journal = Journal(path)
    if journal.begun is None or not isinstance(error, DIED):
        return False
    how = type(error).__name__
    journal.end(dataclasses.replace(journal.begun, status="killed", how=how))
    return True
