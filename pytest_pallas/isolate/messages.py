"""What processes tell each other about tests, and the one encoding of all such messages.

A message is a dataclass that is registered by ``message``. ``encoded`` makes JSON of it, and
``decoded`` reads it by its type, wherever it comes from: a child process, a worker of a fleet,
another host, the journal of a run that is taken up. Nothing of it is executed or imported.

Here are the messages of a process that runs tests for another one on this machine: read
``WorkerRequest`` and ``WorkerReply`` first. ``worker`` answers, ``supervise`` asks.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import platform
import sys
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest

from pallas_sim.findings import Text
from pytest_pallas.backends.registry import DeviceFacts
from pytest_pallas.decoding import (
    AsWritten,
    Count,
    DataError,
    Exact,
    Matching,
    decode,
    parse,
    tagged,
    untagged,
)
from pytest_pallas.pytest_session import Part
from pytest_pallas.session import SpecFacts
from pytest_pallas.tested import installed_version
from pytest_pallas.workers.process import JobResult

#: The distributions that decide what a test computes.
_PACKAGES = ("jax", "jaxlib", "pytest-pallas", "numpy", "ml_dtypes", "hypothesis", "pytest")


@dataclass(frozen=True)
class ProjectFile:
    """A file of a project.

    Attributes:
      package: the importable name of the installed package that it is in; "" for a file in
        pytest's root folder.
      path: seen from the folder of the package, or from the root folder.
      digest: of its content.
    """

    package: str
    path: str
    digest: str

    def __str__(self) -> str:
        """Return its path, as messages name it."""
        return f"{self.package}/{self.path}" if self.package else self.path


@dataclass(frozen=True)
class Project:
    """A project on one machine.

    Attributes:
      versions: of Python and the packages that decide what a test computes, by name.
      files: its files.
    """

    versions: Mapping[str, str]
    files: Sequence[ProjectFile]


@dataclass(frozen=True)
class Difference:
    """Something that a process has in another version, or not at all.

    Attributes:
      name: of a package, or the path of a file.
      own: version or digest that it has; "" if it has none.
      expected: that of the process that asks.
    """

    name: str
    own: str
    expected: str
    is_file: bool = False

    def __str__(self) -> str:
        """Describe it."""
        if not self.own:
            return f"{self.name} is missing"
        if self.is_file:
            return f"{self.name} has another content"
        return f"{self.name} is {self.own}, here {self.expected}"


def versions() -> dict[str, str]:
    """Return the versions of this process, by name; "" for a package that is not installed."""
    python = ".".join(platform.python_version_tuple()[:2])
    return {"python": python, **{name: installed_version(name) for name in _PACKAGES}}


def project_of(
    root: Path, files: Iterable[Path], suites: Iterable[tuple[str, Sequence[Path]]]
) -> Project:
    """Describe the project of a session after its collection.

    Its files are those of the suites, and what the collection has imported from pytest's root
    folder: test modules, conftest.py, and the modules that they import.

    Args:
      root: pytest's root folder.
      files: those of the collected tests, and of all plugins.
      suites: the importable name of each suite, and its files and folders.
    """
    imported = [getattr(module, "__file__", None) for module in list(sys.modules.values())]
    sources = [Path(file) for file in imported if isinstance(file, str) and file.endswith(".py")]
    digests: dict[tuple[str, str], str] = {}
    for file_path in {*files, *sources}:
        if _in_project(file_path, root) and file_path.is_file():
            digests["", file_path.relative_to(root).as_posix()] = digest_of(file_path)
    for module, paths in suites:
        package = module.partition(".")[0]
        folder = _folder_of(package)
        for path in paths:
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                if folder is None or not file.is_relative_to(folder):
                    continue
                name, base = ("", root) if _in_project(file, root) else (package, folder)
                digests[name, file.relative_to(base).as_posix()] = digest_of(file)
    return Project(versions(), [ProjectFile(*key, digests[key]) for key in sorted(digests)])


def differences(project: Project, root: Path) -> list[Difference]:
    """List how this process differs from a project of another one.

    Args:
      project: of the other process.
      root: pytest's root folder here.
    """
    own = versions()
    differing = [
        Difference(name, own.get(name, ""), expected)
        for name, expected in project.versions.items()
        if own.get(name, "") != expected
    ]
    for file in project.files:
        folder = root if not file.package else _folder_of(file.package)
        path = None if folder is None else folder / file.path
        digest = digest_of(path) if path is not None and path.is_file() else ""
        if digest != file.digest:
            differing.append(Difference(str(file), digest, file.digest, is_file=True))
    return differing


def digest_of(path: Path) -> str:
    """Return a digest of a file's content, whatever its line ends."""
    content = path.read_bytes().replace(b"\r\n", b"\n")
    return hashlib.sha256(content).hexdigest()[:16]


def _in_project(path: Path, root: Path) -> bool:
    """Return whether a file is in the root folder, and not in an environment in it."""
    return path.is_relative_to(root) and not any(
        part.startswith(".") or part.endswith("-packages") for part in path.relative_to(root).parts
    )


