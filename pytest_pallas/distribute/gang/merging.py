"""The records and the reports of one test from the processes of a gang, merged into one.

A test of several processes is one test: it fails if it fails in any of them. Its error is the worst
of all processes, and its message is that of the process that is most wrong. ``merge_processes``
merges records, ``merged_reports`` reports with the records on them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from pallas_sim.errors import PallasError, explanation_of, first_line
from pytest_pallas.coverage import reached_to_json
from pytest_pallas.distribute.messages import BECAUSE, TestEnd, new_report, put_records
from pytest_pallas.isolate.messages import StepNote, reports_by_phase
from pytest_pallas.isolate.supervise import error_of
from pytest_pallas.pytest_session import RAISED_ON, RECORDS, STATUS
from pytest_pallas.record import Host, Note, Record, error_fields, reached_by, record_explanation
from pytest_pallas.report.collect import records_of
from pytest_pallas.workers.process import JobResult


@dataclass(frozen=True, kw_only=True, eq=False)
class ProcessResult:
    """The result of one test in one process.

    Attributes:
      process: its number.
      host: the name of its host.
      records: its records of the test; several if the test checks several kernels.
      ended: why it has no more records, such as ``"killed by SIGKILL"``; "" if it is well.
      because_of: the processes whose failure ended it, if it waited for them.
      reports: its reports by phase.
      death: how the process ended; None if it lives.
      error: the error of its death; None if it lives, or was killed for another one's sake.
    """

    process: int
    host: str
    records: Sequence[Record] = ()
    ended: str = ""
    because_of: tuple[int, ...] = ()
    reports: Mapping[str, pytest.TestReport] = field(default_factory=dict[str, Any])
    death: JobResult | None = None
    error: PallasError | None = None

    @property
    def stopped(self) -> bool:
        """Whether it was killed for another one's sake."""
        return self.death is not None and self.error is None

    @property
    def seconds(self) -> float:
        """The seconds of the test until the process died; 0 if it lives."""
        return 0.0 if self.death is None else self.death.seconds

    @property
    def failed_reports(self) -> Sequence[pytest.TestReport]:
        """The reports of phases that failed."""
        return [report for report in self.reports.values() if report.failed]

    @property
    def record(self) -> Record | None:
        """Its record, where only those of one kernel and check are left."""
        return self.records[0] if self.records else None

    @property
    def outcome(self) -> str:
        """The outcome of its record; "" if it has none, or ended."""
        return "" if self.record is None or self.ended else self.record.outcome

    @property
    def failed(self) -> bool:
        """Whether it failed, or has no outcome."""
        return self.outcome in ("failed", "")

    @property
    def name(self) -> str:
        """The name of the process in messages."""
        return f"process {self.process} ({self.host})"

    @property
    def end(self) -> str:
        """What became of the test in the process, as a verb."""
        if self.ended or self.record is None:
            return self.ended or "has no record of it"
        reason = f" ({self.record.reason})" if self.record.reason else ""
        return f"{self.record.outcome}{reason}"

    def of_key(self, key: Hashable) -> ProcessResult:
        """Return the result with the record of one kernel and check only."""
        record = next((record for record in self.records if _key(record) == key), None)
        hosts = () if record is None else record.hosts
        waited = (host.because_of for host in hosts if host.process == self.process)
        return dataclasses.replace(
            self,
            records=() if record is None else (record,),
            because_of=self.because_of or next(waited, ()),
        )


def merge_processes(results: Sequence[ProcessResult]) -> list[Record]:
    """Make one record for each kernel and check, in the order of the lowest process.

    The outcome is ``failed`` if any process failed, ended or has no record. Expected failures count
    for all: a kernel that is wrong in one process is wrong. Any other difference between outcomes
    is a failure, too, because all processes must do the same.

    Args:
      results: of all processes, whatever became of them.
    """
    results = sorted(results, key=lambda result: result.process)
    keys = dict.fromkeys(_key(record) for result in results for record in result.records)
    return [_merged(results, key) for key in keys]


def _key(record: Record) -> Hashable:
    return (record.test, record.kernel, record.check, record.backend, tuple(record.mesh.items()))


