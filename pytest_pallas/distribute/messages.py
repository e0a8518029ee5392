"""Messages to and from the processes of a gang, between its hosts, and to the workers of a fleet.

A process of a gang gets ``Start`` once, and answers with ``Collected``. It gets ``RunTest`` for
each test, and answers with ``TestEnd``. The hosts exchange lists of ``Collected``, ``StartFailure``
and ``TestEnd``. A worker of a fleet gets a ``RunSetup`` and a ``FleetTask``, and answers with an
``Answer``.

``PlainReport`` is the schema of a serialized report of pytest in them. The functions at the end are
what merging needs, be it of the parts of an item (``parts``), of the processes of a gang
(``gang.merging``), or of an earlier run (``resume``): new reports, and the records on them.
``isolate.messages`` encodes all of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Required, TypedDict

import pytest

from pallas_sim.findings import Text
from pytest_pallas.compat.distributed import Place
from pytest_pallas.compat.testing import can_be_shown
from pytest_pallas.decoding import (
    Accepts,
    AsWritten,
    Checked,
    DataError,
    Exact,
    Matching,
    Seconds,
    decode,
)
from pytest_pallas.isolate.messages import (
    Change,
    Difference,
    Opening,
    Project,
    WorkerReply,
    WorkerRequest,
    message,
)
from pytest_pallas.pytest_session import PART_RESULT, RECORDS
from pytest_pallas.record import NotApplicable, Record, to_json
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
    reports: Sequence[PlainReport] = ()
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


# Of a fleet.


#: The name of a file in a folder of goldens; see ``goldens.store``.
GOLDEN = Matching(
    r"goldens/[0-9a-f]{64}\.json|tensors/[0-9a-f]{64}\.safetensors", "the name of a golden"
)

#: The name of a file in a database of examples.
_EXAMPLE = Matching(r"[\w-]+(/[\w-]+)*", "the name of an example")


@message
@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """What a worker must know of a run, before its first task.

    Attributes:
      run: the name of the run.
      args: the command line of pytest.
      folder: the working folder of the controller.
      options: changes of the options of the command line.
      gigabytes: memory limit of a test, in GiB.
      environment: variables of the processes that run tests.
      project: versions and files of the controller.
      examples: files of its database of failing examples, by path; None if workers open it.
      goldens: the folder in which tests record goldens, seen from the working folder; or "".
    """

    run: str
    args: Sequence[Exact]
    folder: Exact
    options: Mapping[str, Annotated[Any, AsWritten()]]
    gigabytes: float
    environment: Mapping[Exact, Exact]
    project: Project
    examples: Mapping[Annotated[str, _EXAMPLE], bytes] | None = None
    goldens: Exact = ""


@message
@dataclass(frozen=True, kw_only=True)
class FleetTask:
    """Tests that a worker runs one after the other: those of one kernel.

    Attributes:
      key: the name of the task.
      tests: the tests. The worker sets the other fields: the opening, what earlier tests have
        changed, and the file of a ``journal`` where that is not None.
      raised: the kernels that raised in earlier tests; see ``PytestSession``.
      changes: changes of the database by earlier tests of the kernel.
      most: number of failures after which it stops; 0 for no limit.
    """

    key: str
    tests: Sequence[WorkerRequest]
    raised: Mapping[Exact, tuple[Exact, Exact, bool]] = field(default_factory=dict[str, Any])
    changes: Sequence[Change] = ()
    most: int = 0


@message
@dataclass(frozen=True, kw_only=True)
class TestResult(WorkerReply):
    """The result of a test: the reply of the process that ran it, or the end of that process.

    Attributes:
      nodeid: its node id.
      files: contents of the files that the test wrote, by their path on the worker.
      goldens: the same for goldens, by their path in the folder of goldens.
      death: the end of its process; None if it replied.
    """

    __test__ = False

    nodeid: str
    reports: Sequence[PlainReport] = ()
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    goldens: Mapping[Annotated[str, GOLDEN], bytes] = field(default_factory=dict[str, bytes])
    death: JobResult | None = None


@message
@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a worker makes of a task, or of the question whether it can take part.

    Attributes:
      worker: its name in messages: address, host and process.
      results: of the tests that it ran, in order.
      differences: how it differs from the controller; such a worker runs nothing.
      problem: why it cannot run tests of this project; or "".
      before: the worker that had this task before, and was lost; "" for the first one.
    """

    worker: str
    results: Sequence[TestResult] = ()
    differences: Sequence[Difference] = ()
    problem: Text = ""
    before: str = ""

    @property
    def refused(self) -> str:
        """Why the worker cannot take part; "" if it can."""
        return self.problem or "; ".join(map(str, self.differences))