def _folder_of(package: str) -> Path | None:
    """Return the folder of an installed package, or that of a module's file."""
    try:
        spec = importlib.util.find_spec(package)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    locations = list(spec.submodule_search_locations or ())
    if locations:
        return Path(locations[0]).resolve()
    return None if spec.origin is None else Path(spec.origin).resolve().parent


#: The variable with the folder for what a worker compiles, so that it survives the worker.
PROGRAMS = "PYTEST_PALLAS_PROGRAMS"

#: The classes of messages and of their parts, by name.
_TYPES: dict[str, type[Any]] = {}


def message[T](kind: type[T]) -> type[T]:
    """Register a dataclass as a message, or as a part of one, and return it."""
    _TYPES[kind.__name__] = kind
    return kind


for _part in (DeviceFacts, Difference, JobResult, Part, Project, ProjectFile, SpecFacts):
    message(_part)


def to_plain(value: Any) -> Any:
    """Make JSON values of a message; what JSON does not know becomes its repr."""
    return tagged(value, _TYPES, repr)


def from_plain[T](kind: type[T], plain: Any) -> T:
    """Make the message of a kind from ``to_plain``.

    Raises:
      DataError: it is no such message.
    """
    return decode(kind, untagged(plain, _TYPES))


def encoded(value: Any) -> bytes:
    """Encode a message, or a list of messages, as JSON."""
    return json.dumps(to_plain(value)).encode()


def decoded[T](kind: type[T], body: bytes | str) -> T:
    """Decode the message of a kind from ``encoded``.

    Raises:
      DataError: it is no such message.
    """
    return from_plain(kind, parse(body))


@message
@dataclass(frozen=True, kw_only=True)
class Opening:
    """The configuration of a worker's session. Equal ones have equal bytes.

    Attributes:
      args: the command line of pytest.
      folder: its working directory at the start.
      options: changes of the options of the command line.
      attributes: attributes of the configuration, such as ``workerinput``.
      chooses: whether ``--lf`` and the like choose tests there.
    """

    args: Sequence[Exact]
    folder: Exact
    options: Mapping[Exact, Annotated[Any, AsWritten()]]
    attributes: Mapping[Exact, Annotated[Any, AsWritten()]]
    chooses: bool = False


_Base64 = Annotated[
    str,
    Matching("(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", "bytes in base64"),
]

#: A change of the database of failing examples, see ``database.recorded``: what, key and value.
type Change = tuple[Literal["save", "delete"], _Base64, _Base64]


@message
@dataclass(frozen=True, kw_only=True)
class WorkerRequest:
    """A test to run.

    Attributes:
      opening: an encoded ``Opening``, the same for all requests to a worker.
      nodeid: node id of the test.
      path: the file to collect, absolute or seen from pytest's root folder; None if the test comes
        from a hook.
      timeout: time limit in seconds for one step of a kernel.
      seconds: time to fuzz, with ``--pallas-fuzz-time``.
      journal: the file for the verdicts of its mutants, or None.
      raised: the kernels that raised in earlier tests, as in ``PytestSession``; None where the
        other process decides whether a test runs.
      part: the part of the item to run; None for the whole.
      killed: names of the tests and specs that killed mutants, by key, which do not run again.
      facts: what the reporting process has learned of the specs of the file; None if the worker
        learns it itself.
      learns: the spec, by file and name, whose facts the worker learns. It runs no test then.
      changes: what earlier tests of the kernel have changed in the database of failing examples.
        The test changes a database apart then; None if it uses that of the worker's session.
      examples: files of that database, by path; None to open the places of the command line.
      project: that of the process that asks; the reply says how this one differs, and no test runs.
      devices: the labels of hardware backends that must be there; None where that does not matter.
        Without a test, the reply has the devices of this process.
      blob: the only example to run; "" for all.
      following: the next test, and how many of its nodes are those of this one, from the session
        on; None to end all fixtures.
    """

    opening: bytes
    nodeid: Exact
    path: Exact | None
    timeout: float
    seconds: float | None = None
    journal: Exact | None = None
    raised: Mapping[Exact, tuple[Exact, Exact, bool]] | None = None
    part: Part | None = None
    killed: Mapping[Exact, Exact] = field(default_factory=dict[str, str])
    facts: Mapping[tuple[Exact, Exact], SpecFacts] | None = None
    learns: tuple[Exact, Exact] | None = None
    changes: Sequence[Change] | None = None
    examples: Mapping[str, bytes] | None = None
    project: Project | None = None
    devices: Sequence[Exact] | None = None
    blob: str = ""
    following: tuple[Exact, int] | None = None


@message
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


