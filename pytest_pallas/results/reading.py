"""Read results: of a whole run from its file, or of a run that was cut off from its journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

from pallas_sim.errors import OptionError
from pytest_pallas.decoding import (
    MOST_BYTES,
    Accepts,
    Between,
    DataError,
    decode,
    parse,
    parse_object,
    shown,
)
from pytest_pallas.record import SCHEMA, NotApplicable, Record
from pytest_pallas.results.journal import partial_path
from pytest_pallas.results.model import NOT_RUN, FinishedTest, RunResults

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
    """What counts of a test that has not ended, whatever else is said of it."""
    return (
        {name: plain[name] for name in _NOT_RUN if name in plain}
        if isinstance(plain, dict)
        else plain
    )


_NOT_RUN = tuple(each.name for each in dataclasses.fields(_NotRun))

_Test = FinishedTest | Annotated[_NotRun, Accepts(_of_not_run)]


#: The long lists of a results file.
_LISTS = ("records", "tests")


class _Ended(TypedDict):
    """A line of a journal: a test ended."""

    ended: FinishedTest
    records: tuple[Record, ...]


class _Started(TypedDict):
    """A line of a journal: a test started."""

    started: str


class _PartDone(TypedDict):
    """A line of a journal: a part of a test ended."""

    part_of: str
    result: Mapping[str, Any]


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
        collected=[each.test for each in tests],
        tests=[each for each in tests if each.outcome != NOT_RUN],
        parts={each.test: each.parts for each in tests if each.outcome == NOT_RUN and each.parts},
    )


def _journal(name: str, content: bytes) -> RunResults:
    lines = _lines(content)
    head = _checked_schema(name, next(lines))
    started: dict[str, None] = {}
    ended: dict[str, _Ended] = {}
    parts: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if not isinstance(line, dict):
            raise DataError("must be lines of objects")
        if "started" in line:
            begun: _Started = decode(_Started, line)
            started[begun["started"]] = None
        elif "part_of" in line:
            part: _PartDone = decode(_PartDone, line)
            parts.setdefault(part["part_of"], []).append(part["result"])
        else:
            end: _Ended = decode(_Ended, line)
            test = end["ended"].test
            started.pop(test, None)
            parts.pop(test, None)
            ended[test] = end
    return RunResults(
        **_about(name, head),
        records=[record for line in ended.values() for record in line["records"]],
        collected=_field(head, "collected", tuple[str, ...]),
        tests=[line["ended"] for line in ended.values()],
        parts=parts,
        running=list(started),
        cut_off=True,
    )


def _lines(content: bytes) -> Iterator[Any]:
    """The lines of a journal, without those that were cut."""
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
    """What file and journal have in common."""
    names = [each.name for each in dataclasses.fields(_About)]
    about: _About = decode(_About, {each: plain[each] for each in names if each in plain})
    _field(about.options, "backends", list[str], [])
    _field(about.options, "shard", tuple[_ShardNumber, _ShardNumber] | tuple[()], [])
    return {"path": name, **vars(about)}


def _checked_schema(name: str, plain: Any) -> Mapping[str, Any]:
    """An object of a schema that is known.

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
