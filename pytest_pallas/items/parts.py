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

The result of a part depends on the item, its numbers and the options, not on other parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import pytest

from pytest_pallas.isolation.messages import Part
from pytest_pallas.items.item import SpecItem
from pytest_pallas.items.mutant_results import MUTANTS_PER_PART
from pytest_pallas.items.mutants import MutantsItem
from pytest_pallas.items.time_budget import EXHAUSTED
from pytest_pallas.session import PART_RESULT, PytestSession, current

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


def remaining(division: Division, results: Sequence[Mapping[str, Any]] = ()) -> Iterator[Part]:
    """The parts that are still to run, the first ones first; endless where only the time ends it.

    Of mutants whose number is not known, it is the first part alone until that has a result.

    Args:
      division: of the item.
      results: the results so far, in any order.
    """
    total = division.total
    if division.kind == "mutants":
        known = [result["total"] for result in results]
        total = known[0] if known else division.size
    elif (end := rounds_needed(results)) is not None:
        total = end
    have = {number for result in results for number in _numbers(result)}
    for index in count():
        each = part(division, index)
        if total is not None and each.first >= total:
            return
        if total is not None:
            each = replace(each, last=min(each.last, total - 1))
        if not have.issuperset(range(each.first, each.last + 1)):
            yield each


def result_of(reports: Iterable[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """The result of a part, from the reports of a ``WorkerReply``."""
    return next((each[PART_RESULT] for each in reports if PART_RESULT in each), None)


def keep_examples(session: PytestSession, results: Iterable[Mapping[str, Any]]) -> None:
    """Save the failing examples that parts have found, and delete those that pass now."""
    from pytest_pallas.database.recorded import make_changes

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