def _merged(results: Sequence[ProcessResult], key: Hashable) -> Record:
    parts = [result.of_key(key) for result in results]
    records = [part.record for part in parts if part.record is not None]
    outcome = _outcome(parts)
    worst = _worst(parts, outcome)
    measured = max(records, key=_size)

    def union(name: str) -> tuple[Any, ...]:
        """Return all values of a field in order, each once."""
        return tuple(dict.fromkeys(value for record in records for value in getattr(record, name)))

    def common(name: str) -> str:
        """Return the value of a field if all records have it."""
        values = {getattr(record, name) for record in records}
        return values.pop() if len(values) == 1 else ""

    return dataclasses.replace(
        records[0],
        outcome=outcome,
        reason=worst.reason,
        requirement=common("requirement"),
        stopped_by=common("stopped_by"),
        **_failure(parts, worst, outcome),
        examples=min(record.examples for record in records),
        error=measured.error,
        baseline=measured.baseline,
        multiple=measured.multiple,
        seconds=max(record.seconds for record in records),
        kernel_seconds=max(record.kernel_seconds for record in records),
        notes=(*union("notes"), *_counts(parts)),
        unverified=union("unverified"),
        signatures=union("signatures"),
        used_goldens=union("used_goldens"),
        coverage=tuple(map(reached_to_json, reached_by(records))),
        hosts=tuple(
            Host(process=p.process, name=p.host, outcome=p.outcome, because_of=p.because_of)
            for p in parts
        ),
    )


def _outcome(parts: Sequence[ProcessResult]) -> str:
    outcomes = {part.outcome for part in parts}
    if len(outcomes) == 1 and "" not in outcomes:
        return outcomes.pop()
    if "xfailed" in outcomes and outcomes <= {"xfailed", "xpassed"}:
        return "xfailed"
    return "failed"


def _worst(parts: Sequence[ProcessResult], outcome: str) -> Record:
    """Return the record whose message is shown: of failures of their own, the worst."""
    own = [part for part in parts if part.failed and not part.because_of]
    candidates = own or [part for part in parts if part.failed]
    shown = [part.record for part in candidates if part.record is not None and part.record.message]
    if not shown:
        records = [part.record for part in parts if part.record is not None]
        shown = [record for record in records if record.outcome == outcome] or records
    return max(shown, key=_size)


def _size(record: Record) -> float:
    """Return how wrong an answer is; below 0 where nothing was measured."""
    if record.multiple is None:
        return -1.0
    return math.inf if math.isnan(record.multiple) else record.multiple


#: The fields of a record that say how a test failed.
_OF_FAILURE = (
    *("error_type", "message", "explanation", "findings", "others"),
    *("replay", "script", "example", "pictures"),
)


def _failure(parts: Sequence[ProcessResult], worst: Record, outcome: str) -> dict[str, Any]:
    """Return the failure as record fields: which processes failed, and the worst of them."""
    fields = {name: getattr(worst, name) for name in _OF_FAILURE}
    if outcome != "failed":
        return fields
    headline = _headline(parts)
    if worst.message:
        fields |= {
            "message": f"{headline}\n{worst.message}",
            "explanation": record_explanation(worst).under(headline).to_json(),
        }
    else:
        fields |= {"message": headline, "explanation": explanation_of(headline).to_json()}
    fields["others"] = (*worst.others, *_others(parts, worst))
    return fields


def _headline(parts: Sequence[ProcessResult]) -> str:
    """Say in one line which processes failed, and what became of the others."""
    failed = [part for part in parts if part.failed and not part.because_of]
    fine = [part for part in parts if not part.failed]
    stopped = [part for part in parts if part.failed and part.because_of]
    if not failed and not stopped:
        ends = "; ".join(f"{part.name} {part.end}" for part in parts)
        return f"the processes ended differently: {ends}"
    if len(failed) == len(parts) and len({part.end for part in parts}) == 1:
        return f"all {len(parts)} processes {parts[0].end}"
    ends = [f"{part.name} {part.end}" for part in failed]
    if stopped:
        causes = sorted({number for part in stopped for number in part.because_of})
        waiting = [part.process for part in stopped]
        ends.append(f"{_numbers(waiting)} stopped because of {_numbers(causes)}")
    ends += [f"{part.name} {part.end}" for part in fine]
    return f"of {len(parts)} processes, " + "; ".join(ends)


