"""The results of a run as data, and the JSON of a finished test."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pallas_sim.findings import Text
from pytest_pallas.decoding import Matching, Seconds, jsonable
from pytest_pallas.record import NotApplicable, Record

#: The outcome of a test that a run did not finish, in a results file.
NOT_RUN = "not run"


@dataclass(frozen=True)
class Failure:
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
    failures: tuple[Failure, ...] = ()
    status: str = ""
    raised: tuple[str, str, str, bool] | tuple[()] = ()
    properties: tuple[tuple[str, Any], ...] = ()
    part: Mapping[str, Any] = field(default_factory=dict[str, Any])


def plain_test(finished: FinishedTest) -> dict[str, Any]:
    """A finished test as plain JSON values, without fields that are empty."""
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
        found: Sequence[int] = self.options.get("shard", ())
        return (found[0], found[1]) if found else None

    @property
    def unfinished(self) -> Sequence[str]:
        """Node ids of the tests that did not end."""
        ended = {each.test for each in self.tests}
        return [name for name in self.collected if name not in ended]


def text_parts(fields: Mapping[str, Any]) -> Iterator[str]:
    """The text of a results file, in parts: memory holds one record as text, and not all.

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
        for each in value:
            yield f"{before}\n  " + json.dumps(each, indent=1).replace("\n", "\n  ")
            before = ","
        yield "[]" if before == "[" else "\n ]"
    yield "\n}\n"


def plain_tests(
    collected: Sequence[str],
    tests: Sequence[FinishedTest],
    parts: Mapping[str, Sequence[Mapping[str, Any]]],
) -> Iterator[dict[str, Any]]:
    """The field ``tests`` of a results file: all tests in their order, also those not run.

    Args:
      collected: the node ids of all tests.
      tests: the tests that ended.
      parts: of those that did not, as in ``RunResults``.
    """
    ended = {each.test: each for each in tests}
    names = dict.fromkeys((*collected, *ended))
    for name in names:
        if name in ended:
            yield plain_test(ended[name])
        else:
            more = {"parts": list(parts[name])} if name in parts else {}
            yield {"test": name, "outcome": NOT_RUN, **more}
