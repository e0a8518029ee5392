"""Examples that several tests share, of which each forgets only its own."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis.database import ExampleDatabase

from pytest_pallas.compat.fuzzing import is_of_shrinking

_PREFIX = b"pallas:"


class Owned(ExampleDatabase):
    """Remembers with each value which test saved it.

    Hypothesis forgets an example that passes. A check of a spec has one key for all backends, and
    what fails on one may pass on the next: it stays until it passes where it failed.
    """

    def __init__(self, database: ExampleDatabase, owner: str) -> None:
        """Values of ``database``, seen by the test with the name ``owner``."""
        super().__init__()
        self._database = database
        self._mark = _PREFIX + owner.encode() + b"\0"

    def __repr__(self) -> str:
        return f"Owned({self._database!r})"

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """The values of all owners, each once; also those that nobody owns.

        Of what came before an example was simplified, only one's own: others have the result.
        """
        values = self._database.fetch(key)
        if is_of_shrinking(key):
            values = [value for value in values if value.startswith(self._mark)]
        return list(dict.fromkeys(map(_bare, values)))

    def save(self, key: bytes, value: bytes) -> None:
        """Keep a value as one's own."""
        self._database.save(key, self._mark + value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget one's own value, and one that nobody owns."""
        self._database.delete(key, self._mark + value)
        self._database.delete(key, value)


def _bare(value: bytes) -> bytes:
    if not value.startswith(_PREFIX):
        return value
    _, found, bare = value.partition(b"\0")
    return bare if found else value
