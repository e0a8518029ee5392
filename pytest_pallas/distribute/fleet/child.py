"""In the process that runs tests for a worker of a fleet: a pytest session with a database apart.

Failing examples that a test saves go to the controller, which writes them to its own database once
the result counts. So a test that runs twice draws the same both times.
"""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis.database import (
    DirectoryBasedExampleDatabase,
    ExampleDatabase,
    InMemoryExampleDatabase,
    MultiplexedDatabase,
)

from pytest_pallas.distribute.fleet.messages import (
    Change,
    ChildReply,
    ChildRequest,
    ChildResult,
    ProjectQuestion,
    child_message,
    of_child,
    plain_warning,
)
from pytest_pallas.distribute.fleet.project import differences
from pytest_pallas.draw.database import Recorded, make_changes, open_places
from pytest_pallas.isolate.worker import Host, host_for
from pytest_pallas.pytest_session import PytestSession, current

_PROFILE = "pallas-fleet"


def serve(payload: bytes, say: Callable[[bytes], None]) -> bytes:
    """Answer a ``ProjectQuestion`` or a ``ChildRequest`` by a ``ChildReply``."""
    message: Any = of_child(ProjectQuestion | ChildRequest, payload)  # pyright: ignore[reportArgumentType]
    if isinstance(message, ProjectQuestion):
        host = host_for(message.opening, say)
        host.alarm.stop()
        found = differences(message.project, host.config.rootpath)
        return child_message(ChildReply(differences=found))
    request: ChildRequest = message
    host = host_for(request.test.opening, say)
    changed = _database(host, request.examples)
    changed.reset(request.changes)
    reply = host.run(request.test)
    result = ChildResult(
        reports=reply.reports,
        warnings=[plain_warning(each) for each in reply.warnings],
        hazards=reply.hazards,
        stained=reply.stained,
        lost_places=reply.lost_places,
        exit=reply.exit,
        changes=changed.changes,
    )
    return child_message(ChildReply(result=result))


def _database(host: Host, examples: Mapping[str, bytes] | None) -> ChangedDatabase:
    """The database of the session of this process, made at the first request."""
    return _database_of(host, _Files(examples))


@dataclass(frozen=True, eq=False)
class _Files:
    """Files by path; all are equal, because they are those of one run."""

    content: Mapping[str, bytes] | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Files)

    def __hash__(self) -> int:
        return 0


@functools.cache
def _database_of(host: Host, files: _Files) -> ChangedDatabase:
    session = current(host.config)
    changed: Any = ChangedDatabase(_copied(session, files.content))
    if session.database is not None:
        session.database = changed
    if settings.default is not None and settings.default.database is not None:
        settings.register_profile(_PROFILE, parent=settings.default, database=changed)
        settings.load_profile(_PROFILE)
    return changed


def _copied(session: PytestSession, content: Mapping[str, bytes] | None) -> Any:
    """The database of the controller: a copy of its folders, and servers."""
    if content is None:
        return session.database
    folder = Path(tempfile.mkdtemp(prefix="pallas-examples-"))
    session.config.add_cleanup(functools.partial(_remove, folder))
    for name, value in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(value)
    copy = DirectoryBasedExampleDatabase(folder)
    servers = [each for each in session.options.database if each.kind not in ("folder", "none")]
    root, report = session.harness.root, session.lost_places.setdefault
    opened = open_places(servers, root, report) if servers else None
    return copy if opened is None else MultiplexedDatabase(copy, opened)


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


class ChangedDatabase(ExampleDatabase):
    """A database with changes, which are kept apart from it."""

    def __init__(self, base: Any) -> None:
        """Without changes of ``base``, a database or None."""
        super().__init__()
        self._base = InMemoryExampleDatabase() if base is None else base
        self._changed: Any = Recorded(self._base)

    def __repr__(self) -> str:
        return f"ChangedDatabase({self._base!r})"

    @property
    def changes(self) -> list[Change]:
        """All changes."""
        return self._changed.changes

    def reset(self, changes: Sequence[Change]) -> None:
        """Have these changes and no others."""
        self._changed = Recorded(self._base)
        make_changes(self._changed, changes)

    def fetch(self, key: bytes) -> Iterable[bytes]:
        """The values of the database, changed."""
        return self._changed.fetch(key)

    def save(self, key: bytes, value: bytes) -> None:
        """Add a value."""
        self._changed.save(key, value)

    def delete(self, key: bytes, value: bytes) -> None:
        """Remove a value."""
        self._changed.delete(key, value)
