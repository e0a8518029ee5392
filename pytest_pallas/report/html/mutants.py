"""The mutants of each kernel: a row of a table, and the survivors below it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_pallas.mutation_runner.verdict import MutantVerdict, who
from pytest_pallas.notes import Note
from pytest_pallas.record import Record
from pytest_pallas.report.sections.mutants import KernelMutants, groups, has_none, together

#: States of a row: a survivor has precedence.
STATES = ("survived", "killed", "unscored")


@dataclass(frozen=True, kw_only=True)
class MutantEntry:
    """A mutant with details.

    Attributes:
      operator: the mutation operator.
      change: the change, and the part that it changes.
      body: name of its body, if it is not the kernel's own.
      where: ``file:line``.
      callers: the lines of its callers, in short; or "".
      source: the line of code; "" if it cannot be read.
      effort: number of examples that ran on it, and their time; "" if none ran.
      reason: why it is equivalent or was not tried.
    """

    operator: str
    change: str
    body: str
    where: str
    callers: str
    source: str
    effort: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class MutantRow:
    """The mutants of one kernel, or of all kernels.

    Attributes:
      anchor: the page's name for it.
      kernel: its name.
      family: the family of its spec; "" for kernels of user-written tests.
      state: one of ``STATES``.
      score: the percentage of mutants that were killed, in words.
      mutants: how many there are.
      killed, survived, equivalent, untried: the number of mutants with each status.
      by: the checks or tests with the number of mutants that they killed, the most first.
      survivors: the mutants that no check killed.
      folded: groups of mutants that the page shows on demand, with their titles.
      notes: stale EquivalentMutant marks, and checks that fail without a mutant.
    """

    anchor: str
    kernel: str
    family: str
    state: str
    score: str
    mutants: int
    killed: int
    survived: int
    equivalent: int
    untried: int
    by: Sequence[tuple[str, int]]
    survivors: Sequence[MutantEntry]
    folded: Sequence[tuple[str, Sequence[MutantEntry]]]
    notes: Sequence[Note]


@dataclass(frozen=True)
class MutantSummary:
    """The section of the page.

    Attributes:
      rows: one for each kernel, the worst score first.
      every: all kernels in one row.
      without: kernels without mutants.
    """

    rows: Sequence[MutantRow]
    every: MutantRow
    without: Sequence[str]


def mutants(records: Sequence[Record]) -> MutantSummary | None:
    """The verdicts of the mutants of all kernels; None without ``--pallas-mutate``."""
    made = groups(records)
    without = list(dict.fromkeys(record.kernel for record in records if has_none(record)))
    if not made and not without:
        return None
    return MutantSummary(
        rows=[_row(f"mutants-{number}", group) for number, group in enumerate(made)],
        every=_row("", together(made)),
        without=without,
    )


def _row(anchor: str, group: KernelMutants) -> MutantRow:
    score = group.score
    survived = _entries(group, [v for v in group.verdicts if v.status == "survived"])
    return MutantRow(
        anchor=anchor,
        kernel=group.kernel,
        family=group.family,
        state="survived" if survived else "unscored" if score is None else "killed",
        score=_percent(score),
        mutants=len(group.verdicts),
        killed=group.count("killed"),
        survived=len(survived),
        equivalent=group.count("equivalent"),
        untried=group.count("untried"),
        by=_by(group.verdicts),
        survivors=survived,
        folded=[
            (title, _entries(group, verdicts))
            for title, verdicts in _folded(group.verdicts).items()
            if verdicts
        ],
        notes=group.notes,
    )


def _percent(score: float | None) -> str:
    """A score in words. It is rounded down: with a survivor it is never 100 %."""
    return "-" if score is None else f"{math.floor(10 * score) / 10:g} %"


def _by(verdicts: Sequence[MutantVerdict]) -> list[tuple[str, int]]:
    """The number of mutants that each check killed; after a crash the check may be unknown."""
    counts = Counter(who(v) or v.how or "unknown" for v in verdicts if v.status == "killed")
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def _folded(verdicts: Sequence[MutantVerdict]) -> Mapping[str, list[MutantVerdict]]:
    equivalent = [v for v in verdicts if v.status == "equivalent"]
    return {
        "equivalent: marked by the spec": [v for v in equivalent if v.marked],
        "equivalent: the same program": [v for v in equivalent if not v.marked],
        "not tried": [v for v in verdicts if v.status == "untried"],
    }


def _entries(group: KernelMutants, verdicts: Sequence[MutantVerdict]) -> list[MutantEntry]:
    return [_entry(group, verdict) for verdict in verdicts]


def _entry(group: KernelMutants, verdict: MutantVerdict) -> MutantEntry:
    change, part = verdict.change, verdict.part
    if part and part not in change.split():  # "sub -> add" needs no "(sub)"
        change = f"{change} ({part})"
    count = "1 example" if verdict.examples == 1 else f"{verdict.examples:,} examples"
    return MutantEntry(
        operator=verdict.operator,
        change=change,
        body="" if verdict.kernel == group.kernel else verdict.kernel,
        where=verdict.where,
        callers="".join(f", called in {place}" for place in verdict.called_from),
        source=verdict.source,
        effort=f"{count}, {verdict.seconds:.1f} s" if verdict.examples else "",
        reason=verdict.reason,
    )
