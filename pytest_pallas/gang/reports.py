"""The reports of one test from all processes of a gang, as those of one test."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from pallas_sim.errors import PallasError, first_line
from pytest_pallas.gang.merging import ProcessResult, merge_processes
from pytest_pallas.gang.messages import BECAUSE, TestEnd
from pytest_pallas.isolation.crash_reports import error_of
from pytest_pallas.isolation.messages import StepNote
from pytest_pallas.record import Record, to_json
from pytest_pallas.report.collect import error_fields, records_of
from pytest_pallas.report.reporter import ATTRIBUTE
from pytest_pallas.session import RAISED_ON, STATUS

#: Makes a report of a serialized one.
Load = Callable[[Mapping[str, Any]], pytest.TestReport]

#: A node id, and pytest's location of the test.
Named = tuple[str, tuple[str, int | None, str]]

#: What became of a process that was killed for another one's sake.
_STOPPED = "was stopped, because it did not end soon after that"


@dataclass(frozen=True, eq=False)
class _End:
    """The end of a test in one process, with its reports by phase."""

    end: TestEnd
    reports: Mapping[str, pytest.TestReport]
    count: int

    @property
    def name(self) -> str:
        return f"process {self.end.process} ({self.end.host})"

    @property
    def died(self) -> bool:
        """Whether the process ended by itself, or was killed for its own sake."""
        return self.end.died is not None and not self.end.stopped

    def error(self, nodeid: str) -> PallasError:
        """The error of a process that died."""
        assert self.end.died is not None
        name = nodeid.rpartition("::")[2]
        place = f"process {self.end.process} of {self.count} ({self.end.host})"
        return error_of(self.end.died, f"{name}, {place}")

    @property
    def because_of(self) -> tuple[int, ...]:
        """The processes whose failure made it fail."""
        return next((found for r in self.reports.values() if (found := _because_of(r))), ())

    @cached_property
    def records(self) -> list[Record]:
        """The records of its reports."""
        return [record for report in self.reports.values() for record in records_of(report)]


def merged_reports(test: Named, ends: Sequence[TestEnd], load: Load) -> list[pytest.TestReport]:
    """The reports of a test: each phase fails if it failed in any process.

    One of them has the records, merged by ``merge_processes``.

    Args:
      test: the test.
      ends: its end in every process.
      load: makes a report of a serialized one.
    """
    every = [
        _End(
            end,
            {report.when: report for report in map(load, end.reply.reports if end.reply else ())},
            len(ends),
        )
        for end in ends
    ]
    if any(each.died or each.end.absent for each in every):
        reports = [_broken(test, every), ended_report(test)]
    else:
        phases = [
            when for when in ("setup", "call", "teardown") if any(when in e.reports for e in every)
        ]
        reports = [_phase(test, when, every) for when in phases]
    stopped_by = tuple(each.end.process for each in every if each.died or _failed(each))
    records = merge_processes(
        [
            ProcessResult(
                process=each.end.process,
                host=each.end.host,
                records=[_record_of(test[0], each)] if each.died and _note(each) else each.records,
                ended=_ended(each),
                because_of=stopped_by if each.end.stopped else each.because_of,
            )
            for each in every
        ]
    )
    place = next((each for each in reports if each.failed), None)
    place = place or next((each for each in reports if each.when == "call"), reports[0])
    for report in reports:
        for name in (ATTRIBUTE, STATUS, RAISED_ON):
            if report is not place and hasattr(report, name):
                delattr(report, name)
    if records:
        setattr(place, ATTRIBUTE, [to_json(record) for record in records])
    return reports


def _failed(each: _End) -> bool:
    return any(report.failed for report in each.reports.values())


def _note(each: _End) -> StepNote | None:
    """The last note of a process that died in the check of a kernel; otherwise None."""
    note = None if each.end.died is None else StepNote.decode(each.end.died.note)
    return note if note is not None and note.kernel else None


def _step(each: _End) -> str | None:
    """The last step that a process has reported."""
    note = None if each.end.died is None else StepNote.decode(each.end.died.note)
    return None if note is None else note.step


def _ended(each: _End) -> str:
    """What became of a process that gave no result, as a verb."""
    if each.end.stopped:
        return _STOPPED
    if each.end.died is not None:
        return (each.end.died.fate or each.end.died.message).rstrip(".")
    return "did not run it" if each.end.absent else ""


def _record_of(nodeid: str, each: _End) -> Record:
    """The record of a process that died."""
    note = _note(each)
    assert note is not None
    return Record(
        test=nodeid,
        kernel=note.kernel,
        check=note.check,
        backend=note.backend,
        family=note.family,
        mesh=note.mesh,
        outcome="failed",
        examples=note.examples,
        **error_fields(each.error(nodeid)),
    )


def _broken(test: Named, every: Sequence[_End]) -> pytest.TestReport:
    """The report of a test in which a process died, or to which one did not come."""
    died = sorted((each for each in every if each.died), key=lambda each: each.end.died.seconds)  # pyright: ignore[reportOptionalMemberAccess]
    if died:
        lines = [str(died[0].error(test[0]))]
        if (step := _step(died[0])) is not None:
            lines.append(f"  last step {step}")
    else:
        lines = [next(each.end.absent for each in every if each.end.absent)]
    others = [each for each in every if each is not (died[0] if died else None)]
    for each in others:
        if each.died:
            lines.append(f"{each.name} {_ended(each)}, too, {_later(each, died[0]):.1f} s later")
        elif each.end.stopped:
            lines.append(f"{each.name} {_STOPPED}")
        for report in each.reports.values():
            if report.failed:
                lines.append(f"{each.name} failed:\n{report.longreprtext}")
    lines.append("The processes start anew for the next test.")
    return pytest.TestReport(
        nodeid=test[0],
        location=test[1],
        keywords={},
        outcome="failed",
        longrepr="\n".join(lines),
        when="call",
        sections=_sections(every, "call"),
        duration=max((e.end.died.seconds for e in every if e.end.died is not None), default=0.0),
    )


def ended_report(test: Named) -> pytest.TestReport:
    """The report of the tear-down, which nothing ran: without it, no test counts as ended."""
    return pytest.TestReport(
        nodeid=test[0],
        location=test[1],
        keywords={},
        outcome="passed",
        longrepr=None,
        when="teardown",
    )


def _later(each: _End, first: _End) -> float:
    assert each.end.died is not None
    assert first.end.died is not None
    return each.end.died.seconds - first.end.died.seconds


def _phase(test: Named, when: str, every: Sequence[_End]) -> pytest.TestReport:
    """The report of one phase of all processes."""
    reports = {each: each.reports[when] for each in every if when in each.reports}
    failed = [each for each, report in reports.items() if report.failed]
    own = [each for each in failed if not _because_of(reports[each])] or failed
    base = reports[own[0]] if own else next(iter(reports.values()))
    outcomes = {each: _outcome(report) for each, report in reports.items()}
    differ = not failed and len(set(outcomes.values())) > 1
    if differ:
        words = "; ".join(f"{each.name} {outcome}" for each, outcome in outcomes.items())
        base.outcome = "failed"
        base.longrepr = f"the processes ended differently: {words}"
        vars(base).pop("wasxfail", None)
    texts = dict.fromkeys(reports[each].longreprtext for each in own)
    if failed and (len(texts) > 1 or len(own) < len(every)):
        base.longrepr = "\n".join(_texts(every, own, reports))
    base.duration = max(report.duration for report in reports.values())
    base.sections = _sections(every, when)
    return base


def _texts(
    every: Sequence[_End], own: Sequence[_End], reports: Mapping[_End, pytest.TestReport]
) -> list[str]:
    """The failures of some processes, each once, and what became of the others."""
    lines: list[str] = []
    shown: dict[str, list[_End]] = {}
    for each in own:
        shown.setdefault(reports[each].longreprtext, []).append(each)
    for text, same in shown.items():
        names = ", ".join(each.name for each in same)
        lines.append(f"failed in {names}:{_crash(reports[same[0]])}\n{text}")
    for each in every:
        if each in own:
            continue
        if each.end.stopped:
            lines.append(f"{each.name} {_STOPPED}")
        elif each in reports:
            because = _because_of(reports[each])
            numbers = ", ".join(map(str, because))
            lines.append(
                f"{each.name} stopped because of process {numbers}"
                if because
                else f"{each.name} {_outcome(reports[each])}"
            )
    return lines


def _crash(report: pytest.TestReport) -> str:
    """The first line of the error after a space; "" if the text of the report begins with it."""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    return "" if crash is None else f" {first_line(crash.message)}"


def _because_of(report: pytest.TestReport) -> tuple[int, ...]:
    """The processes that made a test fail in this one."""
    return tuple(getattr(report, BECAUSE, ()))


def _outcome(report: pytest.TestReport) -> str:
    """The outcome of a report, for a comparison of processes."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return report.outcome


def _sections(every: Sequence[_End], when: str) -> list[tuple[str, str]]:
    """What the processes have captured: that of process 0 under pytest's names."""
    return [
        (name if each.end.process == 0 else f"{name} in {each.name}", text)
        for each in every
        if when in each.reports
        for name, text in each.reports[when].sections
    ]
