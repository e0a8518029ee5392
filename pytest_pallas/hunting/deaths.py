"""A process that a mutant killed."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from pytest_pallas.errors import DIED
from pytest_pallas.hunting.journal import Journal


def died_of_a_mutant(path: Path, error: Exception) -> bool:
    """Whether a process died while it tried a mutant, which is then written down as caught.

    Args:
      path: of its journal.
      error: what the death is called.
    """
    journal = Journal(path)
    if journal.begun is None or not isinstance(error, DIED):
        return False
    how = type(error).__name__
    journal.end(dataclasses.replace(journal.begun, status="caught", how=how))
    return True
