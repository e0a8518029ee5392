"""Messages between the controller and the workers of a fleet, as JSON.

Reports of pytest hold tuples, which JSON does not know, and may hold objects of plugins, which
become their repr. A message is read by its type (``decoding``), wherever it comes from: a worker,
or the file of a run that is taken up. Nothing of it is executed or imported. (Dask itself executes
what it is sent: see docs/fleet.md.)
"""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Annotated, Any, Literal

from pallas_sim.findings import Text
from pytest_pallas.decoding import Accepts, AsWritten, Exact, Matching, decode, parse, tagged
from pytest_pallas.decoding import untagged as _untagged
from pytest_pallas.distribute.fleet.project import Difference, Project, ProjectFile
from pytest_pallas.isolate.messages import Change, WorkerRequest
from pytest_pallas.pytest_session import Part
from pytest_pallas.report import PlainReport

#: The name of a file in a folder of goldens; see ``goldens.store``.
GOLDEN = Matching(
    r"goldens/[0-9a-f]{64}\.json|tensors/[0-9a-f]{64}\.safetensors", "the name of a golden"
)


#: The name of a file in a database of examples.
_EXAMPLE = Matching(r"[\w-]+(/[\w-]+)*", "the name of an example")


def checked_warning(plain: Any) -> dict[str, Any]:
    """A warning from ``plain_warning``, if it is one.

    Raises:
      DataError: it is none.
    """
    found: PlainWarning = decode(PlainWarning, plain)
    return vars(found)


@dataclass(frozen=True, kw_only=True)
class PlainWarning:
    """The arguments of ``pytest_warning_recorded`` as plain values."""

    text: Text
    module: str
    category: str
    filename: str
    lineno: int
    when: Literal["config", "collect", "runtest"]
    nodeid: str
    location: tuple[str, int, str] | None


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


@dataclass(frozen=True, kw_only=True)
class TestRequest:
    """A test of a task.

    Attributes:
      nodeid: its node id.
      path: its file, seen from pytest's root folder if it is in it; None if it comes from a hook.
      timeout: time limit in seconds for one step of a kernel.
      seconds: time to fuzz or for mutants; None for no limit.
      mutates: whether it runs mutants.
      part: the part of it to run; None for the whole.
    """

    __test__ = False

    nodeid: Exact
    path: Exact | None
    timeout: float
    seconds: float | None = None
    mutates: bool = False
    part: Part | None = None


@dataclass(frozen=True, kw_only=True)
class Task:
    """Tests that a worker runs one after the other: those of one kernel.

    Attributes:
      key: the name of the task.
      tests: the tests.
      raised: the kernels that raised in earlier tests; see ``PytestSession``.
      changes: changes of the database by earlier tests of the kernel.
      most: number of failures after which it stops; 0 for no limit.
    """

    key: str
    tests: Sequence[TestRequest]
    raised: Mapping[Exact, tuple[Exact, Exact, bool]] = field(default_factory=dict[str, Any])
    changes: Sequence[Change] = ()
    most: int = 0


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of the process that ran a test; the fields are those of ``workers.JobResult``."""

    status: str
    message: Text = ""
    fate: Text = ""
    output: Text = ""
    started: bool = True
    note: bytes = b""
    silence: float = 0.0


@dataclass(frozen=True, kw_only=True)
class TestResult:
    """The result of a test: a reply, or the end of its process.

    Attributes:
      nodeid: its node id.
      reports: from ``pytest_report_to_serializable``.
      warnings: from ``plain_warning``.
      hazards, stained, lost_places, exit: as in ``isolation.messages.WorkerReply``.
      changes: changes of the database of failing examples, with those of earlier tests.
      files: contents of the files that the test wrote, by their path on the worker.
      goldens: the same for goldens, by their path in the folder of goldens.
      death: the end of its process; None if it replied.
    """

    __test__ = False

    nodeid: str
    reports: Sequence[PlainReport] = ()
    warnings: Sequence[Annotated[Any, Accepts(checked_warning)]] = ()
    hazards: Sequence[str] | None = None
    stained: bool = False
    lost_places: Mapping[str, Text] = field(default_factory=dict[str, str])
    exit: tuple[Text, int | None] | None = None
    changes: Sequence[Change] = ()
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    goldens: Mapping[Annotated[str, GOLDEN], bytes] = field(default_factory=dict[str, bytes])
    death: Death | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a worker makes of a task, or of the question whether it can take part.

    Attributes:
      worker: its address, host and process, in words.
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


type Message = RunSetup | Task | Answer

_TYPES: Mapping[str, type[Any]] = {
    each.__name__: each
    for each in (
        *(RunSetup, Task, TestRequest, Answer, TestResult, Death),
        *(Project, ProjectFile, Difference, Part),
    )
}


def encoded(message: Message) -> str:
    """A message as JSON."""
    return json.dumps(to_plain(message), ensure_ascii=False)


def decoded[T](kind: type[T], text: str) -> T:
    """The message of a kind from ``encoded``.

    Raises:
      DataError: it is none.
    """
    return from_plain(kind, parse(text))


def from_plain[T](
    kind: type[T], value: Any, more: Mapping[str, type[Any]] = MappingProxyType({})
) -> T:
    """The message of a kind from ``to_plain``.

    Raises:
      DataError: it is none.
    """
    return decode(kind, _untagged(value, {**_TYPES, **more}))


def to_plain(value: Any, more: Mapping[str, type[Any]] = MappingProxyType({})) -> Any:
    """A message, or a value in one, as JSON values; other objects become their repr.

    Args:
      value: the message.
      more: dataclasses that may be in it, by name, besides those of this module.
    """
    return tagged(value, {**_TYPES, **more}, repr)


def plain_warning(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``pytest_warning_recorded`` as plain values."""
    found = arguments["warning_message"]
    return {
        "text": str(found.message),
        "module": found.category.__module__,
        "category": found.category.__qualname__,
        "filename": found.filename,
        "lineno": found.lineno,
        **{name: arguments[name] for name in ("when", "nodeid", "location")},
    }


def warning_of(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments from ``plain_warning``. A category that is not loaded here is a ``Warning``."""
    category: Any = sys.modules.get(plain["module"])
    for part in plain["category"].split("."):
        category = vars(category).get(part) if hasattr(category, "__dict__") else None
    if not (isinstance(category, type) and issubclass(category, Warning)):
        category = Warning
    message: Any = warnings.WarningMessage(
        plain["text"], category, plain["filename"], plain["lineno"]
    )
    return {
        "warning_message": message,
        **{name: plain[name] for name in ("when", "nodeid", "location")},
    }


# Messages between a worker of a fleet and its child process, which runs the tests: JSON, too.


#: The entry of the processes; see ``workers.WorkerSetup``.
ENTRY = "pytest_pallas.distribute.fleet.child:serve"


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
_CHILD_TYPES = {each.__name__: each for each in _KINDS}


def child_message(message: ProjectQuestion | ChildRequest | ChildReply) -> bytes:
    """A message as bytes."""
    return json.dumps(to_plain(message, _CHILD_TYPES)).encode()


def of_child[T](kind: type[T], body: bytes) -> T:
    """The message of a kind from ``child_message``.

    Raises:
      DataError: it is none.
    """
    return from_plain(kind, parse(body), _CHILD_TYPES)
