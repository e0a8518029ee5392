"""The records of one test from the processes of a gang, merged into one: pure functions.

A test of several processes is one test: it fails if it fails in any of them. Its error is the worst
of all processes, and its message is that of the process that is most wrong.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pytest

from pallas_sim.errors import Explanation, PallasError, explanation_of, first_line
from pytest_pallas.decoding import decode
from pytest_pallas.distribute.gang.messages import BECAUSE, TestEnd
from pytest_pallas.isolate.messages import StepNote, error_of
from pytest_pallas.pytest_session import RAISED_ON, STATUS
from pytest_pallas.record import Host, Note, Record, to_json
from pytest_pallas.report.collect import error_fields, records_of
from pytest_pallas.report.reporter import ATTRIBUTE


@dataclass(frozen=True, kw_only=True)
class ProcessResult:
    """What one process has to say about one test.

    Attributes:
      process: its number.
      host: the name of its host.
      records: its records of the test; several if the test checks several kernels.
      ended: why it has no more records, such as ``"killed by SIGKILL"``; "" if it is well.
      because_of: the processes whose failure ended it, if it waited for them.
    """

    process: int
    host: str
    records: Sequence[Record] = ()
    ended: str = ""
    because_of: tuple[int, ...] = ()


def merge_processes(results: Sequence[ProcessResult]) -> list[Record]:
    """One record for each kernel and check of a test, in the order of the lowest process.

    The outcome is ``failed`` if any process failed, ended or has no record. Expected failures count
    for all: a kernel that is wrong in one process is wrong. Any other difference between outcomes
    is a failure, too, because all processes must do the same.

    Args:
      results: of all processes, whatever became of them.
    """
    results = sorted(results, key=lambda result: result.process)
    keys = dict.fromkeys(_key(record) for result in results for record in result.records)
    return [_merged(results, key) for key in keys]


@dataclass(frozen=True)
class _Part:
    """The part of one process in a merged record.

    Attributes:
      result: of the process.
      record: its record, or None.
    """

    result: ProcessResult
    record: Record | None

    @property
    def host(self) -> Host:
        """The process, with the outcome of its record."""
        own = [] if self.record is None else self.record.hosts
        found = (e.because_of for e in own if e.process == self.result.process)
        because_of = self.result.because_of or next(found, ())
        lost = self.record is None or self.result.ended
        outcome = "" if lost or self.record is None else self.record.outcome
        return Host(
            process=self.result.process,
            name=self.result.host,
            outcome=outcome,
            because_of=because_of,
        )

    @property
    def failed(self) -> bool:
        """Whether the process failed, or has no outcome."""
        return self.host.outcome in ("failed", "")


def _key(record: Record) -> Hashable:
    return (record.test, record.kernel, record.check, record.backend, tuple(record.mesh.items()))


def _merged(results: Sequence[ProcessResult], key: Hashable) -> Record:
    parts = [
        _Part(result, next((r for r in result.records if _key(r) == key), None))
        for result in results
    ]
    records = [part.record for part in parts if part.record is not None]
    outcome = _outcome(parts)
    worst = _worst(parts, outcome)
    measured = max(records, key=_size)
    return dataclasses.replace(
        records[0],
        outcome=outcome,
        reason=worst.reason,
        requirement=_same(records, lambda record: record.requirement, ""),
        stopped_by=_same(records, lambda record: record.stopped_by, ""),
        **_failure(parts, worst, outcome),
        examples=min(record.examples for record in records),
        error=measured.error,
        baseline=measured.baseline,
        multiple=measured.multiple,
        seconds=max(record.seconds for record in records),
        kernel_seconds=max(record.kernel_seconds for record in records),
        notes=(*_union(record.notes for record in records), *_counts(parts)),
        unverified=_union(record.unverified for record in records),
        signatures=_union(record.signatures for record in records),
        used_goldens=_union(record.used_goldens for record in records),
        hosts=tuple(part.host for part in parts),
    )


def _outcome(parts: Sequence[_Part]) -> str:
    outcomes = {part.host.outcome for part in parts}
    if len(outcomes) == 1 and "" not in outcomes:
        return outcomes.pop()
    if "xfailed" in outcomes and outcomes <= {"xfailed", "xpassed"}:
        return "xfailed"
    return "failed"


def _worst(parts: Sequence[_Part], outcome: str) -> Record:
    """The record whose message is shown: of a failure of its own if there is one, the worst."""
    own = [part for part in parts if part.failed and not part.host.because_of]
    candidates = own or [part for part in parts if part.failed]
    found = [part.record for part in candidates if part.record is not None and part.record.message]
    if not found:
        records = [part.record for part in parts if part.record is not None]
        found = [record for record in records if record.outcome == outcome] or records
    return max(found, key=_size)


def _size(record: Record) -> float:
    """How wrong an answer is; below 0 where nothing was measured."""
    if record.multiple is None:
        return -1.0
    return math.inf if math.isnan(record.multiple) else record.multiple


def _failure(parts: Sequence[_Part], worst: Record, outcome: str) -> dict[str, Any]:
    """The message of a failure as record fields: which processes failed, and the worst of them."""
    fields: dict[str, Any] = {
        "message": worst.message,
        "explanation": worst.explanation,
        "findings": worst.findings,
        "others": worst.others,
        "replay": worst.replay,
        "script": worst.script,
        "example": worst.example,
        "pictures": worst.pictures,
    }
    if outcome != "failed":
        return fields
    headline = _headline(parts)
    explanation = (
        decode(Explanation, worst.explanation)
        if worst.explanation
        else explanation_of(worst.message)
    )
    if worst.message:
        fields["message"] = f"{headline}\n{worst.message}"
        fields["explanation"] = explanation.under(headline).to_json()
    else:
        fields["message"] = headline
        fields["explanation"] = explanation_of(headline).to_json()
    fields["others"] = (*worst.others, *_others(parts, worst))
    return fields


def _headline(parts: Sequence[_Part]) -> str:
    """Which processes failed, and what became of the others, in one line."""
    failed = [part for part in parts if part.failed and not part.host.because_of]
    fine = [part for part in parts if not part.failed]
    stopped = [part for part in parts if part.failed and part.host.because_of]
    if not failed and not stopped:
        words = "; ".join(f"{_name(part)} {_ended(part)}" for part in parts)
        return f"the processes ended differently: {words}"
    if len(failed) == len(parts) and len({_ended(part) for part in parts}) == 1:
        return f"all {len(parts)} processes {_ended(parts[0])}"
    words = [f"{_name(part)} {_ended(part)}" for part in failed]
    if stopped:
        numbers = sorted({number for part in stopped for number in part.host.because_of})
        words.append(f"{_names(stopped)} stopped because of {_numbers(numbers)}")
    words += [f"{_name(part)} {_ended(part)}" for part in fine]
    return f"of {len(parts)} processes, " + "; ".join(words)


def _name(part: _Part) -> str:
    return f"process {part.result.process} ({part.result.host})"


def _names(parts: Sequence[_Part]) -> str:
    return _numbers([part.result.process for part in parts])


def _numbers(numbers: Sequence[int]) -> str:
    """``process 1``, or ``processes 1, 2``."""
    return f"process{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _ended(part: _Part) -> str:
    """What became of the test in a process, as a verb."""
    if part.result.ended:
        return part.result.ended
    if part.record is None:
        return "has no record of it"
    reason = f" ({part.record.reason})" if part.record.reason else ""
    return f"{part.record.outcome}{reason}"


def _others(parts: Sequence[_Part], worst: Record) -> tuple[Mapping[str, Any], ...]:
    """The failures of other processes with other messages, each under the name of its process."""
    found: list[Mapping[str, Any]] = []
    seen = {worst.message}
    for part in parts:
        record = part.record
        if record is None or not part.failed or part.host.because_of or not record.message:
            continue
        if record.message in seen:
            continue
        seen.add(record.message)
        explanation = (
            decode(Explanation, record.explanation)
            if record.explanation
            else explanation_of(record.message)
        )
        found.append(
            {
                "message": f"{_name(part)}:\n{record.message}",
                "explanation": explanation.under(_name(part)).to_json(),
                "findings": record.findings,
            }
        )
    return tuple(found)


def _counts(parts: Sequence[_Part]) -> tuple[Note, ...]:
    """A note if right processes ran different numbers of examples."""
    counts = {p.result.process: p.record.examples for p in parts if p.record and not p.failed}
    if len(set(counts.values())) < 2:
        return ()
    words = ", ".join(f"{count} in process {process}" for process, count in counts.items())
    return (Note(f"the processes ran different numbers of examples: {words}", "run"),)


def _same[T](records: Sequence[Record], field: Callable[[Record], T], otherwise: T) -> T:
    """The value of a field if all records have it."""
    values = [field(record) for record in records]
    return values[0] if all(value == values[0] for value in values) else otherwise


def _union[T](several: Iterable[Sequence[T]]) -> tuple[T, ...]:
    """All values in order, each once."""
    return tuple(dict.fromkeys(value for each in several for value in each))


# The reports of one test from all processes of a gang, as those of one test.


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
                ended=_reports_ended(each),
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


def _reports_ended(each: _End) -> str:
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
            lines.append(
                f"{each.name} {_reports_ended(each)}, too, {_later(each, died[0]):.1f} s later"
            )
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
    outcomes = {each: _report_outcome(report) for each, report in reports.items()}
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
                else f"{each.name} {_report_outcome(reports[each])}"
            )
    return lines


def _crash(report: pytest.TestReport) -> str:
    """The first line of the error after a space; "" if the text of the report begins with it."""
    crash: Any = getattr(report.longrepr, "reprcrash", None)
    return "" if crash is None else f" {first_line(crash.message)}"


def _because_of(report: pytest.TestReport) -> tuple[int, ...]:
    """The processes that made a test fail in this one."""
    return tuple(getattr(report, BECAUSE, ()))


def _report_outcome(report: pytest.TestReport) -> str:
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
