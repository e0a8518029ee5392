"""Open databases of failing examples, and wrap them.

``open_places`` opens what ``--pallas-database`` names. Three wrappers change what hypothesis sees
of a database: ``Recorded`` keeps changes for another process, ``Guarded`` survives a lost server,
and ``Owned`` tells the tests apart that share a key.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from zipfile import BadZipFile

import hypothesis
from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    GitHubArtifactDatabase,
    MultiplexedDatabase,
    ReadOnlyDatabase,
)
from hypothesis.errors import HypothesisWarning

from pallas_sim.errors import OptionError, one_line
from pytest_pallas.compat.fuzzing import hypothesis_profile, is_of_shrinking
from pytest_pallas.database import FORMS, DatabasePlace

#: Time limit in seconds for the answer of a server; a timeout in the URL's query has precedence.
TIMEOUT = 2.0

#: Prefix of Hypothesis' keys in Redis, which may hold other data.
KEY_PREFIX = b"pytest-pallas:"

#: Begins a value that has an owner.
_PREFIX = b"pallas:"

#: Called with the lost place and the reason: ``report(shown, sentence)``.
Report = Callable[[str, str], object]


class _Wrapper(ExampleDatabase):
    """A database on top of another one."""

    def __init__(self, database: ExampleDatabase) -> None:
        """On top of ``database``."""
        super().__init__()
        self._database = database

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._database!r})"


class Recorded(_Wrapper):
    """Reads a database, and records what is saved and deleted instead of writing it.

    So a part of an item finds the same examples, whether other parts have failed before or not.
    """

    def __init__(self, database: ExampleDatabase) -> None:
        """On top of ``database``."""
        super().__init__(database)
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

    def reset(self, changes: Iterable[Sequence[str]]) -> None:
        """Forget what was recorded, and record these changes instead."""
        self._saved, self._deleted, self._changes = {}, {}, {}
        make_changes(self, changes)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Return the values of a key, with the recorded changes."""
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
        """Return all values of a key as a list: a generator would fail outside of this guard."""
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


class Owned(_Wrapper):
    """Saves with each value the test that saved it; gives its own values, or those of other tests.

    Hypothesis deletes an example that passes. A check of a spec has one key for all backends, and
    an example may fail on one backend and pass on the next: it stays until it passes where it
    failed.
    """

    def __init__(self, database: ExampleDatabase, owner: str, *, others: bool = False) -> None:
        """The values that ``owner`` saved, or that have no owner; with ``others``, all others.

        ``save`` saves a value of ``owner`` in both cases.
        """
        super().__init__(database)
        self._others = others
        self._mark = _PREFIX + owner.encode() + b"\0"

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """Return the values, each once.

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
    _, separator, bare = value.partition(b"\0")
    return bare if separator else value


def validate(locations: Sequence[DatabasePlace], root: Path) -> None:
    """Check before any test runs that the places can be opened, without contacting servers.

    Raises:
      OptionError: a folder cannot be written (or, with ``readonly+``, does not exist), a package is
        missing, or the package ``redis`` rejects a URL.
    """
    for location in locations:
        if location.kind == "folder":
            _validate_folder(root / location.address, location)
        elif location.kind == "redis":
            if importlib.util.find_spec("redis") is None:
                raise OptionError(
                    f"{location.shown} needs the package redis: pip install 'pytest-pallas[redis]'"
                )
            try:
                _client(location).connection_pool.make_connection()  # it connects later
            except Exception:  # errors of several types, whose text may contain the password
                raise OptionError(
                    f"{location.shown}: the package redis rejects the query of this URL (after "
                    "the ?)"
                ) from None


def open_places(
    locations: Sequence[DatabasePlace], root: Path, report: Report
) -> ExampleDatabase | None:
    """Return the combined database of the places; None for ``none``.

    It reads an example from the first place that has it, and writes to every writable place. A
    server that cannot be reached is reported once and not used again; Hypothesis' default database
    replaces it if no folder would keep examples.
    """
    kept = any(location.kind == "folder" and not location.read_only for location in locations)
    opened = [
        _open(location, root, report, kept=kept)
        for location in locations
        if location.kind != "none"
    ]
    if len(opened) < 2:
        return opened[0] if opened else None
    return MultiplexedDatabase(*opened)


def default_database() -> ExampleDatabase | None:
    """Return the database of hypothesis' profile: a folder, or None as in the profile ``ci``."""
    with warnings.catch_warnings():
        # if it cannot be written, it is in memory
        warnings.simplefilter("ignore", HypothesisWarning)
        # ``settings.default`` would be that of the running test, which may use the failed database.
        return hypothesis.settings.get_profile(hypothesis_profile()).database


def _validate_folder(folder: Path, location: DatabasePlace) -> None:
    if location.read_only:
        if not folder.is_dir():
            raise OptionError(f"{location.shown}: there is no folder {folder}; {FORMS}")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OptionError(f"{location.shown}: cannot write to it: {error}; {FORMS}") from None


def _open(location: DatabasePlace, root: Path, report: Report, *, kept: bool) -> ExampleDatabase:
    database: ExampleDatabase
    errors: tuple[type[Exception], ...] = (OSError,)
    if location.kind == "folder":
        database = DirectoryBasedExampleDatabase(root / location.address)
    elif location.kind == "redis":
        import redis
        from hypothesis.extra.redis import RedisExampleDatabase

        database = RedisExampleDatabase(_client(location), key_prefix=KEY_PREFIX)
        errors = (OSError, redis.RedisError)
    else:
        database = _github(location)
        errors = (OSError, LookupError, ValueError, BadZipFile)
    if location.read_only:
        database = ReadOnlyDatabase(database)
    if location.kind == "folder":
        return database

    def lost(error: Exception) -> ExampleDatabase | None:
        local = None if kept else default_database()
        report(
            location.shown, f"cannot be reached ({_safe(error, location)}); {_instead(local, kept)}"
        )
        return local

    return Guarded(database, errors=errors, lost=lost)


def _client(location: DatabasePlace) -> Any:
    """Make a Redis client with short timeouts, and one retry for idle connections."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return Redis.from_url(
        location.address,
        socket_timeout=TIMEOUT,
        socket_connect_timeout=TIMEOUT,
        retry=Retry(NoBackoff(), 1),
    )


def _github(location: DatabasePlace) -> ExampleDatabase:
    """Return the newest artifact ``hypothesis-example-db`` of a repository's workflows."""

    class GitHub(GitHubArtifactDatabase):
        """With a timeout of ``TIMEOUT`` seconds; Hypothesis has none."""

        def fetch(self, key: bytes) -> Iterable[bytes]:
            before = socket.getdefaulttimeout()
            socket.setdefaulttimeout(TIMEOUT)
            try:
                return list(super().fetch(key))
            finally:
                socket.setdefaulttimeout(before)

    owner, _, repo = location.address.partition("/")
    return GitHub(owner, repo)


def _safe(error: Exception, location: DatabasePlace) -> str:
    """Return the message of an error, without the password."""
    text = one_line(error)
    parts = urlsplit(location.address)
    secrets = [parts.password or "", *parse_qs(parts.query).get("password", [])]
    for secret in secrets:
        for form in filter(None, (secret, unquote(secret))):
            text = text.replace(form, "***")
    return text.rstrip(". ")


def _instead(local: ExampleDatabase | None, kept: bool) -> str:
    if kept:
        return "the run goes on without it"
    if local is None:
        return "no failing examples are kept (hypothesis' profile has no database)"
    path = getattr(local, "path", None)
    where = "in memory" if path is None else f"in {os.path.relpath(path)}"
    return f"failing examples are kept {where} instead"
