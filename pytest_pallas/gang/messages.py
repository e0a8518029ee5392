"""Messages to and from the processes of a gang, and between its hosts."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.compat.distributed import Place
from pytest_pallas.isolation.messages import Opening, WorkerReply
from pytest_pallas.workers import JobResult

#: The entry of the processes; see ``workers.WorkerSetup``.
ENTRY = "pytest_pallas.gang.process:serve"

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
      not_applicable: checks that do not apply, from ``record.plain_not_applicable``.
      shard: the line about a shard, and whether it is empty.
      timeout: the largest time limit of a test, in seconds for one step of a kernel.
    """

    tests: Sequence[tuple[str, tuple[str, int | None, str]]] = ()
    problem: str = ""
    reports: Sequence[Mapping[str, Any]] = ()
    backends: Sequence[str] = ()
    not_applicable: Sequence[Mapping[str, Any]] = ()
    shard: tuple[str, bool] = ("", False)
    timeout: float = 0.0


@dataclass(frozen=True, kw_only=True)
class RunTest:
    """Run a test, together with all other processes.

    Attributes:
      nodeid: its node id.
      key: a new one for each time that a test is run.
      raised: the kernels that raised in earlier tests, as in ``PytestSession``.
    """

    nodeid: str
    key: str
    raised: Mapping[str, tuple[str, str, bool]]


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
    absent: str = ""
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
    reason: str
    step: int


#: The steps of a start, as in ``StepNote.step``.
STEPS = ("", "joining", "start", "collection", "done")


def to_json(messages: Sequence[TestEnd | Collected | StartFailure | str]) -> bytes:
    """Messages for another host; what JSON has no form for becomes its repr.

    Warnings are left out, because each host has those of its own processes only.
    """
    plain = [
        [type(each).__name__, each if isinstance(each, str) else _plain(each)] for each in messages
    ]
    return json.dumps(plain, default=repr).encode()


def from_json(body: bytes) -> list[Any]:
    """The messages from ``to_json``."""
    return [values if kind == "str" else _KINDS[kind](values) for kind, values in json.loads(body)]


def _plain(message: TestEnd | Collected | StartFailure) -> dict[str, Any]:
    values = dict(vars(message))
    if isinstance(message, TestEnd):
        if message.died is not None:
            note = message.died.note.decode()
            values["died"] = {**vars(message.died), "value": "", "note": note}
        if message.reply is not None:
            values["reply"] = {"reports": message.reply.reports, "exit": message.reply.exit}
    return values


def _test_end(values: dict[str, Any]) -> TestEnd:
    if (died := values["died"]) is not None:
        died |= {"value": b"", "note": died["note"].encode()}
        values["died"] = JobResult(**died)
    if (reply := values["reply"]) is not None:
        exited = reply["exit"] and tuple(reply["exit"])
        values["reply"] = WorkerReply(reports=reply["reports"], exit=exited)
    return TestEnd(**values)


def _collected(values: dict[str, Any]) -> Collected:
    values["tests"] = [(name, tuple(location)) for name, location in values["tests"]]
    values["shard"] = tuple(values["shard"])
    return Collected(**values)


_KINDS: Mapping[str, Callable[[dict[str, Any]], Any]] = {
    "TestEnd": _test_end,
    "Collected": _collected,
    "StartFailure": lambda values: StartFailure(**values),
}


def packed(message: Any) -> bytes:
    """A message as bytes, for a process of the same user."""
    return pickle.dumps(message)


def unpacked(body: bytes) -> Any:
    """The message."""
    return pickle.loads(body)
