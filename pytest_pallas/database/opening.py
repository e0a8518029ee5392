"""Open Hypothesis' example databases for places, and report errors early."""

from __future__ import annotations

import importlib.util
import os
import socket
import tempfile
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit
from zipfile import BadZipFile

from pallas_sim.errors import OptionError, one_line
from pytest_pallas.compat.fuzzing import hypothesis_profile
from pytest_pallas.database.places import FORMS, DatabasePlace

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

#: Time limit in seconds for the answer of a server; a timeout in the URL's query has precedence.
TIMEOUT = 2.0

#: Prefix of Hypothesis' keys in Redis, which may hold other data.
KEY_PREFIX = b"pytest-pallas:"

#: Called with the lost place and the reason: ``report(shown, sentence)``.
Report = Callable[[str, str], object]


def validate(places: Sequence[DatabasePlace], root: Path) -> None:
    """Check before any test runs that the places can be opened, without contacting servers.

    Raises:
      OptionError: a folder cannot be written (or, with ``readonly+``, does not exist), a package is
        missing, or the package ``redis`` rejects a URL.
    """
    for place in places:
        if place.kind == "folder":
            _validate_folder(root / place.address, place)
        elif place.kind == "redis":
            if importlib.util.find_spec("redis") is None:
                raise OptionError(
                    f"{place.shown} needs the package redis: pip install 'pytest-pallas[redis]'"
                )
            try:
                _client(place).connection_pool.make_connection()  # it connects later
            except Exception:  # errors of several types, whose text may contain the password
                raise OptionError(
                    f"{place.shown}: the package redis rejects the query of this URL (after the ?)"
                ) from None


def open_places(
    places: Sequence[DatabasePlace], root: Path, report: Report
) -> ExampleDatabase | None:
    """The combined database of the places; None for ``none``.

    It reads an example from the first place that has it, and writes to every writable place. A
    server that cannot be reached is reported once and not used again; Hypothesis' default database
    replaces it if no folder would keep examples.
    """
    from hypothesis.database import MultiplexedDatabase

    kept = any(place.kind == "folder" and not place.read_only for place in places)
    opened = [_open(place, root, report, kept=kept) for place in places if place.kind != "none"]
    if len(opened) < 2:
        return opened[0] if opened else None
    return MultiplexedDatabase(*opened)


def default_database() -> ExampleDatabase | None:
    """The database of hypothesis' profile: a folder, or None as in the profile ``ci``."""
    import hypothesis
    from hypothesis.errors import HypothesisWarning

    with warnings.catch_warnings():
        # if it cannot be written, it is in memory
        warnings.simplefilter("ignore", HypothesisWarning)
        # ``settings.default`` would be that of the running test, which may use the failed database.
        return hypothesis.settings.get_profile(hypothesis_profile()).database


def _validate_folder(folder: Path, place: DatabasePlace) -> None:
    if place.read_only:
        if not folder.is_dir():
            raise OptionError(f"{place.shown}: there is no folder {folder}; {FORMS}")
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OptionError(f"{place.shown}: cannot write to it: {error}; {FORMS}") from None


def _open(place: DatabasePlace, root: Path, report: Report, *, kept: bool) -> ExampleDatabase:
    from hypothesis.database import DirectoryBasedExampleDatabase, ReadOnlyDatabase

    from pytest_pallas.database.guarded import Guarded

    database: ExampleDatabase
    errors: tuple[type[Exception], ...] = (OSError,)
    if place.kind == "folder":
        database = DirectoryBasedExampleDatabase(root / place.address)
    elif place.kind == "redis":
        import redis
        from hypothesis.extra.redis import RedisExampleDatabase

        database = RedisExampleDatabase(_client(place), key_prefix=KEY_PREFIX)
        errors = (OSError, redis.RedisError)
    else:
        database = _github(place)
        errors = (OSError, LookupError, ValueError, BadZipFile)
    if place.read_only:
        database = ReadOnlyDatabase(database)
    if place.kind == "folder":
        return database

    def lost(error: Exception) -> ExampleDatabase | None:
        local = None if kept else default_database()
        report(place.shown, f"cannot be reached ({_safe(error, place)}); {_instead(local, kept)}")
        return local

    return Guarded(database, errors=errors, lost=lost)


def _client(place: DatabasePlace) -> Any:
    """A Redis client with short timeouts and one retry, for connections that were idle long."""
    from redis import Redis
    from redis.backoff import NoBackoff
    from redis.retry import Retry

    return Redis.from_url(
        place.address,
        socket_timeout=TIMEOUT,
        socket_connect_timeout=TIMEOUT,
        retry=Retry(NoBackoff(), 1),
    )


def _github(place: DatabasePlace) -> ExampleDatabase:
    """The newest artifact ``hypothesis-example-db`` of a repository's workflows."""
    from hypothesis.database import GitHubArtifactDatabase

    class GitHub(GitHubArtifactDatabase):
        """With a timeout of ``TIMEOUT`` seconds; Hypothesis has none."""

        def fetch(self, key: bytes) -> Iterable[bytes]:
            before = socket.getdefaulttimeout()
            socket.setdefaulttimeout(TIMEOUT)
            try:
                return list(super().fetch(key))
            finally:
                socket.setdefaulttimeout(before)

    owner, _, repo = place.address.partition("/")
    return GitHub(owner, repo)


def _safe(error: Exception, place: DatabasePlace) -> str:
    """The message of an error, without the password."""
    text = one_line(error)
    parts = urlsplit(place.address)
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
