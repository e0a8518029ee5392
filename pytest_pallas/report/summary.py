"""Group failures by their cause, and print the summary table of kernels by backends.

Both read records only. ``grouped`` puts the failures of a kernel together that have one cause: the
terminal and the page print the cause once, with all checks that found it. ``summary`` is the table
of families and their kernels, worst first. On a narrow terminal it is a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pallas_sim.chips import Label
from pytest_pallas.record import STATUSES, Record, status_of
from pytest_pallas.report.section import group_by, number, rendered

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table

#: Facts of a wrong output that are equal if the cause is.
_ALIKE = ("cause", "pattern", "block")


def cause_of(record: Record) -> Hashable | None:
    """Identify the cause of a failure; None if it is not known.

    A finding of the simulator is identified by kind, ref and line, a wrong output by the pattern
    and the block of its wrong elements, and a kernel that raised by the error.
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
    """Group failures by cause, in the order of the first; one without a known cause is alone."""

    def key(record: Record) -> Hashable:
        cause = cause_of(record)
        return id(record) if cause is None else cause

    return list(group_by(records, key).values())


def others_by_test(records: Sequence[Record]) -> Mapping[str, Sequence[Record]]:
    """Map each test that represents several failures to the other tests, and these to nothing.

    Only tests with a single failure are grouped, because other failures of a test would be lost.
    """
    failures_of = (record for record in records if record.outcome == "failed")
    failed = group_by(failures_of, lambda record: record.test)
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

