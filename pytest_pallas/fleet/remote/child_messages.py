"""Messages between a worker of a fleet and its child process, which runs the tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_pallas.fleet.messages import Change
from pytest_pallas.fleet.project import Project
from pytest_pallas.isolation.messages import WorkerReply, WorkerRequest

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
class ChildReply:
    """The result of a test, and all changes of the database."""

    reply: WorkerReply
    changes: Sequence[Change]
