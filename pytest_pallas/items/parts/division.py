"""How items are divided, and what is left to run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Literal

import pytest

from pytest_pallas.decoding import decode
from pytest_pallas.isolation.messages import Part
from pytest_pallas.items.item import SpecItem
from pytest_pallas.items.mutants import MutantsItem
from pytest_pallas.items.parts.mutant_results import MUTANTS_PER_PART, MutantsPart
from pytest_pallas.items.parts.round_results import RoundsPart
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
