"""Messages to and from the processes of a gang, and between its hosts.

A process gets ``Start`` once and ``RunTest`` for each test: JSON, read by its type. It replies with
``Collected``, and with a message about absent processes and its ``WorkerReply``: pickles (see
``isolate.messages``). The hosts exchange lists of ``Collected``, ``StartFailure`` and ``TestEnd``:
JSON again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from pallas_sim.findings import Text
from pytest_pallas.compat.distributed import Place
from pytest_pallas.decoding import DataError, Exact, Seconds, decode, parse, tagged, untagged
from pytest_pallas.distribute.reports import PlainReport, checked_report
from pytest_pallas.isolate.messages import Opening, WorkerReply
from pytest_pallas.record import NotApplicable
from pytest_pallas.results import Location
from pytest_pallas.workers.process import JobResult

#: The module of the processes, and their entry; see ``workers.WorkerSetup``.
MODULE = "pytest_pallas.distribute.gang.process"
ENTRY = f"{MODULE}:serve"

#: The attribute of a report with the processes whose failure made the test fail in this one.
BECAUSE = "pallas_because_of"


@dataclass(frozen=True, kw_only=True)
class Start:
    """The first message to a process: join the program, and collect.

    Attributes:
      place: its place in the program.
      opening: the configuration of its session.
      seconds: time limit for all processes to join, and then to collect.
    """

    place: Place
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


@dataclass(frozen=True, kw_only=True)
class TestEnd:
    """The end of a test in one process.

    Attributes:
      process: the number of the process.
      host: the name of its host.
      reply: its reports; None if there is none.
      absent: the message if other processes did not come to the beginning of the test.
      died: how the process ended, or None.
      stopped: whether it was killed because another process had failed or died.
    """

    __test__ = False  # not a class of tests

    process: int
    host: str
    reply: WorkerReply | None = None
    absent: Text = ""
    died: JobResult | None = None
    stopped: bool = False


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


#: What hosts tell each other, by name.
_TYPES = {
    kind.__name__: kind
    for kind in (TestEnd, Collected, StartFailure, NotApplicable, WorkerReply, JobResult)
}


def to_json(messages: Sequence[TestEnd | Collected | StartFailure | str]) -> bytes:
    """Messages for another host; what JSON has no form for becomes its repr.

    Warnings are left out, because each host has those of its own processes only.
    """
    return json.dumps([tagged(_lean(message), _TYPES, repr) for message in messages]).encode()


def _lean(message: TestEnd | Collected | StartFailure | str) -> Any:
    if not isinstance(message, TestEnd) or message.reply is None:
        return message
    reply = WorkerReply(reports=message.reply.reports, exit=message.reply.exit)
    return replace(message, reply=reply)


def from_json(body: bytes) -> list[Any]:
    """The messages from ``to_json``.

    Raises:
      DataError: they are none.
    """
    plain: Any = untagged(parse(body), _TYPES)
    if not isinstance(plain, list):
        raise DataError("has no messages of a host")
    return list(map(_checked, cast("list[Any]", plain)))


def _checked(message: Any) -> Any:
    """Check that text and reports of a message are fit to be shown."""
    match message:
        case str():
            return decode(str, message)
        case TestEnd(reply=WorkerReply() as reply):
            reports = [checked_report(report) for report in reply.reports]
            return replace(message, reply=replace(reply, reports=reports, warnings=()))
        case TestEnd() | Collected() | StartFailure():
            return message
        case _:
            raise DataError("has no messages of a host")


_REQUESTS = {kind.__name__: kind for kind in (Start, RunTest, Place, Opening)}


def request_to_json(message: Start | RunTest) -> bytes:
    """A message to a process."""
    return json.dumps(tagged(message, _REQUESTS)).encode()


def request_from_json(body: bytes) -> Start | RunTest:
    """The message from ``request_to_json``.

    Raises:
      DataError: it is none.
    """
    return decode(Start | RunTest, untagged(parse(body), _REQUESTS))
