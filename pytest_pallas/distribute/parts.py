"""Parts of an item that any process can run: rounds of fuzzing, and mutants of a kernel.

A controller that hands out parts does four things:

1. ``divisible(item)`` is a ``Division``, or None for an item that runs as a whole: without
   ``--pallas-fuzz-rounds`` and ``--pallas-fuzz-time``, on compiling backends, with an expected
   failure, in replays, with goldens, and for tests of your own.
2. It sends ``WorkerRequest(..., part=part)`` for each of ``remaining(division, results)``, in any
   order, to any process, as often as it likes. A part of mutants has a ``journal`` of its own, as
   a whole item has. Rounds need no ``seconds``: a part has few of them, and a controller with a
   time limit stops handing out parts. With ``seconds``, a part starts no round after them.
   Parts of mutants get the ``seconds`` that are left of a time limit, 0 if none are: they have to
   be run, since only a process with the kernel can name its mutants. They get no ``killed``.
3. ``result_of(reply.reports)`` is the result of a part as plain JSON values; None if the part ended
   before it began to run, such as by a wrong mark or a kernel that cannot be traced: that ends the
   item, too. ``remaining`` with the results so far is what is left: the number of mutants is known
   after the first part, and rounds after a failure or after the last new example are not needed. If
   ``endless(division)``, only the time ends the item: what was run up to the first gap counts.
4. ``report.parts.merged_reports(item, replies, killed)`` makes one set-up, call and teardown report
   of the reports of the parts, in any order, some perhaps twice. They have what one process finds,
   except for times. ``killed`` is the ``PytestSession.killed`` of the controller, which merges the
   items of mutants in the order of collection. With ``--pallas-mutate``, tests of your own, which
   run as a whole, are settled in the same order by ``report.parts.settle_kills(item, reports,
   killed)``, in which their request had no ``killed``, either.
   ``keep_examples(session, results)`` saves the failing examples.

The result of a part depends on the item, its numbers and the options, not on other parts. A process
that runs parts does not know that the kernel raised in an earlier item (``PytestSession.raised``):
a controller merges ``forward`` first, and runs the other items of the kernel only if
``items.item.skip_if_raised`` lets them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import pytest

from pytest_pallas.backends.protocol import label
from pytest_pallas.checks.verdict import conclude
from pytest_pallas.decoding import decode
from pytest_pallas.mutate.item import MUTANTS_PER_PART, MutantsItem, MutantsPart, merge_into
from pytest_pallas.mutate.runner import from_json, merge_verdicts
from pytest_pallas.mutate.runner import to_json as verdict_to_json
from pytest_pallas.pytest_session import PART_RESULT, Part, PytestSession, current
from pytest_pallas.record import Record, to_json
from pytest_pallas.report.collect import add_properties, attach, records_of
from pytest_pallas.report.pictures import examples_of
from pytest_pallas.report.reporter import ATTRIBUTE
from pytest_pallas.run.item import SpecItem, not_applicable
from pytest_pallas.run.result import Result
from pytest_pallas.run.rounds import (
    EXHAUSTED,
    RoundOutcome,
    RoundsPart,
    merge_rounds,
    rounds_from_json,
)

__all__ = [
    "Division",
    "checked_result",
    "divisible",
    "endless",
    "keep_examples",
    "part",
    "remaining",
    "result_of",
    "rounds_needed",
]


# How items are divided, and what is left to run.


#: Number of rounds in a part.
ROUNDS_PER_PART = 4


@dataclass(frozen=True, kw_only=True)
class Division:
    """How an item is divided.

    Attributes:
      kind: as in ``Part``.
      size: number of rounds or mutants in a part.
      total: number of rounds, or the largest possible number of mutants; None if it is not known
        before a part was run, or if the time decides.
    """

    kind: Literal["rounds", "mutants"]
    size: int
    total: int | None = None


def divisible(item: pytest.Item) -> Division | None:
    """How to divide an item; None if it runs as a whole."""
    if not isinstance(item, SpecItem) or any(item.iter_markers("skip")):
        return None
    options = current(item.config).options_for(item)
    if isinstance(item, MutantsItem):
        return Division(kind="mutants", size=MUTANTS_PER_PART, total=options.mutate or None)
    if not item.fuzzes or current(item.config).goldens is not None:
        return None
    if not options.fuzz_rounds and not options.fuzz_time:
        return None
    return Division(kind="rounds", size=ROUNDS_PER_PART, total=options.fuzz_rounds or None)


def endless(division: Division) -> bool:
    """Whether only the time ends an item."""
    return division.kind == "rounds" and division.total is None


def part(division: Division, index: int) -> Part:
    """The part with this number, from 0."""
    first = index * division.size
    last = first + division.size - 1
    if division.total is not None:
        last = min(last, division.total - 1)
    return Part(division.kind, first, last)


def remaining(
    division: Division, results: Sequence[Mapping[str, Any] | None] = ()
) -> Iterator[Part]:
    """The parts that are still to run, the first ones first; endless where only the time ends it.

    Of mutants whose number is not known, it is the first part alone until that has a result.

    Args:
      division: of the item.
      results: the results so far, in any order. One that is None ends the item.
    """
    known = [result for result in results if result is not None]
    if len(known) < len(results):
        return
    total = division.total
    if division.kind == "mutants":
        total = known[0]["total"] if known else division.size
    elif (end := rounds_needed(known)) is not None:
        total = end
    have = {number for result in known for number in _numbers(result)}
    for index in count():
        each = part(division, index)
        if total is not None and each.first >= total:
            return
        if total is not None:
            each = replace(each, last=min(each.last, total - 1))
        if not have.issuperset(range(each.first, each.last + 1)):
            yield each


def result_of(reports: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The result of a part, from the reports of a ``WorkerReply``.

    Raises:
      DataError: it is none; see ``checked_result``.
    """
    found = next((each[PART_RESULT] for each in reports if PART_RESULT in each), None)
    return None if found is None else checked_result(found)


