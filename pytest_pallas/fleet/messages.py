"""Messages between the controller and the workers of a fleet, as JSON.

Reports of pytest hold tuples, which JSON does not know, and may hold objects of plugins, which
become their repr.
"""

from __future__ import annotations

import base64
import importlib
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from pytest_pallas.fleet.project import Difference, Project, ProjectFile
from pytest_pallas.isolation.messages import Part

#: A change of the database of failing examples; see ``database.recorded``.
type Change = tuple[str, str, str]


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
    args: Sequence[str]
    folder: str
    options: Mapping[str, Any]
    gigabytes: float
    environment: Mapping[str, str]
    project: Project
    examples: Mapping[str, bytes] | None = None
    goldens: str = ""


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

    nodeid: str
    path: str | None
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
    raised: Mapping[str, tuple[str, str, bool]] = field(default_factory=dict[str, Any])
    changes: Sequence[Change] = ()
    most: int = 0


@dataclass(frozen=True, kw_only=True)
class Death:
    """The end of the process that ran a test; the fields are those of ``workers.JobResult``."""

    status: str
    message: str = ""
    fate: str = ""
    output: str = ""
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
    reports: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[Mapping[str, Any]] = ()
    hazards: Sequence[str] | None = None
    stained: bool = False
    lost_places: Mapping[str, str] = field(default_factory=dict[str, str])
    exit: tuple[str, int | None] | None = None
    changes: Sequence[Change] = ()
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    goldens: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
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
    problem: str = ""
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


def decoded(text: str) -> Any:
    """The message from ``encoded``."""
    return json.loads(text, object_hook=_object)


def from_plain(value: Mapping[str, Any]) -> Any:
    """The message from ``to_plain``."""
    return decoded(json.dumps(value))


def to_plain(value: Any) -> Any:
    """A message, or a value in one, as JSON values; what JSON lacks is an object with one name."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, bytes):
        return {"bytes": base64.b64encode(value).decode()}
    if type(value).__name__ in _TYPES:
        own = {each.name: to_plain(getattr(value, each.name)) for each in fields(value)}
        return {"message": type(value).__name__, "fields": {"table": [*own.items()]}}
    if isinstance(value, dict | Mapping):
        return {"table": [[to_plain(key), to_plain(each)] for key, each in value.items()]}
    if isinstance(value, tuple):
        return {"tuple": [to_plain(each) for each in value]}
    if isinstance(value, list):
        return [to_plain(each) for each in value]
    return repr(value)


def _object(found: dict[str, Any]) -> Any:
    match found:
        case {"bytes": text}:
            return base64.b64decode(text)
        case {"tuple": values}:
            return tuple(values)
        case {"table": pairs}:
            return dict(pairs)
        case {"message": name, "fields": values}:
            return _TYPES[name](**values)
        case _:
            raise ValueError(f"{sorted(found)}: no object of a message")


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
    """The arguments from ``plain_warning``. A category that is not known here is a ``Warning``."""
    category: Any = Warning
    try:
        category = importlib.import_module(plain["module"])
        for part in plain["category"].split("."):
            category = getattr(category, part)
    except (ImportError, AttributeError):
        category = Warning
    message: Any = warnings.WarningMessage(
        plain["text"], category, plain["filename"], plain["lineno"]
    )
    return {
        "warning_message": message,
        **{name: plain[name] for name in ("when", "nodeid", "location")},
    }
