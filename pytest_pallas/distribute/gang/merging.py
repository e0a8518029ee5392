"""The records and the reports of one test from the processes of a gang, merged into one.

A test of several processes is one test: it fails if it fails in any of them. Its error is the worst
of all processes, and its message is that of the process that is most wrong. ``merge_processes``
merges records, ``merged_reports`` reports with the records on them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pallas_sim.errors import PallasError, explanation_of, first_line
from pytest_pallas.distribute.gang.messages import BECAUSE, TestEnd
from pytest_pallas.distribute.reports import new_report, put_records, record_explanation
from pytest_pallas.isolate.messages import StepNote
from pytest_pallas.isolate.supervise import error_of
from pytest_pallas.pytest_session import RAISED_ON, RECORDS, STATUS
from pytest_pallas.record import Host, Note, Record, error_fields
from pytest_pallas.report.collect import records_of
from pytest_pallas.workers.process import JobResult


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
        """The process in words."""
        return f"process {self.process} ({self.host})"

    @property
    def end(self) -> str:
        """What became of the test in the process, as a verb."""
        if self.ended or self.record is None:
            return self.ended or "has no record of it"
        reason = f" ({self.record.reason})" if self.record.reason else ""
        return f"{self.record.outcome}{reason}"

    def of_key(self, key: Hashable) -> ProcessResult:
        """The result with the record of one kernel and check only."""
        record = next((record for record in self.records if _key(record) == key), None)
        hosts = () if record is None else record.hosts
        waited = (host.because_of for host in hosts if host.process == self.process)
        return dataclasses.replace(
            self,
            records=() if record is None else (record,),
            because_of=self.because_of or next(waited, ()),
        )


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


def _key(record: Record) -> Hashable:
    return (record.test, record.kernel, record.check, record.backend, tuple(record.mesh.items()))


def _merged(results: Sequence[ProcessResult], key: Hashable) -> Record:
    parts = [result.of_key(key) for result in results]
    records = [part.record for part in parts if part.record is not None]
    outcome = _outcome(parts)
    worst = _worst(parts, outcome)
    measured = max(records, key=_size)

    def union(name: str) -> tuple[Any, ...]:
        """All values of a field in order, each once."""
        return tuple(dict.fromkeys(value for record in records for value in getattr(record, name)))

    def common(name: str) -> str:
        """The value of a field if all records have it."""
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
    """The record whose message is shown: of a failure of its own if there is one, the worst."""
    own = [part for part in parts if part.failed and not part.because_of]
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


#: The fields of a record that say how a test failed.
_OF_FAILURE = (
    *("message", "explanation", "findings", "others", "replay", "script", "example", "pictures"),
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
    """``process 1``, or ``processes 1, 2``."""
    return f"process{'es' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _others(parts: Sequence[ProcessResult], worst: Record) -> Iterator[Mapping[str, Any]]:
    """The failures of other processes with other messages, each under the name of its process."""
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
    """A note if right processes ran different numbers of examples."""
    counts = {p.process: p.record.examples for p in parts if p.record and not p.failed}
    if len(set(counts.values())) < 2:
        return ()
    words = ", ".join(f"{count} in process {process}" for process, count in counts.items())
    return (Note(f"the processes ran different numbers of examples: {words}", "run"),)


# The reports of one test from all processes of a gang, as those of one test.


#: Makes a report of a serialized one.
Load = Callable[[Mapping[str, Any]], pytest.TestReport]

#: A node id, and pytest's location of the test.
Named = tuple[str, tuple[str, int | None, str]]

#: What became of a process that was killed for another one's sake.
_STOPPED = "was stopped, because it did not end soon after that"


@dataclass(frozen=True, eq=False)
class _End:
    """The end of a test in one process of ``count``, with its reports by phase."""

    end: TestEnd
    reports: Mapping[str, pytest.TestReport]
    count: int

    @property
    def name(self) -> str:
        return f"process {self.end.process} ({self.end.host})"

    @property
    def death(self) -> JobResult | None:
        """The end of a process that ended by itself, or was killed for its own sake."""
        return None if self.end.stopped else self.end.died

    @property
    def failed(self) -> bool:
        return any(report.failed for report in self.reports.values())

    @property
    def fate(self) -> str:
        """What became of a process that gave no result, as a verb."""
        if self.end.stopped:
            return _STOPPED
        if self.end.died is not None:
            return (self.end.died.fate or self.end.died.message).rstrip(".")
        return "did not run it" if self.end.absent else ""

    def error(self, nodeid: str) -> PallasError:
        """The error of a process that died."""
        assert self.end.died is not None
        name = nodeid.rpartition("::")[2]
        place = f"process {self.end.process} of {self.count} ({self.end.host})"
        return error_of(self.end.died, f"{name}, {place}")

    def result(self, nodeid: str, stopped_by: tuple[int, ...]) -> ProcessResult:
        """The records of the process, and how it ended."""
        records = [record for report in self.reports.values() for record in records_of(report)]
        note = None if self.death is None else StepNote.decode(self.death.note)
        if note is not None and note.kernel:  # it died in the check of a kernel
            names = ("kernel", "check", "backend", "family", "mesh", "examples")
            fields = {name: getattr(note, name) for name in names}
            fields |= error_fields(self.error(nodeid))
            records = [Record(test=nodeid, outcome="failed", **fields)]
        waited = next((found for r in self.reports.values() if (found := _because_of(r))), ())
        return ProcessResult(
            process=self.end.process,
            host=self.end.host,
            records=records,
            ended=self.fate,
            because_of=stopped_by if self.end.stopped else waited,
        )


def merged_reports(test: Named, ends: Sequence[TestEnd], load: Load) -> list[pytest.TestReport]:
    """Make the reports of a test: each phase fails if it failed in any process.

    One of them has the records, merged by ``merge_processes``.

    Args:
      test: the test.
      ends: its end in every process.
      load: makes a report of a serialized one.
    """
    every: list[_End] = []
    for end in ends:
        loaded = map(load, end.reports)
        every.append(_End(end, {report.when: report for report in loaded}, len(ends)))
    if any(each.death or each.end.absent for each in every):
        reports = [_broken(test, every), ended_report(test)]
    else:
        phases = ("setup", "call", "teardown")
        reports = [_phase(when, every) for when in phases if any(when in e.reports for e in every)]
    stopped_by = tuple(each.end.process for each in every if each.death or each.failed)
    records = merge_processes([each.result(test[0], stopped_by) for each in every])
    bearer = next((report for report in reports if report.failed), None)
    bearer = bearer or next((report for report in reports if report.when == "call"), reports[0])
    for report in reports:
        for name in (RECORDS, STATUS, RAISED_ON):
            if report is not bearer and hasattr(report, name):
                delattr(report, name)
    if records:
        put_records(bearer, records)
    return reports


def failed_report(test: Named, text: str, **rest: Any) -> pytest.TestReport:
    """Make the report of a test that could not run, or did not end."""
    return new_report(*test, "call", "failed", text, **rest)


def ended_report(test: Named) -> pytest.TestReport:
    """Make the report of the tear-down, which nothing ran: without it, no test counts as ended."""
    return new_report(*test, "teardown", "passed")


def _broken(test: Named, every: Sequence[_End]) -> pytest.TestReport:
    """Make the report of a test in which a process died, or to which one did not come."""
    deaths = {each: each.death.seconds for each in every if each.death is not None}
    died = sorted(deaths, key=deaths.__getitem__)
    if died:
        lines = [str(died[0].error(test[0]))]
        assert died[0].death is not None
        if (note := StepNote.decode(died[0].death.note)) is not None:
            lines.append(f"  last step {note.step}")
    else:
        lines = [next(each.end.absent for each in every if each.end.absent)]
    for each in every:
        if each in died[:1]:
            continue
        if each in deaths:
            later = deaths[each] - deaths[died[0]]
            lines.append(f"{each.name} {each.fate}, too, {later:.1f} s later")
        elif each.end.stopped:
            lines.append(f"{each.name} {_STOPPED}")
        for report in each.reports.values():
            if report.failed:
                lines.append(f"{each.name} failed:\n{report.longreprtext}")
    lines.append("The processes start anew for the next test.")
    seconds = max((e.end.died.seconds for e in every if e.end.died is not None), default=0.0)
    return failed_report(test, "\n".join(lines), sections=_sections(every, "call"), seconds=seconds)


def _phase(when: str, every: Sequence[_End]) -> pytest.TestReport:
    """Make the report of one phase of all processes."""
    reports = {each: each.reports[when] for each in every if when in each.reports}
    failed = [each for each, report in reports.items() if report.failed]
    own = [each for each in failed if not _because_of(reports[each])] or failed
    base = reports[own[0]] if own else next(iter(reports.values()))
    outcomes = {each: _report_outcome(report) for each, report in reports.items()}
    if not failed and len(set(outcomes.values())) > 1:
        ends = "; ".join(f"{each.name} {outcome}" for each, outcome in outcomes.items())
        base.outcome = "failed"
        base.longrepr = f"the processes ended differently: {ends}"
        vars(base).pop("wasxfail", None)
    texts = {reports[each].longreprtext for each in own}
    if failed and (len(texts) > 1 or len(own) < len(every)):
        base.longrepr = "\n".join(_failures(every, own, reports))
    base.duration = max(report.duration for report in reports.values())
    base.sections = _sections(every, when)
    return base


def _failures(
    every: Sequence[_End], own: Sequence[_End], reports: Mapping[_End, pytest.TestReport]
) -> Iterator[str]:
    """The failures of some processes, each once, and what became of the others."""
    same: dict[str, list[_End]] = {}
    for each in own:
        same.setdefault(reports[each].longreprtext, []).append(each)
    for text, processes in same.items():
        # the first line of the error; not if the text of the report begins with it
        crash: Any = getattr(reports[processes[0]].longrepr, "reprcrash", None)
        error = "" if crash is None else f" {first_line(crash.message)}"
        yield f"failed in {', '.join(each.name for each in processes)}:{error}\n{text}"
    for each in every:
        if each in own:
            continue
        if each.end.stopped:
            yield f"{each.name} {_STOPPED}"
        elif each in reports and (because := _because_of(reports[each])):
            numbers = ", ".join(map(str, because))
            yield f"{each.name} stopped because of process {numbers}"
        elif each in reports:
            yield f"{each.name} {_report_outcome(reports[each])}"


def _because_of(report: pytest.TestReport) -> tuple[int, ...]:
    """Return the processes that made a test fail in this one."""
    return tuple(getattr(report, BECAUSE, ()))


def _report_outcome(report: pytest.TestReport) -> str:
    """Return the outcome of a report, for a comparison of processes."""
    if hasattr(report, "wasxfail"):
        return "xfailed" if report.skipped else "xpassed"
    return report.outcome


def _sections(every: Sequence[_End], when: str) -> list[tuple[str, str]]:
    """Return what the processes have captured: that of process 0 under pytest's names."""
    return [
        (name if each.end.process == 0 else f"{name} in {each.name}", text)
        for each in every
        if when in each.reports
        for name, text in each.reports[when].sections
    ]
