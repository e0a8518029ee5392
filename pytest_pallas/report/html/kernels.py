"""Kernels by backends: the rows of the page's first table, and their details."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace

from pytest_pallas.record import OUTCOMES, Record
from pytest_pallas.report.causes import grouped
from pytest_pallas.report.html.failures import FailureCard, failure
from pytest_pallas.report.summary import worst

#: Outcomes that fail a run.
BAD = ("failed", "xpassed")

#: States of a row or a cell, worst first.
STATES = ("failed", "xfailed", "passed", "skipped", "none")

_WORDS = {"failed": "failed", "passed": "ok", "xfailed": "xfail", "skipped": "skipped"}

#: Limits on the size of the page: the number of failures with pictures, and of kernels without
#: failures that have details.
MOST_DRAWN, MOST_DETAILED = 400, 1000


@dataclass(frozen=True, kw_only=True)
class KernelCell:
    """The result of a kernel on one backend.

    Attributes:
      state: one of ``STATES``.
      words: the text of the cell, such as ``2 failed``.
      multiple: the worst error of checks that passed as a multiple of the baseline's, in words.
      title: counts of all outcomes.
      rank: the sort key of a column, the worst first.
    """

    state: str
    words: str
    multiple: str
    title: str
    rank: float


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """Checks of a kernel in one row: one that failed, or those that differ in their backend only.

    Attributes:
      check: its name.
      backends: their labels.
      outcome: of each.
      multiple: the worst error as a multiple of the baseline's, or None.
      examples: how many ran on all backends.
      seconds: how long they took.
      remark: the mesh, the reason, notes.
    """

    check: str
    backends: Sequence[str]
    outcome: str
    multiple: float | None
    examples: int
    seconds: float
    remark: str


@dataclass(frozen=True, kw_only=True)
class KernelRow:
    """A kernel with all its checks.

    Attributes:
      anchor: its anchor on the page.
      name: of the kernel.
      family: of its spec.
      file: of its tests.
      state: the worst state of its cells.
      cells: one for each backend of the page.
      failures: the failed checks.
      checks: all checks, failures first; empty if there is no room for them.
      count: how many there are.
      examples: how many ran.
      seconds: how long they took.
      multiple: the worst error as a multiple of the baseline's, or None.
    """

    anchor: str
    name: str
    family: str
    file: str
    state: str
    cells: Sequence[KernelCell]
    failures: Sequence[FailureCard]
    checks: Sequence[CheckRow]
    count: int
    examples: int
    seconds: float
    multiple: float | None

    @property
    def rank(self) -> float:
        """The sort key of kernels, the worst first."""
        return _rank(self.state, len(self.failures), self.multiple)


def kernels(records: Sequence[Record], backends: Sequence[str]) -> list[KernelRow]:
    """The kernels, worst first. Two files may have kernels of the same name."""
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        file = record.test.partition("::")[0]
        groups.setdefault((record.family, file, record.kernel), []).append(record)
    left = MOST_DRAWN
    found: list[KernelRow] = []
    for number, ((family, file, name), rows) in enumerate(groups.items()):
        bad = [row for row in rows if row.outcome in BAD]
        causes = grouped(bad)
        failures = [
            failure(first, drawn=i < left, likewise=others)
            for i, (first, *others) in enumerate(causes)
        ]
        left = max(0, left - len(causes))
        cells = [_cell([row for row in rows if row.backend == b]) for b in backends]
        found.append(
            KernelRow(
                anchor=f"kernel-{number}",
                name=name,
                family=family,
                file=file,
                state=min((cell.state for cell in cells), key=STATES.index),
                cells=cells,
                failures=failures,
                checks=check_rows(rows),
                count=len(rows),
                examples=sum(row.examples for row in rows),
                seconds=sum(row.seconds for row in rows),
                multiple=_worst(rows),
            )
        )
    found.sort(key=lambda kernel: (-kernel.rank, kernel.family, kernel.name))
    right = [place for place, kernel in enumerate(found) if not kernel.failures]
    for place in right[MOST_DETAILED:]:
        found[place] = replace(found[place], checks=())
    return found


def check_rows(records: Sequence[Record]) -> list[CheckRow]:
    """The checks of a kernel, failures first."""
    groups: dict[Hashable, list[Record]] = {}
    for record in sorted(records, key=_order):
        alike = (record.check, record.outcome, _remark(record))
        groups.setdefault(id(record) if record.outcome in BAD else alike, []).append(record)
    return [
        CheckRow(
            check=rows[0].check,
            backends=list(dict.fromkeys(row.backend for row in rows)),
            outcome=rows[0].outcome,
            multiple=max((row.multiple for row in rows if row.multiple is not None), default=None),
            examples=sum(row.examples for row in rows),
            seconds=sum(row.seconds for row in rows),
            remark=_remark(rows[0]),
        )
        for rows in groups.values()
    ]


def _remark(record: Record) -> str:
    mesh = " ".join(f"{axis}={size}" for axis, size in record.mesh.items())
    notes = " ".join(note.text for note in record.notes)
    unverified = " ".join(f"unverified: {text}" for text in record.unverified)
    return " ".join(filter(None, (mesh, record.reason, notes, unverified)))


def times(multiple: float | None) -> str:
    """An error as a multiple of the baseline's, in a few characters."""
    if multiple is None:
        return ""
    if not multiple:
        return "exact"
    return f"{multiple:.1f}x" if multiple < 1000 else ">999x"


def _order(record: Record) -> tuple[int, str]:
    ranked = ("failed", "xpassed", "xfailed", "passed", "skipped")
    return ranked.index(record.outcome), record.backend


def _worst(rows: Sequence[Record]) -> float | None:
    """The worst multiple, as the terminal sorts by it; None if nothing was measured."""
    found = worst(rows)
    return None if found < 0 else found


def _cell(rows: Sequence[Record]) -> KernelCell:
    count = Counter(row.outcome for row in rows)
    failed = sum(count[outcome] for outcome in BAD)
    passed = [row for row in rows if row.outcome == "passed"]
    multiple = _worst(passed)
    # As in the terminal: passed checks have precedence over expected failures.
    numbers = {
        "failed": failed,
        "passed": count["passed"],
        "xfailed": count["xfailed"],
        "skipped": count["skipped"],
    }
    state = next((name for name, number in numbers.items() if number), "none")
    if state == "none":
        return KernelCell(state="none", words="-", multiple="", title="not run", rank=-1.0)
    words = f"{numbers[state]} {_WORDS[state]}"
    if state == "passed" and count["xfailed"]:
        words += f", {count['xfailed']} xfail"
    return KernelCell(
        state=state,
        words=words,
        multiple="" if failed else times(multiple),
        title=", ".join(f"{count[name]} {name}" for name in OUTCOMES if count[name]),
        rank=_rank(state, failed, None if failed else multiple),
    )


def _rank(state: str, failed: int, multiple: float | None) -> float:
    """The state first, then the number of failures, then the error."""
    error = 0.0 if multiple is None else min(multiple, 1e5) / 1e6
    return 1e4 * (len(STATES) - STATES.index(state)) + min(failed, 9999) + error
