"""Fuzzing in a program of several processes: all draw the same, and stop at the same time."""

from __future__ import annotations

import base64
from collections.abc import Iterable

from hypothesis.database import ExampleDatabase

from pytest_pallas.devices.processes import agree, gang

#: Seconds to wait for the other processes.
_TIMEOUT = 120.0


def agreed(over: bool) -> bool:
    """Whether the time of the first process is over, which decides for all of them."""
    if gang() is None:
        return over
    return bool(agree("time", value=over, timeout=_TIMEOUT)[0].value)


def of_all(database: ExampleDatabase | None) -> ExampleDatabase | None:
    """A database that returns the same examples in all processes: those of the first process."""
    if database is None or gang() is None:
        return database
    return FirstProcessDatabase(database)


class FirstProcessDatabase(ExampleDatabase):
    """A database of failing examples for all processes: only the first one reads and writes it.

    Each process may have another database, as where each host has its own disk.
    """

    def __init__(self, database: ExampleDatabase) -> None:
        """The examples of ``database``, as the first process has them."""
        super().__init__()
        self._database = database

    def __repr__(self) -> str:
        """The database by its wrapped one."""
        return f"FirstProcessDatabase({self._database!r})"

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """The examples of the first process, in one order."""
        found = [] if _is_other() else sorted(self._database.fetch(key))
        texts = [base64.b64encode(value).decode() for value in found]
        first = agree("examples", value=texts, timeout=_TIMEOUT)[0]
        return [base64.b64decode(text) for text in first.value]

    def save(self, key: bytes, value: bytes) -> None:
        """Save an example, in the first process."""
        if not _is_other():
            self._database.save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Delete an example, in the first process."""
        if not _is_other():
            self._database.delete(key, value)

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """Move an example, in the first process."""
        if not _is_other():
            self._database.move(src, dest, value)


def _is_other() -> bool:
    """Whether this is not the first process."""
    processes = gang()
    return processes is not None and processes.process > 0
