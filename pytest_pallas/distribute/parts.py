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
4. ``merged_reports(item, replies, killed)`` makes one set-up, call and teardown report
   of the reports of the parts, in any order, some perhaps twice. They have what one process finds,
   except for times. ``killed`` is the ``PytestSession.killed`` of the controller, which merges the
   items of mutants in the order of collection. With ``--pallas-mutate``, ``credit_kills(item,
   reports, killed)`` does the same for tests of your own, which run as a whole. Their request had
   no ``killed``, either.
   ``keep_examples(session, results)`` saves the failing examples.

The result of a part depends on the item, its numbers and the options, not on other parts. A process
that runs parts does not know that the kernel raised in an earlier item (``PytestSession.raised``):
a controller merges ``forward`` first, and runs the other items of the kernel only if
``run.item.skip_if_raised`` lets them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal

import pytest

from pytest_pallas.backends.protocol import label
from pytest_pallas.checks.verdict import conclude
from pytest_pallas.decoding import decode, jsonable
from pytest_pallas.distribute.messages import (
    checked_result,
    put_records,
    take_part_result,
)
from pytest_pallas.isolate.messages import reports_by_phase
from pytest_pallas.mutate.item import MUTANTS_PER_PART, MutantsItem, merge_mutants
from pytest_pallas.mutate.runner import merge_verdicts
from pytest_pallas.pytest_session import PART_RESULT, RECORDS, Part, PytestSession, current
from pytest_pallas.record import MutantVerdict, Record
from pytest_pallas.report.collect import add_properties, attach, records_of
from pytest_pallas.report.pictures import examples_of
from pytest_pallas.run.item import SpecItem, not_applicable
from pytest_pallas.run.result import Result
from pytest_pallas.run.rounds import EXHAUSTED, RoundOutcome, merge_rounds, rounds_from_json

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
    """Return how to divide an item; None if it runs as a whole."""
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
    """Return whether only the time ends an item."""
    return division.kind == "rounds" and division.total is None


def part(division: Division, index: int) -> Part:
    """Return the part with this number, from 0."""
    first = index * division.size
    last = first + division.size - 1
    if division.total is not None:
        last = min(last, division.total - 1)
    return Part(division.kind, first, last)


def remaining(
    division: Division, results: Sequence[Mapping[str, Any] | None] = ()
) -> Iterator[Part]:
    """Yield the parts that are left, the first ones first; endless where only the time ends it.

    If the number of mutants is not known, it is the first part alone until that has a result.

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
        left = part(division, index)
        if total is not None:
            if left.first >= total:
                return
            left = dataclasses.replace(left, last=min(left.last, total - 1))
        if not have.issuperset(range(left.first, left.last + 1)):
            yield left


def result_of(reports: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the result of a part, from the reports of a ``WorkerReply``.

    Raises:
      DataError: it is no result of a part; see ``checked_result``.
    """
    return next(
        (checked_result(report[PART_RESULT]) for report in reports if PART_RESULT in report), None
    )


def keep_examples(session: PytestSession, results: Iterable[Mapping[str, Any]]) -> None:
    """Save the failing examples that parts have found, and delete those that pass now."""
    from pytest_pallas.draw.database import make_changes

    if session.database is not None:
        for result in results:
            make_changes(session.database, result.get("database", ()))


def rounds_needed(results: Iterable[Mapping[str, Any]]) -> int | None:
    """Return how many rounds an item needs; None if further ones may bring something new."""
    rounds = {r["number"]: r for result in results for r in result.get("rounds", ())}
    passed: set[str] = set()
    idle = number = 0
    while number in rounds:
        current, before = rounds[number], len(passed)
        passed.update(e["digest"] for e in current["examples"] if e.get("passed"))
        if current["failed"]:
            return number + 1
        idle = idle + 1 if number and len(passed) == before else 0
        number += 1
        if idle == EXHAUSTED:
            return number
    return None


def _numbers(result: Mapping[str, Any]) -> Iterable[int]:
    """Return the rounds or mutants that a result has."""
    if result["kind"] == "rounds":
        return [outcome["number"] for outcome in result["rounds"]]
    return range(result["first"], result["last"] + 1)


# The reports of an item, made of those of its parts.


@dataclass(frozen=True, eq=False)
class _PartReports:
    """The reports of one part, by ``when``, and its result; None if it did not begin to run."""

    reports: Mapping[str, pytest.TestReport]
    result: Mapping[str, Any] | None

    @property
    def call(self) -> pytest.TestReport:
        """The report of the call, or of a set-up that did not pass."""
        return self.reports.get("call", self.reports["setup"])

    @property
    def rounds(self) -> Sequence[Mapping[str, Any]]:
        """The rounds of the result."""
        return self.result["rounds"] if self.result is not None else ()


