"""In a program of several processes, all draw the same examples, and stop at the same time."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from typing import Any

from hypothesis.database import ExampleDatabase

from pytest_pallas.backends.processes import agree, gang
from pytest_pallas.compat.fuzzing import is_rejection
from pytest_pallas.decoding import DataError, decode
from pytest_pallas.errors import GangError

#: Seconds to wait for the other processes.
_TIMEOUT = 120.0


def agreed(over: bool) -> bool:
    """Return whether the time of the first process is over, which decides for all of them."""
    if gang() is None:
        return over
    return bool(agree("time", value=over, timeout=_TIMEOUT)[0].value)


class SharedFailureError(Exception):
    """An example that failed in some process.

    All processes raise it at one line, so that Hypothesis sees one failure in each of them, and
    shrinks it in the same way.
    """

    def __init__(self, error: Exception) -> None:
        """With the error of this process."""
        super().__init__(str(error))
        self.error = error


def run_shared(example: Callable[[Any], None], drawn: Any) -> None:
    """Run an example so that all processes in which it fails raise the same error.

    Raises:
      Exception: the error of the example; of several processes a ``SharedFailureError``.
    """
    __tracebackhide__ = True
    if gang() is None:
        return example(drawn)
    try:
        return example(drawn)
    except Exception as error:
        if is_rejection(error):
            raise
        failed = error
    raise SharedFailureError(failed)


def unshared(test: Callable[[], object]) -> None:
    """Run a test of Hypothesis whose examples are run by ``run_shared``.

    Raises:
      Exception: the error of its failing example, with Hypothesis' notes.
    """
    __tracebackhide__ = True
    try:
        test()
    except SharedFailureError as shared:
        failed = shared.error
        for note in getattr(shared, "__notes__", ()):
            failed.add_note(note)
    else:
        return
    raise failed


def of_all(database: ExampleDatabase | None) -> ExampleDatabase | None:
    """Return a database that has the examples of the first process in all processes."""
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
        """Return the examples of the first process, in one order."""
        values = [] if _is_other() else sorted(self._database.fetch(key))
        texts = [base64.b64encode(value).decode() for value in values]
        first = agree("examples", value=texts, timeout=_TIMEOUT)[0]
        try:
            return decode(list[bytes], first.value)
        except DataError as error:
            raise GangError(f"process 0 ({first.host}) gave no examples: {error}") from None

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
    """Return whether this is one of several processes, and not the first."""
    processes = gang()
    return processes is not None and processes.process > 0
