"""The results of a run: as data, in a file while it runs (the journal) and at its end.

``RunResults`` is what is read, of a results file or of a journal. ``RunProgress`` is the same while
the run goes on. The schema of the files is documented in docs/reference.md.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, cast

from pallas_sim.errors import OptionError
from pallas_sim.findings import Text
from pytest_pallas.decoding import (
    MOST_BYTES,
    Accepts,
    Between,
    DataError,
    Matching,
    Seconds,
    decode,
    jsonable,
    parse,
    parse_object,
    replacing,
    shown,
)
from pytest_pallas.record import SCHEMA, NotApplicable, Record

#: The outcome of a test that a run did not finish, in a results file.
NOT_RUN = "not run"


@dataclass(frozen=True)
class FailedPhase:
    """One failed phase of a test.

    Attributes:
      when: ``"setup"``, ``"call"`` or ``"teardown"``.
      message: what pytest prints.
      summary: the error in short, for a list of failures; "" if pytest has none.
      sections: captured output: title and text.
    """

    when: Literal["setup", "call", "teardown"]
    message: Text
    summary: Text = ""
    sections: tuple[tuple[str, Text], ...] = ()


#: File, line from 0, and name.
type Location = tuple[str, int | None, str]

#: Outcomes of a test that ended.
_ENDED = ("passed", "failed", "error", "skipped", "xfailed", "xpassed")


@dataclass(frozen=True, kw_only=True)
class FinishedTest:
    """A test that ended, with or without records.

    Attributes:
      test: the pytest node id.
      outcome: ``"passed"``, ``"failed"``, ``"error"`` (outside of the call), ``"skipped"``,
        ``"xfailed"`` or ``"xpassed"``.
      seconds: wall time, with setup and teardown.
      location: file, line from 0, and name, as in pytest's reports.
      reason: why it was skipped or is expected to fail.
      place: where it was skipped: file and line; empty if it was not.
      failures: its failed phases.
      status: the status under which the plugin counts it; "" for pytest's.
      raised: the value of ``session.RAISED``, if its kernel raised; else empty.
      properties: the user properties of its report, without those of its records.
      part: of an item of mutants in a worker, its results without the kills of others.
    """

    test: str
    outcome: Annotated[str, Matching("|".join(_ENDED), f"one of {', '.join(_ENDED)}")]
    seconds: Seconds = 0.0
    location: Location | tuple[()] = ()
    reason: Text = ""
    place: tuple[str, int | str] | tuple[()] = ()
    failures: tuple[FailedPhase, ...] = ()
    status: str = ""
    raised: tuple[str, str, str, bool] | tuple[()] = ()
    properties: tuple[tuple[str, Any], ...] = ()
    part: Mapping[str, Any] = field(default_factory=dict[str, Any])


def plain_test(finished: FinishedTest) -> dict[str, Any]:
    """Return a finished test as plain JSON values, without fields that are empty."""
    return {name: jsonable(value) for name, value in vars(finished).items() if value}


@dataclass(frozen=True, kw_only=True)
class RunResults:
    """The results of a run, or of what it did until it was cut off.

    Attributes:
      path: the file that they were read from.
      environment: versions and machine, by name.
      options: the options of the run, by name.
      suite: digests of the modules of ``--pallas-suite``.
      files: digests of the Python files of suites and collected tests, by path.
      records: of its tests.
      not_applicable: the checks that do not apply.
      collected: the node ids of all its tests, in their order; empty if that is not known.
      tests: the tests that ended.
      parts: what a fleet knows of tests that did not end: plain messages of their workers, each
        about a part of the test, by node id.
      running: node ids of the tests that were running when it was cut off.
      cut_off: whether it did not come to its end.
    """

    path: str
    environment: Mapping[str, str]
    options: Mapping[str, Any]
    suite: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    records: Sequence[Record] = ()
    not_applicable: Sequence[NotApplicable] = ()
    collected: Sequence[str] = ()
    tests: Sequence[FinishedTest] = ()
    parts: Mapping[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict[str, Any])
    running: Sequence[str] = ()
    cut_off: bool = False

    @property
    def shard(self) -> tuple[int, int] | None:
        """Which shard it is, and of how many; None for a run without ``--pallas-shard``."""
        shard: Sequence[int] = self.options.get("shard", ())
        return (shard[0], shard[1]) if shard else None

    @property
    def unfinished(self) -> Sequence[str]:
        """Node ids of the tests that did not end."""
        ended = {test.test for test in self.tests}
        return [name for name in self.collected if name not in ended]


def text_parts(fields: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text of a results file, in parts: memory holds one record as text, and not all.

    Args:
      fields: of the document, as plain JSON values; an iterator is a list.
    """
    opening = "{"
    for name, value in fields.items():
        yield f"{opening}\n {json.dumps(name)}: "
        opening = ","
        if not isinstance(value, Iterator):
            yield json.dumps(value, indent=1).replace("\n", "\n ")
            continue
        before = "["
        for element in value:
            yield f"{before}\n  " + json.dumps(element, indent=1).replace("\n", "\n  ")
            before = ","
        yield "[]" if before == "[" else "\n ]"
    yield "\n}\n"


