"""A database that may go away: from its first error on, another one takes its part."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable

from hypothesis.database import ExampleDatabase
from hypothesis.errors import HypothesisWarning


class Guarded(ExampleDatabase):
    """Passes everything on to a database until that fails, and then to what ``lost`` returns.

    Hypothesis asks for examples in the middle of a test, where an error of the database would look
    like one of the kernel.
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
        """All values of a key, at once: a generator would fail where nobody guards it."""
        return self._ask(lambda database: list(database.fetch(key))) or []

    def save(self, key: bytes, value: bytes) -> None:
        """Keep a value."""
        self._ask(lambda database: database.save(key, value))

    def delete(self, key: bytes, value: bytes) -> None:
        """Forget a value."""
        self._ask(lambda database: database.delete(key, value))

    def move(self, src: bytes, dest: bytes, value: bytes) -> None:
        """Keep a value under another key."""
        self._ask(lambda database: database.move(src, dest, value))

    def _ask[T](self, question: Callable[[ExampleDatabase], T]) -> T | None:
        if self._database is not None and self._whole:
            try:
                with warnings.catch_warnings():
                    # Hypothesis warns of a server that does not answer; said elsewhere, once.
                    warnings.simplefilter("error", HypothesisWarning)
                    return question(self._database)
            except self._errors as error:
                self._whole = False
                self._database = self._lost(error)
        return None if self._database is None else question(self._database)
