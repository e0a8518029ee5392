"""A database whose changes are kept apart, as data: another process makes them later."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence

from hypothesis.database import ExampleDatabase


class Recorded(ExampleDatabase):
    """Reads a database, and records what is saved and deleted instead of writing it.

    So a part of an item finds the same examples, whether other parts have failed before or not.
    """

    def __init__(self, database: ExampleDatabase) -> None:
        """On top of ``database``."""
        super().__init__()
        self._database = database
        self._saved: dict[bytes, dict[bytes, None]] = {}
        self._deleted: dict[bytes, set[bytes]] = {}
        self._changes: dict[tuple[bytes, bytes], str] = {}

    @property
    def changes(self) -> list[tuple[str, str, str]]:
        """The last change of each value: ``save`` or ``delete``, key and value, in base64."""
        return [
            (change, base64.b64encode(key).decode(), base64.b64encode(value).decode())
            for (key, value), change in self._changes.items()
        ]

    def __repr__(self) -> str:
        return f"Recorded({self._database!r})"

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """The values of a key, with the recorded changes."""
        gone = self._deleted.get(key, set())
        kept = [value for value in self._database.fetch(key) if value not in gone]
        return list(dict.fromkeys([*kept, *self._saved.get(key, {})]))

    def save(self, key: bytes, value: bytes) -> None:
        """Record a value."""
        self._saved.setdefault(key, {})[value] = None
        self._deleted.get(key, set()).discard(value)
        self._record("save", key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Record that a value goes."""
        self._saved.get(key, {}).pop(value, None)
        self._deleted.setdefault(key, set()).add(value)
        self._record("delete", key, value)

    def _record(self, change: str, key: bytes, value: bytes) -> None:
        self._changes.pop((key, value), None)
        self._changes[key, value] = change


def make_changes(database: ExampleDatabase, changes: Iterable[Sequence[str]]) -> None:
    """Make the changes of a ``Recorded`` in a database."""
    for change, key, value in changes:
        write = database.save if change == "save" else database.delete
        write(base64.b64decode(key), base64.b64decode(value))