def plain_tests(
    collected: Sequence[str],
    tests: Sequence[FinishedTest],
    parts: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[dict[str, Any]]:
    """Yield the field ``tests`` of a results file: all tests in their order, also those not run.

    Args:
      collected: the node ids of all tests.
      tests: the tests that ended.
      parts: of those that did not, as in ``RunResults``.
    """
    ended = {test.test: test for test in tests}
    names = dict.fromkeys((*collected, *ended))
    for name in names:
        if name in ended:
            yield plain_test(ended[name])
        else:
            more = {"parts": list(parts[name])} if name in parts else {}
            yield {"test": name, "outcome": NOT_RUN, **more}


# The journal of a run: its results in a file as they come, so that a killed run loses none.
#
# It is beside the file of ``--pallas-results`` until that is written: a line of JSON about the run,
# then a line for each test that starts, one for each part of a test that a fleet has done, and one
# for each test that ends, with its records.


#: The end of a journal's name.
SUFFIX = ".partial"


def partial_path(path: Path) -> Path:
    """Return the journal of the run that writes its results to ``path``."""
    return path.with_name(path.name + SUFFIX)


class RunJournal:
    """A file to which lines are appended, each by one call of the operating system.

    A line is there once it was appended, also if this process is killed. (It is not forced to the
    disk, so a machine that loses power may lose the last ones.)
    """

    def __init__(self, path: Path, first: Iterable[Mapping[str, Any]]) -> None:
        """Create the file with its first lines, in place of an earlier one, at once.

        Args:
          path: the file.
          first: its first lines; the first one is about the run.

        Raises:
          OSError: it cannot be written.
        """
        self.path = path
        self._torn = False
        with replacing(path) as file:
            file.writelines(map(_line, first))
        self._handle = os.open(path, os.O_WRONLY | os.O_APPEND | getattr(os, "O_BINARY", 0))

    def append(self, plain: Mapping[str, Any]) -> None:
        """Append a line.

        Raises:
          OSError: it cannot be written, or the file is gone. Later lines may be appended.
        """
        self._write(_line(plain))
        if not self._is_there():
            raise FileNotFoundError(f"{self.path.name} was removed")

    def close(self, *, remove: bool) -> None:
        """Close the file, and remove it if its run has come to its end."""
        remove = remove and self._is_there()
        os.close(self._handle)
        if remove:
            self.path.unlink()

    def _write(self, data: bytes) -> None:
        left = b"\n" + data if self._torn else data  # ends what a full disk has cut
        self._torn = True
        while left:
            left = left[os.write(self._handle, left) :]
        self._torn = False

    def _is_there(self) -> bool:
        """Return whether the path is still this file, not removed or replaced by another run."""
        try:
            return os.path.samestat(os.stat(self.path), os.fstat(self._handle))
        except OSError:
            return False


def _line(plain: Mapping[str, Any]) -> bytes:
    return json.dumps(plain, separators=(",", ":")).encode() + b"\n"


@dataclass(eq=False)
class RunProgress:
    """What a run has done so far, and its journal.

    Attributes:
      resumed: the run that is taken up, or None.
      collected: node ids of all tests, once they are collected.
      tests: the tests that ended, those of the run that is taken up included.
      parts: what workers found of tests that have not ended, as in ``RunResults``.
      begun: whether tests were collected, and fit to the run that is taken up.
      problem: why the journal lacks something; "" if it does not.
      journal: the journal; None without ``--pallas-results``, or if it cannot be written.
    """

    resumed: RunResults | None = None
    collected: Sequence[str] = ()
    tests: list[FinishedTest] = field(default_factory=list[FinishedTest])
    parts: dict[str, list[Mapping[str, Any]]] = field(default_factory=dict[str, Any])
    begun: bool = False
    problem: str = ""
    journal: RunJournal | None = None

    def close(self, *, written: bool) -> None:
        """Close the journal, and remove it if the results are ``written``."""
        if self.journal is not None:
            self.journal.close(remove=written)
            self.journal = None


def resumed_line(resumed: RunResults, *, fleet: bool) -> str:
    """Say for the terminal what of a run was done before it was taken up, here by a ``fleet``."""
    text = f"resumed: {len(resumed.tests)} of {len(resumed.collected)} tests were done"
    parts = sum(map(len, resumed.parts.values()))
    return f"{text}, and {parts} parts of others" if parts and fleet else text


# Read results: of a whole run from its file, or of a run that was cut off from its journal.


#: What a file of results begins with, and its journal.
_JOURNAL = b'{"journal":'

#: Limit on the number of shards of a run.
_MOST_SHARDS = 10**6

_ShardNumber = Annotated[int, Between(1, _MOST_SHARDS)]

#: What the value of an option is made of.
_Scalar = str | bool | int | float | None

#: Plain messages of the workers of a fleet, which reads them.
_Results = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, kw_only=True)
class _About:
    """What file and journal have in common."""

    environment: Mapping[str, str]
    options: Mapping[str, _Scalar | list[_Scalar]]
    suite: Mapping[str, str] = field(default_factory=dict[str, str])
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    not_applicable: tuple[NotApplicable, ...] = ()


