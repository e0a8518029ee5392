"""The summary table, kernels by backends, and the failures that have one cause; from records only.

``grouped`` puts the failures of a kernel together whose data say that they have one cause, so that
the terminal and the page print it once with all checks that found it. ``summary`` is the table:
families, and kernels in them, worst first. Where a narrow terminal has no room, it is a list.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pallas_sim.chips import Label
from pytest_pallas.record import Record
from pytest_pallas.report.section import rendered

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
        seen: Hashable = frozenset(map(_finding, record.findings))
    else:
        facts = record.explanation["facts"]
        alike = [(fact["name"], fact["text"]) for fact in facts if fact["name"] in _ALIKE]
        if not alike and any(fact["name"] == "wrong at" for fact in facts):
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
    single = [failures[0] for failures in failed.values() if len(failures) == 1]
    several = [group for group in grouped(single) if len(group) > 1]
    return {
        record.test: () if number else group[1:]
        for group in several
        for number, record in enumerate(group)
    }


def _finding(finding: Mapping[str, Any]) -> Hashable:
    accesses = [(a["kind"], a["ref"], a["line"]) for a in finding["accesses"]]
    return (finding["kind"], tuple(sorted(accesses)) or finding["message"])


# The summary table.

#: On terminals with fewer columns, a list replaces a table that does not fit.
NARROW = 72

#: Columns of the table besides kernels and backends.
_LAST = ("examples", "seconds")

#: The family of tests without a spec.
_OWN = "tests without specs"


@dataclass(frozen=True, kw_only=True)
class SummaryRow:
    """One kernel.

    Attributes:
      kernel: its name.
      family: of its spec.
      failed: how many checks failed.
      multiple: the worst error as a multiple of the baseline's; None if none was measured.
      cells: text and style, one for each backend.
      examples: how many ran.
      seconds: how long they took.
    """

    kernel: str
    family: str
    failed: int
    multiple: float | None
    cells: Sequence[tuple[str, str]]
    examples: int
    seconds: float

    @property
    def order(self) -> tuple[bool, float]:
        """Failures first, then the largest error."""
        return not self.failed, 1.0 if self.multiple is None else -self.multiple


def summary(
    records: Sequence[Record],
    *,
    families: Sequence[str],
    width: int,
    color: bool,
    only_failed: bool = False,
    lines: int | None = None,
) -> str:
    """The summary table as text.

    A cell has the numbers of checks that passed, failed, were skipped or failed as expected, and
    the worst error as a multiple of the baseline's; the last columns are examples and seconds.
    Kernels are grouped by family: failed ones first, then those with the largest errors. On a
    narrow terminal, a list replaces the table.

    Args:
      records: of backends that execute kernels.
      families: the names of the known backends, in the order of the columns.
      width: columns of the terminal.
      color: whether the terminal has colours.
      only_failed: whether to only count kernels without failures.
      lines: limit on the lines of kernels and families: the worst kernels are shown, the rest is
        counted. None for all.
    """
    backends = backends_of(records, families)
    rows = list(_rows(records, backends))
    shown = [row for row in rows if row.failed] if only_failed else rows
    quiet = len(rows) - len(shown)
    several = len({row.family for row in rows}) > 1
    make = functools.partial(
        _rendered, backends=backends, several=several, width=width, color=color
    )
    table, rest = _worst(shown, lines, make)
    text = [table] if table else []
    if rest:
        text.append(f"... and {rest} more kernel{'' if rest == 1 else 's'} (-v lists them)")
    if only_failed and quiet:
        text.append(f"{quiet} kernel{'' if quiet == 1 else 's'} without failures")
    return "\n".join(text)


def backends_of(records: Iterable[Record], families: Sequence[str]) -> list[str]:
    """The labels of the backends in records, in the order of ``families``."""
    backends = list(dict.fromkeys(record.backend for record in records))
    known = [*families, *(Label.of(backend).name for backend in backends)]
    return sorted(backends, key=lambda backend: known.index(Label.of(backend).name))


def _rendered(
    rows: Sequence[SummaryRow], *, backends: Sequence[str], several: bool, width: int, color: bool
) -> str:
    """Kernels as a table, or as a list if that is narrower."""
    if not rows:
        return ""
    indent = "  " if several else ""
    narrow = width < NARROW and _natural(rows, backends, indent) > width
    make = _list if narrow else _table
    return make(_by_family(rows), backends, indent, several, width=width, color=color)


def _worst(
    rows: Sequence[SummaryRow],
    lines: int | None,
    make: Callable[[Sequence[SummaryRow]], str],
) -> tuple[str, int]:
    """The table of the worst kernels that fits into so many lines, and the number of the others.

    Families and wrapped cells take lines, too.
    """
    if lines is None:
        return make(rows), 0
    worst_first = sorted(rows, key=lambda row: row.order)
    most = min(len(rows), lines)
    while True:
        shown = worst_first[:most]
        text = make(shown if most < len(rows) else rows)
        taken = len(text.splitlines()) - 1  # without the titles
        if taken <= lines or most <= 1:
            return text, len(rows) - most
        most -= max(1, (taken - lines) * most // taken)


def _rows(records: Sequence[Record], backends: Sequence[str]) -> Iterator[SummaryRow]:
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in records:
        groups.setdefault((record.family, record.kernel), []).append(record)
    for (family, kernel), rows in groups.items():
        yield SummaryRow(
            kernel=kernel,
            family=family,
            failed=sum(row.outcome in ("failed", "xpassed") for row in rows),
            multiple=worst(rows),
            cells=[_cell([row for row in rows if row.backend == b]) for b in backends],
            examples=sum(row.examples for row in rows),
            seconds=sum(row.seconds for row in rows),
        )


def worst(rows: Iterable[Record]) -> float | None:
    """The largest multiple; None if none was measured. Those of expected failures do not count."""
    measured = (r.multiple for r in rows if r.outcome != "xfailed" and r.multiple is not None)
    return max(measured, default=None)


def _by_family(rows: Iterable[SummaryRow]) -> list[tuple[str, list[SummaryRow]]]:
    """Families with their kernels, both worst first; equal ones keep their order."""
    groups: dict[str, list[SummaryRow]] = {}
    for row in sorted(rows, key=lambda row: row.order):
        groups.setdefault(row.family, []).append(row)
    return list(groups.items())


def _table(
    groups: Sequence[tuple[str, Sequence[SummaryRow]]],
    backends: Sequence[str],
    indent: str,
    several: bool,
    *,
    width: int,
    color: bool,
) -> str:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("kernel", no_wrap=True)
    for backend in backends:
        table.add_column(backend)
    for title in _LAST:
        table.add_column(title, justify="right")
    for family, rows in groups:
        if several:
            table.add_row(Text(family or _OWN, style="bold"))
        for row in rows:
            table.add_row(
                Text(indent + row.kernel),
                *(Text(text, style=style) for text, style in row.cells),
                str(row.examples),
                f"{row.seconds:.1f}",
            )
    return rendered(table, width=width, color=color)


def _list(
    groups: Sequence[tuple[str, Sequence[SummaryRow]]],
    backends: Sequence[str],
    indent: str,
    several: bool,
    *,
    width: int,
    color: bool,
) -> str:
    """A line for each kernel, and one below it for each backend that ran it."""
    from rich.console import Group
    from rich.text import Text

    longest = max(map(len, backends))
    lines: list[Text] = []
    for family, rows in groups:
        if several:
            lines.append(Text(family or _OWN, style="bold"))
        for row in rows:
            lines.append(Text(f"{indent}{row.kernel}  {row.examples} in {row.seconds:.1f} s"))
            for backend, (text, style) in zip(backends, row.cells, strict=True):
                if text != "-":
                    place = f"{indent}  {backend:<{longest}}  "
                    lines.append(Text.assemble(place, (text, style)))
    return rendered(Group(*lines), width=width, color=color)


def _natural(rows: Sequence[SummaryRow], backends: Sequence[str], indent: str) -> int:
    """The width of the table without wrapped or cut cells."""
    columns = [max(len("kernel"), *(len(indent + row.kernel) for row in rows))]
    columns += [
        max(len(backend), *(len(row.cells[place][0]) for row in rows))
        for place, backend in enumerate(backends)
    ]
    columns += [len(title) for title in _LAST]
    return sum(columns) + 2 * (len(columns) - 1)


def _cell(rows: Sequence[Record]) -> tuple[str, str]:
    """The text of one cell and its style."""
    if not rows:
        return "-", "dim"
    count = Counter(row.outcome for row in rows)
    parts = [f"{count['passed']} ok"] if count["passed"] else []
    failed = count["failed"] + count["xpassed"]
    parts += [f"{failed} FAILED"] if failed else []
    parts += [f"{count['xfailed']} xfail"] if count["xfailed"] else []
    # A line below the table lists skipped checks and their reasons.
    parts += [f"{count['skipped']} skipped"] if count["skipped"] and not parts else []
    multiples = [r.multiple for r in rows if r.multiple is not None and r.outcome == "passed"]
    if multiples and not failed:
        parts.append(times(max(multiples)))
    style = "red" if failed else "yellow" if not count["passed"] else "green"
    return " ".join(parts), style


def times(multiple: float | None) -> str:
    """An error as a multiple of the baseline's, in a few characters; "" if it is not known."""
    if multiple is None:
        return ""
    if not multiple:
        return "exact"
    return f"{multiple:.1f}x" if multiple < 1000 else ">999x"