def checked_result(plain: Any) -> Mapping[str, Any]:
    """The result of a part as plain values, if it is one.

    Raises:
      DataError: it is none.
    """
    kind = plain.get("kind") if isinstance(plain, dict) else None
    decode(MutantsPart if kind == "mutants" else RoundsPart, plain)
    return plain


def keep_examples(session: PytestSession, results: Iterable[Mapping[str, Any]]) -> None:
    """Save the failing examples that parts have found, and delete those that pass now."""
    from pytest_pallas.draw.database import make_changes

    if session.database is not None:
        for result in results:
            make_changes(session.database, result.get("database", ()))


def rounds_needed(results: Iterable[Mapping[str, Any]]) -> int | None:
    """The number of rounds that an item needs; None if further ones may bring something new."""
    rounds = {each["number"]: each for result in results for each in result.get("rounds", ())}
    passed: set[str] = set()
    idle = number = 0
    while number in rounds:
        found, before = rounds[number], len(passed)
        passed.update(each["digest"] for each in found["examples"] if each.get("passed"))
        if found["failed"]:
            return number + 1
        idle = idle + 1 if number and len(passed) == before else 0
        number += 1
        if idle == EXHAUSTED:
            return number
    return None


def check_whole(item: pytest.Item, count: int) -> None:
    """Refuse to merge parts without the first round or mutant.

    Raises:
      ValueError: it is missing.
    """
    if not count:
        raise ValueError(f"{item.nodeid}: the part with its first round or mutant is missing")


def _numbers(result: Mapping[str, Any]) -> Iterable[int]:
    """The rounds or mutants that a result has."""
    if result["kind"] == "rounds":
        return [each["number"] for each in result["rounds"]]
    return range(result["first"], result["last"] + 1)


# The reports of an item made of those of its parts; see ``items.parts``.


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
    builder = Result(kernel=record.kernel, check=record.check, backend=record.backend)
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
    builder = item.new_result()
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
    builder = item.new_result()
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
    item: SpecItem, used: Sequence[_PartReports], base: _PartReports, builder: Result
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
    builder: Result,
    call: pytest.CallInfo[None],
) -> list[pytest.TestReport]:
    """The reports of an item that fails over all of its examples."""
    session = current(item.config)
    report = pytest.TestReport.from_item_and_call(item, call)
    report.duration = sum(part.call.duration for part in used)
    report.sections = _sections(used)
    before = dict(session.results)
    session.results.clear()
    session.results[item.spec.name, item.check.name, label(item.backend)] = builder
    try:
        attach(session, item, report, call.excinfo)
    finally:
        session.results.clear()
        session.results.update(before)
    reports = {**base.reports, "call": report}
    reports["teardown"].user_properties = list(report.user_properties)
    return list(reports.values())


def _record(record: Record, builder: Result, seconds: float, reason: str) -> Record:
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
