"""Kernels by backends: the rows of the page's first table, and their details."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_pallas.record import OUTCOMES, Record
from pytest_pallas.report.causes import grouped
from pytest_pallas.report.html.failures import FailureCard, failure
from pytest_pallas.report.summary import worst

#: Outcomes that fail a run.
BAD = ("failed", "xpassed")

#: States of a row or a cell, worst first.
STATES = ("failed", "xfailed", "passed", "skipped", "none")

_WORDS = {"failed": "failed", "passed": "ok", "xfailed": "xfail", "skipped": "skipped"}

#: Number of failures with pictures, which limits the size of the page.
MOST_DRAWN = 400


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
      records: all records, failures first.
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
    records: Sequence[Record]
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
                records=sorted(rows, key=_order),
                examples=sum(row.examples for row in rows),
                seconds=sum(row.seconds for row in rows),
                multiple=_worst(rows),
            )
        )
    return sorted(found, key=lambda kernel: (-kernel.rank, kernel.family, kernel.name))


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
