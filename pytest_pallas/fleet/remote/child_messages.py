"""Messages between a worker of a fleet and its child process, which runs the tests: JSON, too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

from pytest_pallas.decoding import AsWritten, Exact, parse
from pytest_pallas.fleet.messages import Change, from_plain, to_plain
from pytest_pallas.fleet.project import Difference, Project
from pytest_pallas.isolation.messages import WorkerRequest

#: The entry of the processes; see ``workers.WorkerSetup``.
ENTRY = "pytest_pallas.fleet.remote.child:serve"


@dataclass(frozen=True, kw_only=True)
class ProjectQuestion:
    """Asks how the process differs from the project of the controller.

    Attributes:
      opening: as in ``WorkerRequest``.
      project: of the controller.
    """

    opening: bytes
    project: Project


@dataclass(frozen=True, kw_only=True)
class ChildRequest:
    """A test to run.

    Attributes:
      test: the test.
      examples: files of the database of the controller, by path; None to open its places here.
      changes: what earlier tests of the kernel have changed in it.
    """

    test: WorkerRequest
    examples: Mapping[str, bytes] | None
    changes: Sequence[Change]


@dataclass(frozen=True, kw_only=True)
class ChildResult:
    """The result of a test: the fields of ``TestResult`` that the child knows.

    It is what this machine has run: the controller checks it.
    """

    reports: Sequence[Annotated[Any, AsWritten()]] = ()
    warnings: Sequence[Annotated[Any, AsWritten()]] = ()
    hazards: Sequence[Exact] | None = None
    stained: bool = False
    lost_places: Mapping[Exact, Exact] = field(default_factory=dict[str, str])
    exit: tuple[Exact, int | None] | None = None
    changes: Sequence[Change] = ()


@dataclass(frozen=True, kw_only=True)
class ChildReply:
    """The result of a test with all changes of the database, or the differences of a project."""

    result: ChildResult | None = None
    differences: Sequence[Difference] = ()


_KINDS = (ProjectQuestion, ChildRequest, ChildReply, ChildResult, WorkerRequest)
_TYPES = {each.__name__: each for each in _KINDS}


def child_message(message: ProjectQuestion | ChildRequest | ChildReply) -> bytes:
    """A message as bytes."""
    return json.dumps(to_plain(message, _TYPES)).encode()


def of_child[T](kind: type[T], body: bytes) -> T:
    """The message of a kind from ``child_message``.

    Raises:
      DataError: it is none.
    """
    return from_plain(kind, parse(body), _TYPES)
