"""Group the failures of one kernel by cause, and report each cause once with its checks."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from pytest_pallas.record import Record

#: Facts of a wrong output that are equal if the cause is.
_ALIKE = ("cause", "pattern", "block")


def cause_of(record: Record) -> Hashable | None:
    """The identity of the cause of a failure; None if it is not known.

    For findings of the simulator: kind, ref and line; for a wrong output: the pattern of the wrong
    elements and their block; for a kernel that raised: the error.
    """
    if record.outcome != "failed" or not record.explanation or record.others:
        return None  # with several causes it is alone
    if record.findings:
        seen = frozenset(_finding(each) for each in record.findings)
    else:
        facts = record.explanation["facts"]
        alike = [(each["name"], each["text"]) for each in facts if each["name"] in _ALIKE]
        if not alike and facts and any(each["name"] == "wrong at" for each in facts):
            return None  # there is no pattern
        seen = tuple(alike) or (record.explanation["summary"], *record.explanation["details"])
    home = record.test.partition("::")[0]
    return (home, record.kernel, record.backend, tuple(record.mesh.items()), seen)


def grouped(records: Iterable[Record]) -> list[list[Record]]:
    """Failures by cause, in order of the first of each; those without a known cause are alone."""
    groups: dict[Hashable, list[Record]] = {}
    for record in records:
        cause = cause_of(record)
        groups.setdefault(id(record) if cause is None else cause, []).append(record)
    return list(groups.values())


def others_by_test(records: Sequence[Record]) -> Mapping[str, Sequence[Record]]:
    """For each test that represents several failures, the other tests; for those, nothing.

    Only tests with a single failure are grouped, because other failures of a test would be lost.
    """
    failed: dict[str, list[Record]] = {}
    for record in records:
        if record.outcome == "failed":
            failed.setdefault(record.test, []).append(record)
    single = [found[0] for found in failed.values() if len(found) == 1]
    several = [group for group in grouped(single) if len(group) > 1]
    return {
        record.test: () if number else group[1:]
        for group in several
        for number, record in enumerate(group)
    }


def _finding(finding: Mapping[str, Any]) -> Hashable:
    accesses = [(each["kind"], each["ref"], each["line"]) for each in finding["accesses"]]
    return (finding["kind"], tuple(sorted(accesses)) or finding["message"])