@dataclass(frozen=True, kw_only=True)
class _NotRun:
    """A test that has not ended."""

    test: str
    outcome: Literal["not run"]
    parts: _Results = ()


def _of_not_run(plain: Any) -> Any:
    """Keep what counts of a test that has not ended, whatever else is said of it."""
    if not isinstance(plain, dict):
        return plain
    fields = cast("dict[str, Any]", plain)
    return {name: fields[name] for name in ("test", "outcome", "parts") if name in fields}


_Test = FinishedTest | Annotated[_NotRun, Accepts(_of_not_run)]

#: The long lists of a results file.
_LISTS = ("records", "tests")


class _JournalLine(TypedDict, total=False):
    """A later line of a journal: a test started, a part of one ended, or a test ended."""

    started: str
    part_of: str
    result: Mapping[str, Any]
    ended: FinishedTest
    records: tuple[Record, ...]


def read_results(path: Path, *, latest: bool = False) -> RunResults:
    """Read a file of ``--pallas-results``, or the journal of its run. Nothing in it is executed.

    Args:
      path: the file or the journal. A file that is missing, because its run was cut off, stands for
        its journal.
      latest: take the journal also if there is a file, which is of an earlier run then. (The file
        does not change while tests run; the journal does.)

    Raises:
      OptionError: it cannot be read, is another file, or a newer pytest-pallas has written it.
    """
    name = shown(str(path))
    try:
        journal = partial_path(path)
        if (latest or not path.exists()) and journal.exists():
            path, name = journal, shown(str(journal))
        content = _content(path)
    except OSError as error:
        raise OptionError(f"{name}: {error.strerror}") from None
    except ValueError as error:  # a path with a NUL; or what the content is not
        raise OptionError(f"{name}: {error}") from None
    try:
        read = _journal if content.startswith(_JOURNAL) else _document
        return read(name, content)
    except DataError as error:
        raise OptionError(f"{name} is not a file of --pallas-results: {error}") from None


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise DataError(f"is larger than {MOST_BYTES:,} bytes")
    return content


