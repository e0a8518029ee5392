"""Messages to and from the processes of a gang, and between its hosts.

Those between hosts, and those to a process, are JSON, read by their types. What a process replies
to the host that has started it is a pickle, which comes over a pipe of the two.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pallas_sim.findings import Text
from pytest_pallas.compat.distributed import Place
from pytest_pallas.decoding import DataError, Exact, Seconds, decode, parse, tagged, untagged
from pytest_pallas.isolate.messages import Opening, WorkerReply
from pytest_pallas.record import NotApplicable
from pytest_pallas.report import PlainReport, checked_report
from pytest_pallas.results import Location
from pytest_pallas.workers.process import JobResult

#: The entry of the processes; see ``workers.WorkerSetup``.
ENTRY = "pytest_pallas.distribute.gang.process:serve"

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
    each.__name__: each
    for each in (TestEnd, Collected, StartFailure, NotApplicable, WorkerReply, JobResult)
}


def to_json(messages: Sequence[TestEnd | Collected | StartFailure | str]) -> bytes:
    """Messages for another host; what JSON has no form for becomes its repr.

    Warnings are left out, because each host has those of its own processes only.
    """
    return json.dumps([tagged(_lean(each), _TYPES, repr) for each in messages]).encode()


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
    found = untagged(parse(body), _TYPES)
    if not isinstance(found, list) or not all(map(_is_message, found)):  # pyright: ignore[reportUnknownArgumentType]
        raise DataError("has no messages of a host")
    return [_checked(each) for each in found]  # pyright: ignore[reportUnknownVariableType]


def _is_message(value: Any) -> bool:
    return isinstance(value, TestEnd | Collected | StartFailure | str)


def _checked(message: Any) -> Any:
    """A message whose text and reports are fit to be shown."""
    if isinstance(message, str):
        return decode(str, message)
    if isinstance(message, TestEnd) and message.reply is not None:
        reports = [checked_report(each) for each in message.reply.reports]
        return replace(message, reply=replace(message.reply, reports=reports, warnings=()))
    return message


_REQUESTS = {each.__name__: each for each in (Start, RunTest, Place, Opening)}


def request_to_json(message: Start | RunTest) -> bytes:
    """A message to a process."""
    return json.dumps(tagged(message, _REQUESTS)).encode()


def request_from_json(body: bytes) -> Start | RunTest:
    """The message from ``request_to_json``.

    Raises:
      DataError: it is none.
    """
    return decode(Start | RunTest, untagged(parse(body), _REQUESTS))


def packed(reply: Collected | tuple[str, WorkerReply | None]) -> bytes:
    """The reply of a process as bytes."""
    return pickle.dumps(reply)


def unpacked(body: bytes) -> Any:
    """The reply, of a process that this one has started."""
    return pickle.loads(body)