#: The cell of a backend that a kernel did not run on.
_NONE = "-"

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
    """Print the summary table as text.

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
    several = len({row.family for row in rows}) > 1
    table = _SummaryTable(backends, several=several, width=width, color=color)
    text, rest = table.worst(shown, lines)
    texts = [text] if text else []
    if rest:
        texts.append(f"... and {rest} more kernel{'' if rest == 1 else 's'} (-v lists them)")
    if only_failed and len(shown) < len(rows):
        texts.append(f"{number(len(rows) - len(shown), 'kernel')} without failures")
    return "\n".join(texts)


def backends_of(records: Iterable[Record], families: Sequence[str]) -> list[str]:
    """List the labels of the backends in records, in the order of ``families``."""
    backends = list(dict.fromkeys(record.backend for record in records))
    known = [*families, *(Label.of(backend).name for backend in backends)]
    return sorted(backends, key=lambda backend: known.index(Label.of(backend).name))


def _rows(records: Sequence[Record], backends: Sequence[str]) -> Iterator[SummaryRow]:
    groups = group_by(records, lambda record: (record.family, record.kernel))
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


@dataclass(frozen=True)
class _SummaryTable:
    """Prints rows as a table, or as a list if the terminal is narrow.

    Attributes:
      backends: labels, in the order of the columns.
      several: whether there are several families, which then have lines of their own.
      width: columns of the terminal.
      color: whether the terminal has colours.
    """

    backends: Sequence[str]
    several: bool
    width: int
    color: bool

    @property
    def indent(self) -> str:
        """The indentation of kernels."""
        return "  " if self.several else ""

    def worst(self, rows: Sequence[SummaryRow], lines: int | None) -> tuple[str, int]:
        """Print the worst kernels that fit into so many lines; return the number of the others.

        Families and wrapped cells take lines, too. None is no limit.
        """
        worst_first = sorted(rows, key=lambda row: row.order)
        most = len(rows) if lines is None else min(len(rows), lines)
        while True:
            text = self.text(worst_first[:most])
            taken = len(text.splitlines()) - 1  # without the titles
            if lines is None or taken <= lines or most <= 1:
                return text, len(rows) - most
            most -= max(1, (taken - lines) * most // taken)

    def text(self, rows: Sequence[SummaryRow]) -> str:
        """Print kernels, by family; equal ones keep their order, and only their backends count."""
        if not rows:
            return ""
        columns = range(len(self.backends))
        used = [at for at in columns if any(row.cells[at][0] != _NONE for row in rows)]
        if len(used) < len(self.backends):
            rest = replace(self, backends=[self.backends[at] for at in used])
            return rest.text([replace(row, cells=[row.cells[at] for at in used]) for row in rows])
        narrow = self.width < NARROW and self._natural(rows) > self.width
        families = group_by(rows, lambda row: row.family)
        table = self._list(families) if narrow else self._table(families)
        return rendered(table, width=self.width, color=self.color)

    def _natural(self, rows: Sequence[SummaryRow]) -> int:
        """Compute the width of the table without wrapped or cut cells."""
        kernels = (len(self.indent + row.kernel) for row in rows)
        columns = [max(len("kernel"), *kernels), *map(len, _LAST)]
        for column, backend in enumerate(self.backends):
            columns.append(max(len(backend), *(len(row.cells[column][0]) for row in rows)))
        return sum(columns) + 2 * (len(columns) - 1)

    def _table(self, families: Mapping[str, Sequence[SummaryRow]]) -> Table:
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
        table.add_column("kernel", no_wrap=True)
        for backend in self.backends:
            table.add_column(backend)
        for title in _LAST:
            table.add_column(title, justify="right")
        for family, rows in families.items():
            if self.several:
                table.add_row(Text(family or _OWN, style="bold"))
            for row in rows:
                cells = (Text(text, style=style) for text, style in row.cells)
                kernel = Text(self.indent + row.kernel)
                table.add_row(kernel, *cells, str(row.examples), f"{row.seconds:.1f}")
        return table

    def _list(self, families: Mapping[str, Sequence[SummaryRow]]) -> Group:
        """Print a line for each kernel, and one below it for each backend that ran it."""
        from rich.console import Group
        from rich.text import Text

        longest = max(map(len, self.backends))
        lines: list[Text] = []
        for family, rows in families.items():
            if self.several:
                lines.append(Text(family or _OWN, style="bold"))
            for row in rows:
                about = f"{row.kernel}  {row.examples} in {row.seconds:.1f} s"
                lines.append(Text(self.indent + about))
                for backend, (text, style) in zip(self.backends, row.cells, strict=True):
                    if text != _NONE:
                        title = f"{self.indent}  {backend:<{longest}}  "
                        lines.append(Text.assemble(title, (text, style)))
        return Group(*lines)


def worst(rows: Iterable[Record]) -> float | None:
    """Find the largest multiple; None if none was measured. Expected failures do not count."""
    measured = (r.multiple for r in rows if r.outcome != "xfailed" and r.multiple is not None)
    return max(measured, default=None)


def _cell(rows: Sequence[Record]) -> tuple[str, str]:
    """Write the text of a cell; returns it with its style."""
    if not rows:
        return _NONE, "dim"
    count = Counter(row.outcome for row in rows)
    failed = count["failed"] + count["xpassed"]
    parts = [counts_text(rows)]
    multiples = [r.multiple for r in rows if r.multiple is not None and r.outcome == "passed"]
    if multiples and not failed:
        parts.append(times(max(multiples)))
    style = "red" if failed else "yellow" if not count["passed"] else "green"
    return " ".join(parts), style


def counts_text(rows: Iterable[Record]) -> str:
    """Count checks as a cell of the table does: ``8 ok 3 FAILED 1 xfail``.

    A line below the table lists the checks that did not run; a cell counts them if it has no other.
    """
    count = Counter(map(status_of, rows))
    parts = [f"{count['passed']} ok"] if count["passed"] else []
    failed = count["failed"] + count["xpassed"]
    parts += [f"{failed} FAILED"] if failed else []
    parts += [f"{count['xfailed']} xfail"] if count["xfailed"] else []
    if not parts:
        parts = [f"{count[name]} {name}" for name in STATUSES if count[name]]
    return " ".join(parts)


def times(multiple: float | None) -> str:
    """Format an error as a multiple of the baseline's; "" if it is not known."""
    if multiple is None:
        return ""
    if not multiple:
        return "exact"
    return f"{multiple:.1f}x" if multiple < 1000 else ">999x"
