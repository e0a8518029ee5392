"""Wrappers of Hypothesis' databases: for servers that may fail, and for tests that share keys."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

from hypothesis.database import ExampleDatabase
from hypothesis.errors import HypothesisWarning

from pytest_pallas.compat.fuzzing import is_of_shrinking


class Guarded(ExampleDatabase):
    """Forwards to a database until that fails, and then to the one that ``lost`` returns.

    Hypothesis reads examples during a test, so an error of the database would look like an error of
    the kernel.
    """

    def __init__(
        self,
        database: ExampleDatabase,
        *,
        errors: tuple[type[Exception], ...],
        lost: Callable[[Exception], ExampleDatabase | None],
    ) -> None:
        """Guard ``database`` against ``errors``. ``lost`` is called once, with the first error."""
        super().__init__()
        self._database: ExampleDatabase | None = database
        self._errors = (*errors, HypothesisWarning)
        self._lost = lost
        self._whole = True

    def __repr__(self) -> str:
        return f"Guarded({self._database!r})"

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """All values of a key as a list: a generator would fail outside of this guard."""
        return self._ask(lambda database: list(database.fetch(key))) or []

    def save(self, key: bytes, value: bytes) -> None:
        """Save a value."""
        self._ask(lambda database: database.save(key, value))

    def delete(self, key: bytes, value: bytes) -> None:
        """Delete a value."""
        self._ask(lambda database: database.delete(key, value))

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """Move a value to another key."""
        self._ask(lambda database: database.move(src, dest, value))

    def _ask[T](self, question: Callable[[ExampleDatabase], T]) -> T | None:
        if self._database is not None and self._whole:
            try:
                with warnings.catch_warnings():
                    # Hypothesis warns about a server that does not answer; the plugin reports it
                    # once.
                    warnings.simplefilter("error", HypothesisWarning)
                    return question(self._database)
            except self._errors as error:
                self._whole = False
                self._database = self._lost(error)
        return None if self._database is None else question(self._database)


_PREFIX = b"pallas:"


class Owned(ExampleDatabase):
    """Saves with each value the test that saved it; gives its own values, or those of other tests.

    Hypothesis deletes an example that passes. A check of a spec has one key for all backends, and
    an example may fail on one backend and pass on the next: it stays until it passes where it
    failed.
    """

    def __init__(self, database: ExampleDatabase, owner: str, *, others: bool = False) -> None:
        """The values that ``owner`` saved, or that have no owner; with ``others``, all others.

        ``save`` saves a value of ``owner`` in both cases.
        """
        super().__init__()
        self._database = database
        self._others = others
        self._mark = _PREFIX + owner.encode() + b"\0"

    def __repr__(self) -> str:
        return f"Owned({self._database!r})"

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """The values, each once.

        Of the values before shrinking, only the own ones: other tests have the shrunk example.
        """
        values = list(self._database.fetch(key))
        own = [value for value in values if value.startswith(self._mark)]
        if is_of_shrinking(key):
            return [] if self._others else list(map(_bare, own))
        own += [value for value in values if _bare(value) == value]  # without an owner
        known = dict.fromkeys(map(_bare, own))
        if not self._others:
            return list(known)
        return [value for value in dict.fromkeys(map(_bare, values)) if value not in known]

    def save(self, key: bytes, value: bytes) -> None:
        """Save a value as its owner."""
        self._database.save(key, self._mark + value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Delete the own value, and one without an owner."""
        self._database.delete(key, self._mark + value)
        self._database.delete(key, value)


def _bare(value: bytes) -> bytes:
    if not value.startswith(_PREFIX):
        return value
    _, found, bare = value.partition(b"\0")
    return bare if found else value