def _document(name: str, content: bytes) -> RunResults:
    plain = _checked_schema(name, parse_object(_text(content), _LISTS))
    tests: Any = _field(plain, "tests", tuple[_Test, ...], [])
    records: Any = _field(plain, "records", tuple[Record, ...])
    return RunResults(
        **_about(name, plain),
        records=records,
        collected=[test.test for test in tests],
        tests=[test for test in tests if test.outcome != NOT_RUN],
        parts={test.test: test.parts for test in tests if test.outcome == NOT_RUN and test.parts},
    )


def _journal(file: str, content: bytes) -> RunResults:
    lines = _lines(content)
    head = _checked_schema(file, next(lines))
    running: dict[str, None] = {}
    ended: dict[str, tuple[FinishedTest, tuple[Record, ...]]] = {}
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for plain in lines:
        line: _JournalLine = decode(_JournalLine, plain)
        match line:
            case {"started": name}:
                running[name] = None
            case {"part_of": name, "result": result}:
                parts.setdefault(name, []).append(result)
            case {"ended": finished, "records": records}:
                running.pop(finished.test, None)
                parts.pop(finished.test, None)
                ended[finished.test] = finished, records
            case _:
                raise DataError("has a line that no run writes")
    return RunResults(
        **_about(file, head),
        records=[record for _, records in ended.values() for record in records],
        collected=_field(head, "collected", tuple[str, ...]),
        tests=[finished for finished, _ in ended.values()],
        parts=parts,
        running=list(running),
        cut_off=True,
    )


def _lines(content: bytes) -> Iterator[Any]:
    """Yield the lines of a journal, without those that were cut."""
    for number, line in enumerate(_text(content).splitlines()):
        try:
            yield parse(line)
        except DataError:
            if not number:
                raise


def _text(content: bytes) -> str:
    return content.decode("utf-8", errors="replace")


def _field(plain: Mapping[str, Any], name: str, schema: Any, otherwise: Any = None) -> Any:
    if name not in plain and otherwise is None:
        raise DataError(f"lacks the field {name!r}")
    try:
        return decode(schema, plain.get(name, otherwise))
    except DataError as error:
        raise error.inside(f".{name}") from None


def _about(name: str, plain: Mapping[str, Any]) -> dict[str, Any]:
    """Return what file and journal have in common."""
    names = [name.name for name in dataclasses.fields(_About)]
    about: _About = decode(_About, {name: plain[name] for name in names if name in plain})
    _field(about.options, "backends", list[str], [])
    _field(about.options, "shard", tuple[_ShardNumber, _ShardNumber] | tuple[()], [])
    return {"path": name, **vars(about)}


def _checked_schema(name: str, plain: Any) -> Mapping[str, Any]:
    """Return an object of a schema that is known.

    Raises:
      OptionError: a newer pytest-pallas has written it.
      DataError: it is none.
    """
    decode(Mapping[str, Any], {} if isinstance(plain, dict) else plain)
    schema: int = _field(plain, "schema", int)
    if schema <= SCHEMA:
        return plain
    environment = plain.get("environment", {})
    version = environment.get("pytest_pallas", "") if isinstance(environment, dict) else ""
    writer = f"pytest-pallas {shown(str(version))}" if version else "a newer pytest-pallas"
    raise OptionError(
        f"{name} has the schema {schema}, and this pytest-pallas reads up to {SCHEMA}: {writer} "
        f"wrote it; install that version or a newer one here, or write the results again"
    )