@message
@dataclass(frozen=True, kw_only=True)
class WorkerReply:
    """The result of a test.

    Attributes:
      reports: from ``pytest_report_to_serializable``; empty if there is no such test.
      warnings: what ``pytest_warning_recorded`` was told; see ``warning_of``.
      hazards: reasons to isolate its calls (``analysis.hazards``); None if it made no call.
      stained: whether it changed state of the process that could not be undone, or closed the
        files that pytest captures output in.
      lost_places: as in ``Session``.
      exit: message and status of a ``pytest.exit`` in the test.
      killed: the mutants that the test killed, as in ``WorkerRequest``.
      facts: what was learned of a spec; None if it was not found, or nothing was asked.
      changes: all changes of the database apart, with those of the request.
      differences: how the project of the worker differs.
      benchmarks: what pytest-benchmark has measured (``compat.testing.take_benchmarks``).
      devices: the devices of the worker, by the name of their backend.
      lost: whether a device failed, so that the worker can launch nothing more.
      refused: why the worker cannot run the test: it has not the devices, or a usage error.
    """

    reports: Sequence[Mapping[str, Annotated[Any, AsWritten()]]] = ()
    warnings: Sequence[PlainWarning] = ()
    hazards: Sequence[str] | None = None
    stained: bool = False
    lost_places: Mapping[str, Text] = field(default_factory=dict[str, str])
    exit: tuple[Text, int | None] | None = None
    killed: Mapping[Exact, Exact] = field(default_factory=dict[str, str])
    facts: SpecFacts | None = None
    changes: Sequence[Change] = ()
    differences: Sequence[Difference] = ()
    benchmarks: Sequence[Mapping[str, Annotated[Any, AsWritten()]]] = ()
    devices: Mapping[Exact, DeviceFacts] = field(default_factory=dict[str, DeviceFacts])
    lost: bool = False
    refused: Text = ""


#: The step of a call of a kernel.
KERNEL = "a kernel"


@dataclass(frozen=True, kw_only=True)
class StepNote:
    """The next step of a worker; the last note is the step in which it died.

    Attributes:
      step: the name of the step.
      limit: its time limit in seconds.
      kernel, check, backend, family, source, mesh: those of the example, or of the spec's test.
      examples: number of started examples, with this one.
      call: the name of the example (``draw_name``).
      sizes: of its dims, by name.
      choices: its other words, each with the role and the name of its aspect.
      drawn: the example, as names and texts of facts.
      running: the running kernels, as ``name at file:line``.
    """

    step: str
    limit: float
    kernel: str = ""
    check: str = ""
    backend: str = ""
    family: Text = ""
    source: str = ""
    mesh: Mapping[str, int] = field(default_factory=dict[str, int])
    examples: Count = 0
    call: Exact = ""
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    choices: Sequence[tuple[Exact, Exact, Exact]] = ()
    drawn: Sequence[tuple[str, Text]] = ()
    running: Sequence[str] = ()

    def encode(self) -> bytes:
        """Return the note as bytes; cheap, because each example has several."""
        return json.dumps(vars(self)).encode()

    @classmethod
    def decode(cls, body: bytes) -> StepNote | None:
        """Return the note; None if there is none, or half of one."""
        try:
            return decode(cls, parse(body)) if body else None
        except DataError:
            return None


# Reports and warnings of a test, as plain values and again as pytest's objects.


def plain_reports(config: pytest.Config, reports: Iterable[Any]) -> list[dict[str, Any]]:
    """Serialize reports of pytest."""
    serialize = config.hook.pytest_report_to_serializable
    return [serialize(config=config, report=report) for report in reports]


def reports_by_phase(
    config: pytest.Config, serialized: Iterable[Mapping[str, Any]]
) -> dict[str, pytest.TestReport]:
    """Make reports of serialized ones, by ``when``."""
    load = config.hook.pytest_report_from_serializable
    reports = [load(config=config, data=data) for data in serialized]
    return {report.when: report for report in reports}


def plain_warning(
    warning: warnings.WarningMessage, when: Any, nodeid: str, location: Any
) -> PlainWarning:
    """Make plain values of the arguments of ``pytest_warning_recorded``."""
    return PlainWarning(
        text=str(warning.message),
        module=warning.category.__module__,
        category=warning.category.__qualname__,
        filename=warning.filename,
        lineno=warning.lineno,
        when=when,
        nodeid=nodeid,
        location=location,
    )


def warning_of(plain: PlainWarning) -> dict[str, Any]:
    """Make the arguments of ``pytest_warning_recorded`` again.

    A category of a module that is not loaded here is a ``Warning`` with its name.
    """
    category: Any = sys.modules.get(plain.module)
    for part in plain.category.split("."):
        category = vars(category).get(part) if hasattr(category, "__dict__") else None
    if not (isinstance(category, type) and issubclass(category, Warning)):
        lost = plain.module not in sys.modules
        category = type(plain.category, (Warning,), {}) if lost else Warning
    warning: Any = warnings.WarningMessage(plain.text, category, plain.filename, plain.lineno)
    return {
        "warning_message": warning,
        **{name: getattr(plain, name) for name in ("when", "nodeid", "location")},
    }
