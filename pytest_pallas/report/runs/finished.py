"""Tests that ended, from pytest's reports, and as reports again."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_pallas.record import Record, to_json
from pytest_pallas.report.collect import PREFIX, properties
from pytest_pallas.report.reporter import ATTRIBUTE
from pytest_pallas.results import Failure, FinishedTest
from pytest_pallas.session import PART_RESULT, RAISED_ON, STATUS

#: The phases that end a test: pytest-xdist reports ``"???"`` if a worker died.
_LAST = ("teardown", "???")


class EndedTests:
    """Joins the reports of each test, which come one by one, and from several workers."""

    def __init__(self) -> None:
        """No test has begun."""
        self._reports: dict[Hashable, list[pytest.TestReport]] = {}
        self._records: dict[Hashable, list[dict[str, Any]]] = {}

    def add(self, report: pytest.TestReport) -> tuple[FinishedTest, list[dict[str, Any]]] | None:
        """Take a report; the test and its records as plain values if it is the last one."""
        key = (report.nodeid, getattr(report, "node", None))
        reports = self._reports.setdefault(key, [])
        reports.append(report)
        records = self._records.setdefault(key, [])
        records += getattr(report, ATTRIBUTE, ())  # now: the reporter takes them off
        if report.when not in _LAST:
            return None
        del self._reports[key], self._records[key]
        return finished(reports), records


def finished(reports: Sequence[pytest.TestReport]) -> FinishedTest:
    """The test that these are the reports of."""
    last = reports[-1]
    # pytest-rerunfailures reports a failure that it tries again as one of outcome "rerun"
    failed = [each for each in reports if each.outcome == "failed"]
    expected = next((each for each in reports if hasattr(each, "wasxfail")), None)
    skipped = next((each for each in reports if each.outcome == "skipped"), None)
    outcome, reason = "passed", ""
    place: tuple[str, int | str] | tuple[()] = ()
    if failed:
        during = any(each.when not in ("setup", "teardown") for each in failed)
        outcome = "failed" if during else "error"
    elif expected is not None:
        outcome = "xfailed" if expected.outcome == "skipped" else "xpassed"
        reason = str(getattr(expected, "wasxfail", ""))
    elif skipped is not None:
        outcome, reason = "skipped", str(skipped.longrepr)
        if isinstance(skipped.longrepr, tuple):
            file, number, reason = skipped.longrepr
            place = (str(file), _plain(number))
    raised = next((getattr(each, RAISED_ON) for each in reports if hasattr(each, RAISED_ON)), ())
    status = next((getattr(each, STATUS) for each in reports if hasattr(each, STATUS)), "")
    part = next((getattr(each, PART_RESULT) for each in reports if hasattr(each, PART_RESULT)), {})
    return FinishedTest(
        test=last.nodeid,
        outcome=outcome,
        seconds=round(sum(each.duration for each in reports), 4),
        location=failed[0].location if failed else last.location,
        reason=reason,
        place=place,
        failures=tuple(
            Failure(
                each.when if each.when in ("setup", "teardown") else "call",
                str(each.longrepr),  # without the worker of pytest-xdist, as `longreprtext` has
                _summary(each.longrepr),
                tuple((str(title), str(text)) for title, text in each.sections),
            )
            for each in failed
        ),
        status=status,
        raised=tuple(raised),
        properties=tuple(
            (str(name), _plain(value))
            for name, value in last.user_properties
            if not str(name).startswith(PREFIX)
        ),
        part=dict(part),
    )


def _summary(error: object) -> str:
    return str(getattr(getattr(error, "reprcrash", None), "message", ""))


def _plain(value: object) -> Any:
    return value if isinstance(value, (str, int, float, bool)) else str(value)


def reports_of(test: FinishedTest, records: Sequence[Record]) -> Iterator[pytest.TestReport]:
    """Reports of a test that ended in an earlier run, as if it had ended in this one.

    Args:
      test: the test.
      records: its records.
    """
    during = [each for each in test.failures if each.when != "teardown"]
    reports = [_failed(test, each) for each in during]
    if test.outcome == "skipped":
        file, line = test.place or ("", 0)
        where = (file, line if isinstance(line, int) else None, test.reason)
        reports.append(_report(test, "call", "skipped", where))
    elif test.outcome in ("xfailed", "xpassed"):
        kind = "skipped" if test.outcome == "xfailed" else "passed"
        reports.append(_report(test, "call", kind, test.reason if kind == "skipped" else None))
        setattr(reports[-1], "wasxfail", test.reason)  # noqa: B010 - of pytest's skipping
    elif not reports:
        reports.append(_report(test, "call", "passed"))
    first = reports[0]
    first.duration = test.seconds
    setattr(first, ATTRIBUTE, [to_json(record) for record in records])
    if test.status:
        setattr(first, STATUS, test.status)
    if test.raised:
        setattr(first, RAISED_ON, list(test.raised))
    if test.part:
        setattr(first, PART_RESULT, dict(test.part))
    ends = [each for each in test.failures if each.when == "teardown"]
    last = [_failed(test, each) for each in ends]
    last = last or [_report(test, "teardown", "passed")]
    own: list[tuple[str, object]] = [pair for each in records for pair in properties(each)]
    last[-1].user_properties = [*test.properties, *own]
    yield from (*reports, *last)


@dataclass(frozen=True)
class _Crash:
    """An error in short."""

    message: str


@dataclass(frozen=True)
class _Text:
    """A failure as pytest prints it: its text, and its short form in ``reprcrash``."""

    message: str
    reprcrash: _Crash

    def toterminal(self, writer: Any) -> None:
        """Print it."""
        writer.line(self.message)

    def __str__(self) -> str:
        return self.message


def _failed(test: FinishedTest, failure: Failure) -> pytest.TestReport:
    short = failure.summary
    text = _Text(failure.message, _Crash(short)) if short else failure.message
    return _report(test, failure.when, "failed", text, failure.sections)


def _report(
    test: FinishedTest,
    when: Any,
    outcome: Any,
    text: Any = None,
    sections: Sequence[tuple[str, str]] = (),
) -> pytest.TestReport:
    file = test.test.partition("::")[0]
    location = test.location or (file, None, test.test)
    return pytest.TestReport(
        nodeid=test.test,
        location=location,
        keywords={},
        outcome=outcome,
        longrepr=text,
        when=when,
        sections=list(sections),
    )
