"""The reports of an item made of those of its parts; see ``items.parts``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pytest

from pytest_pallas.backends import label
from pytest_pallas.bindings.bound_checks import new_builder
from pytest_pallas.checks.verdict import conclude
from pytest_pallas.items.item import SpecItem, not_applicable
from pytest_pallas.items.mutants import MutantsItem
from pytest_pallas.items.parts.division import check_whole
from pytest_pallas.items.parts.mutant_results import merge_into
from pytest_pallas.items.parts.round_results import RoundOutcome, merge_rounds, rounds_from_json
from pytest_pallas.mutation_runner.running import merge_verdicts
from pytest_pallas.mutation_runner.verdict import from_json
from pytest_pallas.mutation_runner.verdict import to_json as verdict_to_json
from pytest_pallas.record import Record, to_json
from pytest_pallas.report.collect import add_properties, attach, records_of
from pytest_pallas.report.pictures.gather import examples_of
from pytest_pallas.report.reporter import ATTRIBUTE
from pytest_pallas.result_builder import ResultBuilder
from pytest_pallas.session import PART_RESULT, current


@dataclass(frozen=True, eq=False)
class _PartReports:
    """The reports of one part, by ``when``, and its result; None if it did not begin to run."""

    reports: Mapping[str, pytest.TestReport]
    result: Mapping[str, Any] | None

    @property
    def call(self) -> pytest.TestReport:
        """The report of the call, or of a set-up that did not pass."""
        return self.reports.get("call", self.reports["setup"])


def merged_reports(
    item: SpecItem,
    replies: Sequence[Sequence[Mapping[str, Any]]],
    killed: dict[str, str],
) -> list[pytest.TestReport]:
    """The set-up, call and teardown reports of an item.

    Args:
      item: the item, in this process.
      replies: the reports of its parts as plain values (``WorkerReply.reports``), in any order.
      killed: names of the specs and tests before it that killed mutants, by key; those that this
        item killed are added.

    Returns:
      Reports with one record, as of an item that ran in one process, but for times.

    Raises:
      ValueError: the first round, or a mutant, is missing.
    """
    parts = [_read(item, reply) for reply in replies]
    broken = next((part for part in parts if part.result is None), None)
    if broken is not None:  # such as by a wrong mark, which ends every part like the whole
        return list(broken.reports.values())
    if isinstance(item, MutantsItem):
        return _merged_mutants(item, parts, killed)
    return _merged_rounds(item, parts)


def settle_kills(
    item: pytest.Item, reports: Sequence[pytest.TestReport], killed: dict[str, str]
) -> None:
    """Let mutants that an earlier test or spec killed count as killed by that one.

    Args:
      item: a user-written test, which tried them all.
      reports: its reports, whose records change.
      killed: as for ``merged_reports``.
    """
    for report in reports:
        records: list[dict[str, Any]] = getattr(report, ATTRIBUTE, [])
        for record in records:
            verdicts = map(from_json, record["mutants"])
            merged = merge_verdicts(verdicts, name=item.name, killed=killed)
            record["mutants"] = [verdict_to_json(verdict) for verdict in merged]


def settled_records(
    records: Sequence[Record], results: Mapping[str, Mapping[str, Any]], killed: dict[str, str]
) -> list[Record]:
    """Records in which mutants that an earlier test or spec killed count as killed by that one.

    Args:
      records: of a run in several processes, in the order of collection.
      results: those of items of mutants, by test id, as of a part with all mutants.
      killed: as for ``merged_reports``.
    """
    return [
        _settled_record(record, results.get(record.test), killed) if record.mutants else record
        for record in records
    ]


def _settled_record(
    record: Record, result: Mapping[str, Any] | None, killed: dict[str, str]
) -> Record:
    if result is None:
        item = record.test.rpartition("::")[2]
        # an item of mutants is named after its spec, under whose name its kills count
        name = record.kernel if item == f"{record.kernel}-{record.check}" else item
        merged = merge_verdicts(map(from_json, record.mutants), name=name, killed=killed)
        return dataclasses.replace(record, mutants=tuple(map(verdict_to_json, merged)))
    builder = ResultBuilder(kernel=record.kernel, check=record.check, backend=record.backend)
    merge_into(builder, [result], name=record.kernel, killed=killed)
    return dataclasses.replace(
        record,
        examples=builder.examples,
        mutants=tuple(builder.mutants),
        notes=tuple(builder.notes),
    )


def _merged_mutants(
    item: MutantsItem, parts: Sequence[_PartReports], killed: dict[str, str]
) -> list[pytest.TestReport]:
    """The reports of an item whose parts are mutants."""
    results = [part.result for part in parts if part.result is not None]
    check_whole(item, len(results))
    builder = item.new_builder()
    missing = merge_into(builder, results, name=item.spec.name, killed=killed)
    if missing:
        raise ValueError(f"{item.nodeid}: mutants {list(missing)} are in no part")
    ordered = sorted(parts, key=lambda part: part.result["first"] if part.result else 0)
    base = next((part for part in ordered if part.call.failed), ordered[0])
    return _reports(item, _each_once(ordered), base, builder)


def _each_once(parts: Sequence[_PartReports]) -> list[_PartReports]:
    """The parts without those that begin where another one begins."""
    return list({part.result["first"]: part for part in parts if part.result}.values())


def _read(item: SpecItem, reply: Sequence[Mapping[str, Any]]) -> _PartReports:
    reports: dict[str, pytest.TestReport] = {}
    for data in reply:
        report = item.config.hook.pytest_report_from_serializable(config=item.config, data=data)
        reports[report.when] = report
    result = next(
        (vars(each).pop(PART_RESULT) for each in reports.values() if hasattr(each, PART_RESULT)),
        None,
    )
    return _PartReports(reports, result)


def _merged_rounds(item: SpecItem, parts: Sequence[_PartReports]) -> list[pytest.TestReport]:
    """The reports of an item whose parts are rounds."""
    builder = new_builder(item.spec, item.check.name, item.backend, item.mesh)
    owners: dict[int, _PartReports] = {}
    rounds: list[RoundOutcome] = []
    for part in parts:
        assert part.result is not None
        for each in rounds_from_json(part.result, builder, item.check):
            owners.setdefault(each.number, part)
            rounds.append(each)
    merged = merge_rounds(builder, rounds)
    check_whole(item, merged.count)
    used = list(dict.fromkeys(owners[number] for number in range(merged.count)))
    if merged.failed is not None:
        ended = owners[merged.failed]
        assert ended.result is not None
        if ended.result["fail"] is not None:
            builder.error, builder.baseline, builder.multiple = ended.result["fail"]
        return _reports(item, used, ended, builder)
    # such as by state that it left behind; a round that failed later does not count
    failed = [part for part in used if part.call.failed and not _failed_round(part)]
    if failed:
        return _reports(item, used, failed[0], builder)
    if not builder.examples and builder.withdrawn:
        skipped = [part for part in used if part.call.skipped]
        return _reports(item, used, (skipped or used)[-1], builder)
    passed = [part for part in used if part.call.passed]
    base = (passed or used)[0]
    call = pytest.CallInfo.from_call(
        lambda: conclude(item.check, builder.evidence, item.spec.name, item.backend), "call"
    )
    if call.excinfo is not None:
        return _concluded(item, used, base, builder, call)
    return _reports(item, used, base, builder)


def _failed_round(part: _PartReports) -> bool:
    return part.result is not None and any(each["failed"] for each in part.result["rounds"])


def _reports(
    item: SpecItem, used: Sequence[_PartReports], base: _PartReports, builder: ResultBuilder
) -> list[pytest.TestReport]:
    """The reports of one part, with the results of all."""
    report = base.call
    report.duration = sum(part.call.duration for part in used)
    report.sections = _sections(used)
    stopped = ""
    if report.skipped and isinstance(report.longrepr, tuple) and builder.withdrawn:
        path, line, _ = report.longrepr
        stopped = not_applicable(item.check, builder.withdrawn)
        report.longrepr = (path, line, f"Skipped: {stopped}")
    records = [
        _record(each, builder, report.duration, stopped or each.reason)
        for each in records_of(report)
    ]
    _settle(item, base, report, records)
    return list(base.reports.values())


def _concluded(
    item: SpecItem,
    used: Sequence[_PartReports],
    base: _PartReports,
    builder: ResultBuilder,
    call: pytest.CallInfo[None],
) -> list[pytest.TestReport]:
    """The reports of an item that fails over all of its examples."""
    session = current(item.config)
    report = pytest.TestReport.from_item_and_call(item, call)
    report.duration = sum(part.call.duration for part in used)
    report.sections = _sections(used)
    before = dict(session.builders)
    session.builders.clear()
    session.builders[item.spec.name, item.check.name, label(item.backend)] = builder
    try:
        attach(session, item, report, call.excinfo)
    finally:
        session.builders.clear()
        session.builders.update(before)
    reports = {**base.reports, "call": report}
    reports["teardown"].user_properties = list(report.user_properties)
    return list(reports.values())


def _record(record: Record, builder: ResultBuilder, seconds: float, reason: str) -> Record:
    """The record of a part, with the results of all."""
    whole = builder.record(test=record.test, outcome=record.outcome, seconds=seconds, reason=reason)
    of_end = ("message", "explanation", "findings", "others", "seed", "replay", "script", "example")
    pictures = dict(record.pictures)
    if "examples" in pictures:
        pictures["examples"] = examples_of(builder)
    return dataclasses.replace(
        whole,
        **{name: getattr(record, name) for name in of_end},
        pictures=pictures,
        stopped_by=record.stopped_by,
    )


def _settle(
    item: SpecItem, base: _PartReports, report: pytest.TestReport, records: list[Record]
) -> None:
    """Put merged records on a report, and their properties on that of the teardown, too."""
    add_properties(item, report, records)
    setattr(report, ATTRIBUTE, [to_json(record) for record in records])
    if "teardown" in base.reports:
        base.reports["teardown"].user_properties = list(report.user_properties)


def _sections(used: Sequence[_PartReports]) -> list[tuple[str, str]]:
    """What all parts printed, by title."""
    texts: dict[str, str] = {}
    for part in used:
        for title, text in part.call.sections:
            texts[title] = texts.get(title, "") + text
    return list(texts.items())