# Reports of pytest in messages, and those that are made here in place of others.


def checked_result(plain: Any) -> Mapping[str, Any]:
    """Check the result of a part of an item as plain values, and return it.

    Raises:
      DataError: it is no such result.
    """
    # late: they import JAX, which the reporting process of a gang does not need
    if isinstance(plain, dict) and plain.get("kind") == "mutants":
        from pytest_pallas.mutate.item import MutantsPart

        decode(MutantsPart, plain)
    else:
        from pytest_pallas.run.rounds import RoundsPart

        decode(RoundsPart, plain)
    return plain


class _ReportFields(TypedDict, total=False):
    """What a report of pytest has, and what the plugin adds, as far as code reads it."""

    nodeid: Required[str]
    outcome: Required[Literal["passed", "failed", "skipped", "rerun"]]
    when: Literal["setup", "call", "teardown", "collect", "???"] | None
    location: Location
    keywords: dict[str, Any]
    duration: Seconds
    sections: list[tuple[str, Text]]
    user_properties: list[tuple[str, Any]]
    wasxfail: Text
    pallas_records: list[Annotated[dict[str, Any], Checked(lambda: Record)]]
    pallas_part: Annotated[Any, Accepts(checked_result)]
    pallas_raised: tuple[str, str, str, bool]
    pallas_status: str
    pallas_because_of: list[int]


def checked_report(plain: Any) -> dict[str, Any]:
    """Check a serialized report of pytest from a file or another machine, and return it.

    Raises:
      DataError: it is no such report, or pytest cannot print it.
    """
    report: dict[str, Any] = decode(dict[str, Any], plain)
    known = _ReportFields.__annotations__
    own = {name: value for name, value in report.items() if name in known}
    decode(_ReportFields, own)
    kind = pytest.CollectReport if report.get("when") == "collect" else pytest.TestReport
    for name in report:
        # pytest makes attributes of what it does not know
        if name not in known and (hasattr(kind, name) or name == "node"):
            raise DataError(f"has the field {name!r}, which no report of pytest has")
    if not can_be_shown(report):
        raise DataError("is no report of pytest")
    return report


#: A serialized report of pytest, in a message.
PlainReport = Annotated[Any, Accepts(checked_report)]


def new_report(
    nodeid: str,
    location: Location,
    when: Any,
    outcome: Any,
    longrepr: Any = None,
    *,
    sections: Sequence[tuple[str, str]] = (),
    seconds: float = 0.0,
) -> pytest.TestReport:
    """Make a report of a phase that nothing ran in this process."""
    return pytest.TestReport(
        nodeid=nodeid,
        location=location,
        keywords={},
        outcome=outcome,
        longrepr=longrepr,
        when=when,
        sections=list(sections),
        duration=seconds,
    )


def put_records(report: pytest.TestReport, records: Iterable[Record]) -> None:
    """Put records on a report, in place of those that it has."""
    setattr(report, RECORDS, [to_json(record) for record in records])


def first_attribute(reports: Iterable[pytest.TestReport], name: str, otherwise: Any) -> Any:
    """Return an attribute of the plugin, of the first report that has it."""
    return next((getattr(report, name) for report in reports if hasattr(report, name)), otherwise)


def take_part_result(reports: Iterable[pytest.TestReport]) -> Mapping[str, Any] | None:
    """Remove the result of a part from its reports, and return it; None if there is none."""
    return next(
        (vars(report).pop(PART_RESULT) for report in reports if hasattr(report, PART_RESULT)), None
    )