def merged_reports(
    item: SpecItem,
    replies: Sequence[Sequence[Mapping[str, Any]]],
    killed: dict[str, str],
) -> list[pytest.TestReport]:
    """Make the set-up, call and teardown reports of an item.

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
    parts: list[_PartReports] = []
    for reply in replies:
        reports = reports_by_phase(item.config, reply)
        parts.append(_PartReports(reports, take_part_result(reports.values())))
    broken = next((part for part in parts if part.result is None), None)
    if broken is not None:  # such as by a wrong mark, which ends every part like the whole
        return list(broken.reports.values())
    if isinstance(item, MutantsItem):
        return _merged_mutants(item, parts, killed)
    return _merged_rounds(item, parts)


def credit_kills(
    item: pytest.Item, reports: Sequence[pytest.TestReport], killed: dict[str, str]
) -> None:
    """Let mutants that an earlier test or spec killed count as killed by that one.

    Args:
      item: a user-written test, which tried them all.
      reports: its reports, whose records change.
      killed: as for ``merged_reports``.
    """
    for report in reports:
        records: list[dict[str, Any]] = getattr(report, RECORDS, [])
        for record in records:
            verdicts = decode(list[MutantVerdict], record["mutants"])
            merged = merge_verdicts(verdicts, name=item.name, killed=killed)
            record["mutants"] = [jsonable(verdict) for verdict in merged]


def _merged_mutants(
    item: MutantsItem, parts: Sequence[_PartReports], killed: dict[str, str]
) -> list[pytest.TestReport]:
    results = [part.result for part in parts if part.result is not None]
    _require_first(item, len(results))
    builder = item.new_result()
    missing = merge_mutants(builder, results, name=item.spec.name, killed=killed)
    if missing:
        raise ValueError(f"{item.nodeid}: mutants {list(missing)} are in no part")
    ordered = sorted(parts, key=lambda part: part.result["first"] if part.result else 0)
    base = next((part for part in ordered if part.call.failed), ordered[0])
    once = {part.result["first"]: part for part in ordered if part.result}
    return _reports(item, list(once.values()), base, builder)


def _merged_rounds(item: SpecItem, parts: Sequence[_PartReports]) -> list[pytest.TestReport]:
    builder = item.new_result()
    owners: dict[int, _PartReports] = {}
    rounds: list[RoundOutcome] = []
    for part in parts:
        assert part.result is not None
        for outcome in rounds_from_json(part.result, builder, item.check):
            owners.setdefault(outcome.number, part)
            rounds.append(outcome)
    merged = merge_rounds(builder, rounds)
    _require_first(item, merged.count)
    used = list(dict.fromkeys(owners[number] for number in range(merged.count)))
    if merged.failed is not None:
        ended = owners[merged.failed]
        assert ended.result is not None
        if ended.result["fail"] is not None:
            builder.error, builder.baseline, builder.multiple = ended.result["fail"]
        return _reports(item, used, ended, builder)
    # such as by state that it left behind; a round that failed later does not count
    failed = [p for p in used if p.call.failed and not any(r["failed"] for r in p.rounds)]
    if failed:
        return _reports(item, used, failed[0], builder)
    if not builder.examples and builder.withdrawn:
        skipped = [part for part in used if part.call.skipped]
        return _reports(item, used, (skipped or used)[-1], builder)
    base = next((part for part in used if part.call.passed), used[0])
    call = pytest.CallInfo.from_call(
        lambda: conclude(item.check, builder.evidence, item.spec.name, item.backend), "call"
    )
    if call.excinfo is not None:
        return _failed_over_all(item, used, base, builder, call)
    return _reports(item, used, base, builder)


def _require_first(item: pytest.Item, count: int) -> None:
    if not count:
        raise ValueError(f"{item.nodeid}: the part with its first round or mutant is missing")


def _reports(
    item: SpecItem, used: Sequence[_PartReports], base: _PartReports, builder: Result
) -> list[pytest.TestReport]:
    """Return the reports of one part, with the results of all."""
    report = base.call
    _join_output(report, used)
    stopped = ""
    if report.skipped and isinstance(report.longrepr, tuple) and builder.withdrawn:
        path, line, _ = report.longrepr
        stopped = not_applicable(item.check, builder.withdrawn)
        report.longrepr = (path, line, f"Skipped: {stopped}")
    records = [
        _record(record, builder, report.duration, stopped or record.reason)
        for record in records_of(report)
    ]
    add_properties(item, report, records)
    put_records(report, records)
    return _with_properties(base.reports, report)


def _failed_over_all(
    item: SpecItem,
    used: Sequence[_PartReports],
    base: _PartReports,
    builder: Result,
    call: pytest.CallInfo[None],
) -> list[pytest.TestReport]:
    """Make the reports of an item that fails over all of its examples."""
    session = current(item.config)
    report = pytest.TestReport.from_item_and_call(item, call)
    _join_output(report, used)
    before = dict(session.results)
    session.results.clear()
    session.results[item.spec.name, item.check.name, label(item.backend)] = builder
    try:
        attach(session, item, report, call.excinfo)
    finally:
        session.results.clear()
        session.results.update(before)
    return _with_properties({**base.reports, "call": report}, report)


def _join_output(report: pytest.TestReport, used: Sequence[_PartReports]) -> None:
    """Give a report the time of all parts, and what they printed, by title."""
    report.duration = sum(part.call.duration for part in used)
    texts: dict[str, str] = {}
    for part in used:
        for title, text in part.call.sections:
            texts[title] = texts.get(title, "") + text
    report.sections = list(texts.items())


def _with_properties(
    reports: Mapping[str, pytest.TestReport], report: pytest.TestReport
) -> list[pytest.TestReport]:
    """Return reports whose teardown has the properties of ``report``, which JUnit XML reads."""
    if "teardown" in reports:
        reports["teardown"].user_properties = list(report.user_properties)
    return list(reports.values())


def _record(record: Record, builder: Result, seconds: float, reason: str) -> Record:
    """Make a record with the end of that of a part, and the results of all."""
    whole = builder.record(test=record.test, outcome=record.outcome, seconds=seconds, reason=reason)
    of_end = (
        *("error_type", "message", "explanation", "findings", "others"),
        *("seed", "replay", "script", "example"),
    )
    pictures = dict(record.pictures)
    if "examples" in pictures:
        pictures["examples"] = examples_of(builder)
    return dataclasses.replace(
        whole,
        **{name: getattr(record, name) for name in of_end},
        pictures=pictures,
        stopped_by=record.stopped_by,
    )
