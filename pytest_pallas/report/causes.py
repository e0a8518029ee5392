"""Failures of one kernel that have one cause are reported once, with the checks that show it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

from pytest_pallas.record import Record

#: Facts of a wrong answer that are alike where its cause is.
_ALIKE = ("pattern", "block")


def cause_of(record: Record) -> Hashable | None:
    """What tells the cause of a failure from that of another; None if nothing is known of it.

    That is what the simulator found, by kind, reference and line; of a wrong answer the pattern of
    its wrong elements and the block that they are in; of a kernel that raised what it said.
    """
    if record.outcome != "failed" or not record.explanation:
        return None
    if record.findings:
        seen = frozenset(_finding(each) for each in record.findings)
    else:
        facts = record.explanation["facts"]
        alike = [(each["name"], each["text"]) for each in facts if each["name"] in _ALIKE]
        if not alike and facts and any(each["name"] == "wrong at" for each in facts):
            return None  # wrong in no pattern
        seen = tuple(alike) or (record.explanation["summary"], *record.explanation["details"])
    home = record.test.partition("::")[0]
    return (home, record.kernel, record.backend, tuple(record.mesh.items()), seen)


def grouped(records: Iterable[Record]) -> list[list[Record]]:
    """Failures by cause, in the order of the first of each; alone where nothing is known of it."""
    groups: dict[Hashable, list[Record]] = {}
    for record in records:
        cause = cause_of(record)
        groups.setdefault(id(record) if cause is None else cause, []).append(record)
    return list(groups.values())


def others_by_test(records: Sequence[Record]) -> Mapping[str, Sequence[Record]]:
    """For each test that stands for several failures, the others; for each of those, nothing.

    Only tests with a single failure are put together: what else a test reports would be lost.
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
