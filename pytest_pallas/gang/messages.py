"""Messages to and from the processes of a gang, and between its hosts."""

from __future__ import annotations

import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas.compat.coordination import Place
from pytest_pallas.devices.agreement import Member
from pytest_pallas.isolation.messages import Opening, WorkerReply
from pytest_pallas.workers import JobResult

#: The attribute of a report with the processes whose failure made the test fail in this one.
BECAUSE = "pallas_because_of"


@dataclass(frozen=True, kw_only=True)
class Start:
    """The first message to a process: join the program, and collect.

    Attributes:
      place: its place in the program.
      member: the same for the tests, with the names of hosts.
      opening: the configuration of its session.
      seconds: time limit for all processes to join, and then to collect.
    """

    place: Place
    member: Member
    opening: Opening
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a process has collected.

    Attributes:
      tests: node id and location of each test, in order.
      problem: why the gang cannot run: another process collected other tests, an option is wrong.
      reports: failed reports of collection, from ``pytest_report_to_serializable``.
      backends: labels of the selected backends.
      not_applicable: checks that do not apply, from ``record.plain_not_applicable``.
      shard: the line about a shard, and whether it is empty.
      devices: the number of devices of the whole gang.
    """

    tests: Sequence[tuple[str, tuple[str, int | None, str]]] = ()
    problem: str = ""
    reports: Sequence[Mapping[str, Any]] = ()
    backends: Sequence[str] = ()
    not_applicable: Sequence[Mapping[str, Any]] = ()
    shard: tuple[str, bool] = ("", False)
    devices: int = 0


@dataclass(frozen=True, kw_only=True)
class RunTest:
    """Run a test, together with all other processes.

    Attributes:
      nodeid: its node id.
      key: a new one for each time that a test is run.
      timeout: time limit in seconds for one step of a kernel.
    """

    nodeid: str
    key: str
    timeout: float


@dataclass(frozen=True, kw_only=True)
class TestEnd:
    """The end of a test in one process.

    Attributes:
      process: the number of the process.
      host: the name of its host.
      reply: its reports; None if there is none.
      absent: processes that did not come to the beginning of the test, and their hosts.
      died: how the process ended, or None.
      stopped: whether it was killed because another process had failed or died.
    """

    __test__ = False  # not a class of tests

    process: int
    host: str
    reply: WorkerReply | None = None
    absent: Mapping[int, str] = field(default_factory=dict[int, str])
    died: JobResult | None = None
    stopped: bool = False


def packed(message: Any) -> bytes:
    """A message as bytes, for a process of the same user."""
    return pickle.dumps(message)


def unpacked(body: bytes) -> Any:
    """The message."""
    return pickle.loads(body)
