"""Messages to and from the processes of a gang, and between its hosts.

A process gets ``Start`` once, and answers with ``Collected``. It gets ``RunTest`` for each test,
and answers with ``TestEnd``. The hosts exchange lists of ``Collected``, ``StartFailure`` and
``TestEnd``. ``isolate.messages`` encodes all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pallas_sim.findings import Text
from pytest_pallas.compat.distributed import Place
from pytest_pallas.decoding import Exact, Seconds
from pytest_pallas.distribute.reports import PlainReport, checked_report
from pytest_pallas.isolate.messages import Opening, WorkerReply, decoded, message
from pytest_pallas.record import NotApplicable
from pytest_pallas.results import Location
from pytest_pallas.workers.process import JobResult

#: The module of the processes, and their entry; see ``workers.WorkerSetup``.
MODULE = "pytest_pallas.distribute.gang.process"
ENTRY = f"{MODULE}:serve"

message(Place)
message(NotApplicable)

#: The attribute of a report with the processes whose failure made the test fail in this one.
BECAUSE = "pallas_because_of"


@message
@dataclass(frozen=True, kw_only=True)
class Start:
    """The first message to a process: join the program, and collect.

    Attributes:
      position: its place in the program.
      opening: the configuration of its session.
      seconds: time limit for all processes to join, and then to collect.
    """

    position: Place
    opening: Opening
    seconds: float


@message
@dataclass(frozen=True, kw_only=True)
class Collected:
    """What a process has collected.

    Attributes:
      tests: node id and location of each test, in order.
      problem: why the gang cannot run: another process collected other tests, an option is wrong.
      reports: failed reports of collection, from ``pytest_report_to_serializable``.
      backends: labels of the selected backends.
      not_applicable: checks that do not apply.
      shard: the line about a shard, and whether it is empty.
      timeout: the largest time limit of a test, in seconds for one step of a kernel.
    """

    tests: Sequence[tuple[Exact, Location]] = ()
    problem: Text = ""
    reports: Sequence[PlainReport] = ()
    backends: Sequence[str] = ()
    not_applicable: Sequence[NotApplicable] = ()
    shard: tuple[str, bool] = ("", False)
    timeout: Seconds = 0.0


@message
@dataclass(frozen=True, kw_only=True)
class RunTest:
    """Run a test, together with all other processes.

    Attributes:
      nodeid: its node id.
      key: a new one for each time that a test is run.
      raised: the kernels that raised in earlier tests, as in ``PytestSession``.
    """

    nodeid: Exact
    key: str
    raised: Mapping[Exact, tuple[Exact, Exact, bool]]


@message
@dataclass(frozen=True, kw_only=True)
class TestEnd(WorkerReply):
    """The end of a test in one process: its reply, if it gave one.

    Attributes:
      process: the number of the process.
      host: the name of its host.
      absent: the message if other processes did not come to the beginning of the test.
      died: how the process ended, or None.
      stopped: whether it was killed because another process had failed or died.
    """

    __test__ = False  # not a class of tests

    process: int
    host: str
    absent: Text = ""
    died: JobResult | None = None
    stopped: bool = False


@message
@dataclass(frozen=True, kw_only=True)
class StartFailure:
    """A process that cannot run tests.

    Attributes:
      process: its number.
      host: the name of its host.
      reason: why.
      step: how far it came: an index of ``STEPS``.
    """

    process: int
    host: str
    reason: Text
    step: int


#: The steps of a start, as in ``StepNote.step``.
STEPS = ("", "joining", "start", "collection", "done")


def of_host(kind: Any, body: bytes) -> list[Any]:
    """Decode the list of messages of another host; ``list[kind]`` was encoded.

    Raises:
      DataError: it is no such list, or a report in it cannot be shown.
    """
    messages: list[Any] = decoded(list[kind], body)
    return [_checked(entry) if isinstance(entry, TestEnd) else entry for entry in messages]


def _checked(end: TestEnd) -> TestEnd:
    """Check the reports of a test; each host has the warnings of its own processes only."""
    return replace(end, reports=list(map(checked_report, end.reports)), warnings=())
