"""The costs of the machine code of kernels as tables, and the file of ``--pallas-cost``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_pallas.backends import TARGETS
from pytest_pallas.compilers.costs import RecordedCost, entry, save
from pytest_pallas.compilers.report import from_json
from pytest_pallas.record import Record
from pytest_pallas.report.section import Results, section
from pytest_pallas.report.terminal import rendered
from pytest_pallas.session import PytestSession

#: A report as plain values.
Report = Mapping[str, Any]

#: Spaces between columns.
_GAP = 2

#: Longest signature in a row's name.
_SIGNATURE = 40


@dataclass(frozen=True)
class _Column:
    """A column: its title, its text in a row, and the order in which columns are omitted."""

    title: str
    text: Callable[[Report], str]
    keep: int
    """Columns with a smaller number are left out first."""
    bad: bool = False
    """Whether anything above 0 is worth a look."""


def costs(records: Sequence[Record], *, width: int, color: bool) -> Iterator[str]:
    """The costs of the code of each kernel on each chip: a table for TPUs, one for GPUs.

    A row is the typical call of a spec with the longest code, or the call with the longest code.
    """
    found = [
        (with_mesh(record), report)
        for record in sorted(records, key=lambda record: record.family)
        if record.check == "forward" and (report := shown_report(record)) is not None
    ]
    for platform, columns in (("tpu", _TPU), ("gpu", _GPU)):
        reports = [(n, r) for n, r in found if TARGETS[r["target"]].platform == platform]
        if reports:
            rows = _named(reports)
            kept, dropped = _fitting(columns, rows, width)
            yield _table(kept, rows, width=width, color=color)
            yield from _legend(platform, kept, dropped)
            notes = {(n, text): None for n, r in reports for text in r.get("warnings", ())}
            yield from (f"warning: {name}: {text}" for name, text in notes)


def _table(
    columns: Sequence[_Column], rows: Sequence[tuple[str, Report]], *, width: int, color: bool
) -> str:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("kernel", no_wrap=True)
    table.add_column("chip", no_wrap=True)
    for column in columns:
        table.add_column(column.title, justify="right", no_wrap=True)
    before = ""
    for name, report in rows:
        cells = [(column.text(report), column.bad) for column in columns]
        table.add_row(
            Text("" if name == before else name),
            report["target"],
            *(
                Text(text, style="yellow" if bad and text[0] in "123456789" else "")
                for text, bad in cells
            ),
        )
        before = name
    return rendered(table, width=max(width, _width(columns, rows)), color=color)


def _legend(platform: str, kept: Sequence[_Column], dropped: Sequence[_Column]) -> Iterator[str]:
    titles = [column.title for column in kept]
    if platform == "tpu":
        units = [title for title in titles if title in _UNITS.values()]
        text = "loop: bundles of the main loop"
        if units:
            text += f"; {units[0]} to {units[-1]}: its slots in use, in %"
        yield f"{text}. Bundles measure code, not time: they do not include DMAs"
    if dropped:
        names = ", ".join(column.title for column in dropped)
        yield f"omitted columns: {names}; widen the terminal, or see --pallas-results"


def _fitting(
    columns: Sequence[_Column], rows: Sequence[tuple[str, Report]], width: int
) -> tuple[list[_Column], list[_Column]]:
    """The columns that fit, and those that do not."""
    kept = list(columns)
    while len(kept) > 1 and _width(kept, rows) > width:
        kept.remove(min(kept, key=lambda column: column.keep))
    return kept, [column for column in columns if column not in kept]


def _width(columns: Sequence[_Column], rows: Sequence[tuple[str, Report]]) -> int:
    """Columns of the terminal that a table takes."""
    name = max(len("kernel"), *(len(name) for name, _ in rows))
    chip = max(len("chip"), *(len(report["target"]) for _, report in rows))
    numbers = (
        max(len(column.title), *(len(column.text(report)) for _, report in rows)) + _GAP
        for column in columns
    )
    return name + _GAP + chip + sum(numbers)


def _named(reports: Sequence[tuple[str, Report]]) -> list[tuple[str, Report]]:
    """The rows in order, each once; with its signature if a chip has several rows of a name."""
    distinct: dict[tuple[str, str], dict[str, Report]] = {}
    for name, report in reports:
        distinct.setdefault((name, report["target"]), {})[report.get("signature", "")] = report
    several = {name for (name, _), found in distinct.items() if len(found) > 1}
    rows = [
        (f"{name} {_cut(signature)}" if name in several else name, report)
        for (name, _), found in distinct.items()
        for signature, report in found.items()
    ]
    names, chips = list(dict.fromkeys(name for name, _ in rows)), list(TARGETS)
    return sorted(rows, key=lambda row: (names.index(row[0]), chips.index(row[1]["target"])))


def _cut(text: str) -> str:
    return text if len(text) <= _SIGNATURE else text[: _SIGNATURE - 3] + "..."


def with_mesh(record: Record) -> str:
    """The name of the kernel, and the mesh it was compiled for."""
    return " ".join([record.kernel, *(f"{axis}{size}" for axis, size in record.mesh.items())])


def shown_report(record: Record) -> Report | None:
    """The report whose costs are shown: the worst of the typical calls, or of all calls."""
    done = [
        report
        for report in record.compiled
        if report["status"] == "compiled" and not report.get("costs_skipped")
    ]
    chosen = [report for report in done if report.get("typical")] or done
    return max(chosen, key=lambda r: (r.get("bundles", 0), r.get("registers", 0)), default=None)


def _number(name: str) -> Callable[[Report], str]:
    def text(report: Report) -> str:
        value = report.get(name)
        return "-" if value is None else f"{value:,}"

    return text


def _bytes(name: str) -> Callable[[Report], str]:
    return lambda report: size_words(report.get(name))


def _share(name: str, capacity: str) -> Callable[[Report], str]:
    def text(report: Report) -> str:
        value, most = report.get(name), report.get(capacity)
        size = size_words(value)
        return size if value is None or not most else f"{size} {100 * value / most:.0f}%"

    return text


def _slots(unit: str) -> Callable[[Report], str]:
    def text(report: Report) -> str:
        share = report.get("loop_slots", {}).get(unit)
        return "-" if share is None else f"{100 * share:.0f}"

    return text


def size_words(value: int | None) -> str:
    """A number of bytes in a few characters."""
    if value is None:
        return "-"
    if value < 1024:
        return f"{value} B"
    return f"{value / 1024:.0f} KiB" if value < 2**20 else f"{value / 2**20:.1f} MiB"


#: Titles of the units, by their names in ``Cost.loop_slots``.
_UNITS = {
    "mxu": "mxu",
    "xlu": "xlu",
    "valu": "valu",
    "eup": "eup",
    "load": "ld",
    "store": "st",
    "scalar": "sc",
}

_TPU = (
    _Column("VMEM", _share("vmem_bytes", "vmem_capacity"), 9),
    _Column("SMEM", _bytes("smem_bytes"), 1),
    _Column("code", _bytes("code_bytes"), 2),
    _Column("bundles", _number("bundles"), 9),
    _Column("empty", _number("empty_bundles"), 3),
    _Column("loop", _number("loop_bundles"), 8),
    *(
        _Column(title, _slots(unit), 7 if unit in ("mxu", "valu") else 5)
        for unit, title in _UNITS.items()
    ),
    _Column("spills", _number("spills"), 9, bad=True),
    _Column("fills", _number("fills"), 4, bad=True),
)

_GPU = (
    _Column("registers", _number("registers"), 9),
    _Column("shared memory", _share("shared_bytes", "shared_capacity"), 9),
    _Column("stack", _bytes("stack_bytes"), 2),
    _Column("spill stores", _bytes("spill_store_bytes"), 8, bad=True),
    _Column("spill loads", _bytes("spill_load_bytes"), 7, bad=True),
    _Column("warnings", lambda report: str(len(report.get("warnings", ()))), 3, bad=True),
)


def settle(session: PytestSession, records: Iterable[Record]) -> str:
    """Write the costs file, or compare with it; returns the line of the report.

    Raises:
      OptionError: the file is not a costs file.
      OSError: the file cannot be written.
    """
    entries = list(_entries(records))
    path = session.options.cost_file
    if not entries:
        return (
            f"--pallas-cost={session.options.cost}: no kernel was compiled; choose a compiling "
            "backend, such as --pallas-backend=tpu-compile:v6e"
        )
    if session.options.cost == "record":
        count = save(session.cost_file, entries)
        return f"costs of {count} programs recorded in {path}"
    assert session.costs is not None
    unknown = [entry for entry in entries if entry.key not in session.costs.entries]
    text = f"costs of {len(entries) - len(unknown)} programs compared with {path}"
    if unknown:
        names = ", ".join(dict.fromkeys(f"{e.kernel} ({e.target})" for e in unknown))
        text += f"; not in the file: {len(unknown)} ({names}); --pallas-cost=record adds them"
    return text


def _entries(records: Iterable[Record]) -> Iterator[RecordedCost]:
    """The costs of all compiled programs; for a spec with typical calls, of those only."""
    for record in records:
        reports = [from_json(plain) for plain in record.compiled]
        typical = [report for report in reports if report.typical]
        for report in typical or reports:
            if report.status == "compiled":
                yield entry(record.kernel, record.check, report)


@section("costs")
def section_of_costs(results: Results) -> Iterator[str]:
    """The result of recording or comparing costs."""
    if results.costs:
        yield results.costs