def _numbers(numbers: Sequence[int]) -> str:
    """Return ``process 1``, or ``processes 1, 2``."""
    return f"process{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _others(parts: Sequence[ProcessResult], worst: Record) -> Iterator[Mapping[str, Any]]:
    """Yield the failures of other processes with other messages, under their names."""
    seen = {"", worst.message}
    for part in parts:
        record = part.record
        if record is None or not part.failed or part.because_of or record.message in seen:
            continue
        seen.add(record.message)
        yield {
            "message": f"{part.name}:\n{record.message}",
            "explanation": record_explanation(record).under(part.name).to_json(),
            "findings": record.findings,
        }


def _counts(parts: Sequence[ProcessResult]) -> tuple[Note, ...]:
    """Return a note if right processes ran different numbers of examples."""
    counts = {p.process: p.record.examples for p in parts if p.record and not p.failed}
    if len(set(counts.values())) < 2:
        return ()
    numbers = ", ".join(f"{count} in process {process}" for process, count in counts.items())
    return (Note(f"the processes ran different numbers of examples: {numbers}", "run"),)


# The reports of one test from all processes of a gang, as those of one test.


#: A node id, and pytest's location of the test.
Named = tuple[str, tuple[str, int | None, str]]

#: What became of a process that was killed for another one's sake.
_STOPPED = "was stopped, because it did not end soon after that"


def merged_reports(
    config: pytest.Config, test: Named, ends: Sequence[TestEnd]
) -> list[pytest.TestReport]:
    """Make the reports of a test: each phase fails if it failed in any process.

    One of them has the records, merged by ``merge_processes``.

    Args:
      config: loads the reports.
      test: the test.
      ends: its end in every process.
    """
    processes = [_result_of(config, test[0], end, len(ends)) for end in ends]
    causes = tuple(p.process for p in processes if p.error or p.failed_reports)
    processes = [dataclasses.replace(p, because_of=causes) if p.stopped else p for p in processes]
    absent = next((end.absent for end in ends if end.absent), "")
    if absent or any(process.error for process in processes):
        reports = [_broken(test, processes, absent), ended_report(test)]
    else:
        phases = ("setup", "call", "teardown")
        present = [when for when in phases if any(when in p.reports for p in processes)]
        reports = [_phase(when, processes) for when in present]
    records = merge_processes(processes)
    bearer = next((report for report in reports if report.failed), None)
    bearer = bearer or next((report for report in reports if report.when == "call"), reports[0])
    for report in reports:
        for name in (RECORDS, STATUS, RAISED_ON):
            if report is not bearer and hasattr(report, name):
                delattr(report, name)
    if records:
        put_records(bearer, records)
    return reports


def _result_of(config: pytest.Config, nodeid: str, end: TestEnd, count: int) -> ProcessResult:
    """Return the result of one process of ``count``."""
    reports = reports_by_phase(config, end.reports)
    records = [record for report in reports.values() for record in records_of(report)]
    ended = "did not run it" if end.absent else ""
    error: PallasError | None = None
    if end.stopped:
        ended = _STOPPED
    elif end.died is not None:
        ended = (end.died.fate or end.died.message).rstrip(".")
        where = f"process {end.process} of {count} ({end.host})"
        error = error_of(end.died, f"{nodeid.rpartition('::')[2]}, {where}")
        note = StepNote.decode(end.died.note)
        if note is not None and note.kernel:  # it died in the check of a kernel
            names = ("kernel", "check", "backend", "family", "mesh", "examples")
            fields = {name: getattr(note, name) for name in names}
            fields |= error_fields(error)
            records = [Record(test=nodeid, outcome="failed", **fields)]
    return ProcessResult(
        process=end.process,
        host=end.host,
        records=records,
        ended=ended,
        because_of=next(filter(None, map(_because_of, reports.values())), ()),
        reports=reports,
        death=end.died,
        error=error,
    )


