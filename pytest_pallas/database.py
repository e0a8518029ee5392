"""Parse the places of ``--pallas-database``, and report which of them could not be reached.

Parsing opens no database. Nothing here imports hypothesis, because the moment of its first import
changes what tests draw.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest

from pallas_sim.errors import OptionError

if TYPE_CHECKING:
    from hypothesis.database import ExampleDatabase

Kind = Literal["folder", "redis", "github", "none"]

#: The valid forms of a place, for error messages.
FORMS = (
    "valid: DIR, file:DIR, redis://HOST:PORT/N, rediss://HOST:PORT/N, unix:///SOCKET, "
    "github:OWNER/REPO, readonly+ before one of these, a list of them with commas, or none"
)

_REDIS = ("redis", "rediss", "unix")

#: A scheme has two or more characters: one letter before a colon is a drive of Windows.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9.-]+):")


@dataclass(frozen=True, kw_only=True)
class DatabasePlace:
    """Names one database of examples.

    Attributes:
      kind: ``"none"`` turns the database off.
      address: a folder, a URL or ``OWNER/REPO``. It may hold a password: show ``shown`` instead.
      shown: the place without secrets, for messages.
      read_only: whether examples are read from it and never saved to it.
    """

    kind: Kind
    address: str = field(repr=False)
    shown: str
    read_only: bool = False


def parse_places(text: str) -> tuple[DatabasePlace, ...]:
    """Parse a comma-separated list, and return its places.

    Raises:
      OptionError: a scheme is unknown, or an address is invalid. The message shows no password.
    """
    places: list[DatabasePlace] = []
    for entry in (part.strip() for part in text.split(",")):
        if not entry:
            continue
        if places and places[-1].kind == "redis" and "@" in entry and "://" not in entry:
            # A comma cut the password of the URL before. Its rest would become a folder, which
            # messages show.
            raise OptionError("write a comma in the password of a URL as %2C")
        places.append(_parse_place(entry))
    if not places:
        raise OptionError(f"gives no database; {FORMS}")
    if len(places) > 1 and any(database.kind == "none" for database in places):
        raise OptionError("none must stand alone: it turns the database off")
    return tuple(places)


def _parse_place(text: str) -> DatabasePlace:
    """Parse one place; raise ``OptionError`` if it is invalid."""
    if text.startswith("readonly+"):
        database = _parse_place(text.removeprefix("readonly+"))
        if database.kind == "none":
            raise OptionError("none must stand alone, without readonly+")
        shown = f"readonly+{database.shown.removeprefix('readonly+')}"
        return replace(database, shown=shown, read_only=True)
    if text == "none":
        return DatabasePlace(kind="none", address="", shown="none")
    match = _SCHEME.match(text)
    scheme = match.group(1).lower() if match else "file"
    if scheme in _REDIS:
        return DatabasePlace(kind="redis", address=text, shown=_redis_shown(text, scheme))
    rest = text[match.end() :] if match else text
    if scheme == "file":
        folder = rest.removeprefix("//") if match else rest
        if not folder:
            raise OptionError(f"file: has no folder; {FORMS}")
        return DatabasePlace(kind="folder", address=folder, shown=folder)
    if scheme == "github":
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", rest):
            raise OptionError(f"github: must be github:OWNER/REPO; {FORMS}")
        return DatabasePlace(kind="github", address=rest, shown=text, read_only=True)
    raise OptionError(
        f"unknown scheme {scheme}: (a folder of that name is file:{scheme}:); {FORMS}"
    )


def _redis_shown(url: str, scheme: str) -> str:
    """Return a Redis URL without user, password and query.

    Raises:
      OptionError: the URL cannot be parsed. The message shows only its scheme, because any other
        part may be the password.
    """
    start = f"{scheme}://..."
    try:
        parts = urlsplit(url)
        port, query = parts.port, parse_qs(parts.query, strict_parsing=bool(parts.query))
    except ValueError:
        raise OptionError(
            f"{start}: cannot read this URL: the port must be a number, and / ? # @ : , in a "
            f"password must be written %2F %3F %23 %40 %3A %2C; {FORMS}"
        ) from None
    if "@" in parts.path + parts.query + parts.fragment:
        raise OptionError(f"{start}: / ? # @ in a password must be written %2F %3F %23 %40")
    if "decode_responses" in query:
        raise OptionError(f"{start}: leave out decode_responses, because examples are bytes")
    login = "***@" if "@" in parts.netloc else ""
    if scheme == "unix":
        if not parts.path.strip("/"):
            raise OptionError(f"{start}: has no socket; give one, such as unix:///run/redis.sock")
        return f"unix://{login}{parts.path}"
    if not parts.hostname or not re.fullmatch(r"(/\d*)?", parts.path):
        raise OptionError(f"{start}: must be a host and at most a number, such as redis://HOST/0")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{scheme}://{login}{host}" + (f":{port}" if port else "") + parts.path


#: Key of ``lost`` in the data that an xdist worker sends to the controller when it ends.
_LOST_KEY = "pallas_lost_places"


class DatabaseReporter:
    """Reports the databases that this process or an xdist worker could not reach."""

    def __init__(
        self,
        places: Sequence[DatabasePlace],
        database: Callable[[], ExampleDatabase | None],
        lost: dict[str, str],
    ) -> None:
        """Report on some databases.

        Args:
          places: the databases, for the header.
          database: opens all of them as one.
          lost: names those that could not be reached, with the reason. Others add to it.
        """
        self.places, self.database, self.lost = places, database, lost
        self.reported: set[str] = set()

    def pytest_report_header(self) -> list[str]:
        """List the databases, and try to reach each server."""
        database = self.database()
        if database is not None:
            list(database.fetch(b"reached"))  # a server that does not answer adds to ``lost``
        names = ", ".join(database.shown for database in self.places)
        lines = [f"pallas: examples in {names}", *self._warnings()]
        self.reported = set(self.lost)
        return lines

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the lost databases of an xdist worker to the controller."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output[_LOST_KEY] = dict(self.lost)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Receive the lost databases of a worker. A crashed worker sends nothing."""
        output: dict[str, Any] = getattr(node, "workeroutput", None) or {}
        for name, text in output.get(_LOST_KEY, {}).items():
            self.lost.setdefault(name, text)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print a warning for each database that was lost after the header."""
        for line in self._warnings():
            terminalreporter.write_line(line, yellow=True)

    def _warnings(self) -> list[str]:
        """Return a line for each lost database that was not reported before."""
        return [
            f"pallas: warning: database {name} {text}"
            for name, text in self.lost.items()
            if name not in self.reported
        ]