def failed_report(test: Named, text: str, **rest: Any) -> pytest.TestReport:
    """Make the report of a test that could not run, or did not end."""
    return new_report(*test, "call", "failed", text, **rest)


def ended_report(test: Named) -> pytest.TestReport:
    """Make the report of the tear-down, which nothing ran: without it, no test counts as ended."""
    return new_report(*test, "teardown", "passed")


def _broken(test: Named, processes: Sequence[ProcessResult], absent: str) -> pytest.TestReport:
    """Make the report of a test in which a process died, or to which one did not come."""
    died = sorted((p for p in processes if p.error), key=lambda process: process.seconds)
    lines = [str(died[0].error)] if died else [absent]
    note = StepNote.decode(died[0].death.note) if died and died[0].death else None
    if note is not None:
        lines.append(f"  last step {note.step}")
    for process in processes:
        if process in died[:1]:
            continue
        if process in died:
            later = process.seconds - died[0].seconds
            lines.append(f"{process.name} {process.ended}, too, {later:.1f} s later")
        elif process.stopped:
            lines.append(f"{process.name} {_STOPPED}")
        for report in process.failed_reports:
            lines.append(f"{process.name} failed:\n{report.longreprtext}")
    lines.append("The processes start anew for the next test.")
    seconds = max(process.seconds for process in processes)
    sections = _sections(processes, "call")
    return failed_report(test, "\n".join(lines), sections=sections, seconds=seconds)


def _phase(when: str, processes: Sequence[ProcessResult]) -> pytest.TestReport:
    """Make the report of one phase of all processes."""
    reports = {process: process.reports[when] for process in processes if when in process.reports}
    failed = [process for process, report in reports.items() if report.failed]
    own = [process for process in failed if not _because_of(reports[process])] or failed
    base = reports[own[0]] if own else next(iter(reports.values()))
    outcomes = {process: _report_outcome(report) for process, report in reports.items()}
    if not failed and len(set(outcomes.values())) > 1:
        ends = "; ".join(f"{process.name} {outcome}" for process, outcome in outcomes.items())
        base.outcome = "failed"
        base.longrepr = f"the processes ended differently: {ends}"
        vars(base).pop("wasxfail", None)
    texts = {reports[process].longreprtext for process in own}
    if failed and (len(texts) > 1 or len(own) < len(processes)):
        base.longrepr = "\n".join(_failures(processes, own, reports))
    base.duration = max(report.duration for report in reports.values())
    base.sections = _sections(processes, when)
    return base


def _failures(
    processes: Sequence[ProcessResult],
    own: Sequence[ProcessResult],
    reports: Mapping[ProcessResult, pytest.TestReport],
) -> Iterator[str]:
    """Yield the failures of some processes, each once, and what became of the others."""
    same: dict[str, list[ProcessResult]] = {}
    for process in own:
        same.setdefault(reports[process].longreprtext, []).append(process)
    for text, group in same.items():
        # the first line of the error; not if the text of the report begins with it
        crash: Any = getattr(reports[group[0]].longrepr, "reprcrash", None)
        error = "" if crash is None else f" {first_line(crash.message)}"
        yield f"failed in {', '.join(process.name for process in group)}:{error}\n{text}"
    for process in processes:
        if process in own:
            continue
        if process.stopped:
            yield f"{process.name} {_STOPPED}"
        elif process in reports and (because := _because_of(reports[process])):
            numbers = ", ".join(map(str, because))
            yield f"{process.name} stopped because of process {numbers}"
        elif process in reports:
            yield f"{process.name} {_report_outcome(reports[process])}"


def _because_of(report: pytest.TestReport) -> tuple[int, ...]:
    """Return the processes that made a test fail in this one."""
    return tuple(getattr(report, BECAUSE, ()))


def _report_outcome(report: pytest.TestReport) -> str:
    """Return the outcome of a report, for a comparison of processes."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return report.outcome


def _sections(processes: Sequence[ProcessResult], when: str) -> list[tuple[str, str]]:
    """Return what the processes have captured: that of process 0 under pytest's names."""
    return [
        (title if process.process == 0 else f"{title} in {process.name}", text)
        for process in processes
        if when in process.reports
        for title, text in process.reports[when].sections
    ]
