"""The tables of compiling backends: which kernels compile for which chips, why not, and costs.

They are made of records. ``write_costs`` writes the file of ``--pallas-cost`` at the end of a
session, or compares with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pallas_sim.chips import TARGETS, Label
from pytest_pallas.backends.registry import Family
from pytest_pallas.compile.costs import RecordedCost, entry, save
from pytest_pallas.compile.service import CompileReport
from pytest_pallas.decoding import decode
from pytest_pallas.pytest_session import PytestSession
from pytest_pallas.record import Record
from pytest_pallas.report.section import Results, rendered, section
from pytest_pallas.report.terminal import footnote_lines

#: Texts of a cell for the status of a compilation, worst first.
_TEXTS = {
    "timed out": "TIMED OUT",
    "crashed": "CRASHED",
    "out of memory": "OUT OF MEMORY",
    "refused": "REFUSED",
}


def split(
    records: Iterable[Record], families: Iterable[Family]
) -> tuple[list[Record], list[Record]]:
    """Split records into those of backends that execute kernels, and those that compile them."""
    names = {family.name for family in families if family.kind == "compiling"}
    parts: tuple[list[Record], list[Record]] = ([], [])
    for record in records:
        parts[Label.of(record.backend).name in names].append(record)
    return parts


def sections(
    records: Sequence[Record], *, width: int, color: bool, every: bool = False
) -> Iterator[str]:
    """Yield the paragraphs on the records of compiling backends; none without one.

    Args:
      records: of compiling backends only.
      width: columns of the terminal. Wider tables omit columns, and list them.
      color: whether the terminal has colours.
      every: whether all reasons of skips and expected failures are listed.
    """
    if not records:
        return
    ran = [record for record in records if record.outcome != "skipped"]
    for platform in dict.fromkeys(target.platform for target in TARGETS.values()):
        rows = [record for record in ran if _platform(record) == platform]
        if rows:
            yield matrix(rows, width=width, color=color)
    if ran:
        yield counts(ran)
    yield from footnote_lines(records, every=every)
    yield from reasons(ran)
    yield from costs(ran, width=width, color=color)


def matrix(records: Sequence[Record], *, width: int, color: bool) -> str:
    """Draw the table of kernels by chips, with the status of the compilation."""
    from rich.text import Text

    present = dict.fromkeys(_chip(record) for record in records)
    chips = sorted(present, key=[*TARGETS, *present].index)
    table = _empty_table(["kernel", *chips])
    for kernel in dict.fromkeys(r.kernel for r in sorted(records, key=lambda r: r.family)):
        rows = [record for record in records if record.kernel == kernel]
        cells = [_cell([r for r in rows if _chip(r) == chip]) for chip in chips]
        table.add_row(Text(kernel), *(Text(text, style=style) for text, style in cells))
    # A broken line is better than a cut word.
    longest = max(len(record.kernel) for record in records) + 24 * len(chips)
    return rendered(table, width=max(width, longest), color=color)


def _empty_table(left: Iterable[str], right: Iterable[str] = ()) -> Any:
    """Make a table of ``rich`` with columns that are aligned to the left and to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for title in left:
        table.add_column(title, no_wrap=True)
    for title in right:
        table.add_column(title, justify="right", no_wrap=True)
    return table


def counts(records: Iterable[Record]) -> str:
    """Say how many programs there are, and how many of them an earlier run compiled."""
    reports = [report for record in records for report in record.compiled]
    compilers = dict.fromkeys(r["compiler"] for r in reports if r.get("cached") or r.get("seconds"))
    cached = sum(bool(report.get("cached")) for report in reports)
    programs = "1 program" if len(reports) == 1 else f"{len(reports)} programs"
    text = f"{programs}, {cached or 'none'} of them compiled by an earlier run"
    return f"{text} ({'; '.join(compilers)})" if compilers else text


def reasons(records: Iterable[Record]) -> Iterator[str]:
    """Yield a line for each reason why a kernel failed, with the chips that it failed on.

    Messages that differ only in numbers count as one reason. Expected failures have footnotes.
    """
    chips: dict[tuple[str, str, str], tuple[str, dict[str, None]]] = {}
    for record in records:
        for status, text in _problems(record) if record.outcome != "xfailed" else ():
            key = (record.kernel, status, re.sub(r"\d+", "0", text))
            chips.setdefault(key, (text, {}))[1][_chip(record)] = None
    for (kernel, status, _), (text, names) in chips.items():
        yield f"{status}: {kernel} ({', '.join(names)}): {text}"


def _problems(record: Record) -> Iterator[tuple[str, str]]:
    """Yield a word and a line for each failure."""
    bad = [report for report in record.compiled if report["status"] != "compiled"]
    for report in bad:
        yield report["status"], _first_line(report.get("message", ""))
    if record.outcome == "xpassed":
        yield "unexpected pass", _first_line(record.reason)
    elif record.outcome == "failed" and not bad:
        yield "failed", _first_line(record.explanation.get("summary") or record.message)


def _platform(record: Record) -> str:
    """Return the platform of the record's chip; of a project's own chip the first one."""
    chip = TARGETS.get(_chip(record)) or next(iter(TARGETS.values()))
    return chip.platform


def _chip(record: Record) -> str:
    if record.compiled:
        return str(record.compiled[0]["target"])
    backend = Label.of(record.backend)
    return backend.chip or backend.name


def _cell(rows: Sequence[Record]) -> tuple[str, str]:
    """Return the text of a cell and its style."""
    if not rows:
        return "-", "dim"
    rest = [row for row in rows if row.outcome != "xfailed"]
    expected = len(rows) - len(rest)
    if not rest:
        return "xfail", "yellow"
    reports = [report for row in rest for report in row.compiled]
    for status, text in _TEXTS.items():
        bad = sum(report["status"] == status for report in reports)
        if bad:
            return f"{text} {bad}/{len(reports)}", "red"
    if any(row.outcome == "failed" for row in rest):
        return "FAILED", "red"
    if any(row.outcome == "xpassed" for row in rest):
        return "XPASS", "red"
    return ("compiled" + f", {expected} xfail" * bool(expected)), "green"


def _first_line(text: str) -> str:
    line = re.sub(r"\s+", " ", text.strip().partition("\n")[0])
    return line if len(line) <= 160 else line[:157] + "..."


@section("compilers")
def section_of_compilers(results: Results) -> Iterator[str]:
    """Yield the results of compilers, and the costs of their code."""
    yield from sections(
        results.compiled, width=results.wide, color=results.color, every=results.every
    )


# The costs of the machine code of kernels.

#: A report as plain values.
Report = Mapping[str, Any]

#: Spaces between columns.
_GAP = 2

#: Longest signature in a row's name.
_SIGNATURE = 40


@dataclass(frozen=True)
class _Column:
    """A column.

    Attributes:
      title: above it.
      field: the field of a report, or the unit among its slots.
      keep: columns with a smaller number are left out first.
      kind: what the field is.
      limit: the field with the limit of a number of bytes.
      bad: whether anything above 0 is worth a look.
    """

    title: str
    field: str
    keep: int
    kind: Literal["number", "bytes", "slots", "list"] = "number"
    limit: str = ""
    bad: bool = False

    def text(self, report: Report) -> str:
        """Return the text in the row of a report."""
        value = report.get(self.field)
        match self.kind:
            case "list":
                return str(len(value or ()))
            case "slots":
                share = report.get("loop_slots", {}).get(self.field)
                return "-" if share is None else f"{100 * share:.0f}"
            case "bytes":
                most = report.get(self.limit)
                size = short_size(value)
                return size if value is None or not most else f"{size} {100 * value / most:.0f}%"
            case _:
                return "-" if value is None else f"{value:,}"


def costs(records: Sequence[Record], *, width: int, color: bool) -> Iterator[str]:
    """Yield the costs of each kernel on each chip: a table for TPUs and one for GPUs.

    A row is the typical call of a spec with the longest code, or the call with the longest code.
    """
    shown = [
        (with_mesh(record), report)
        for record in sorted(records, key=lambda record: record.family)
        if record.check == "forward" and (report := shown_report(record)) is not None
    ]
    for platform, columns in (("tpu", _TPU), ("gpu", _GPU)):
        reports = [(n, r) for n, r in shown if TARGETS[r["target"]].platform == platform]
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
    from rich.text import Text

    table = _empty_table(("kernel", "chip"), (column.title for column in columns))
    before = ""
    for name, report in rows:
        texts = ((column.text(report), column.bad) for column in columns)
        cells = (Text(t, style="yellow" if bad and t[0] in "123456789" else "") for t, bad in texts)
        table.add_row(Text("" if name == before else name), report["target"], *cells)
        before = name
    return rendered(table, width=max(width, _width(columns, rows)), color=color)


def _legend(platform: str, kept: Sequence[_Column], dropped: Sequence[_Column]) -> Iterator[str]:
    titles = [column.title for column in kept]
    if platform == "tpu":
        units = [title for title in titles if title in UNITS.values()]
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
    """Return the columns that fit, and those that do not."""
    kept = list(columns)
    while len(kept) > 1 and _width(kept, rows) > width:
        kept.remove(min(kept, key=lambda column: column.keep))
    return kept, [column for column in columns if column not in kept]


def _width(columns: Sequence[_Column], rows: Sequence[tuple[str, Report]]) -> int:
    """Return the columns of the terminal that a table takes."""
    name = max(len("kernel"), *(len(name) for name, _ in rows))
    chip = max(len("chip"), *(len(report["target"]) for _, report in rows))
    numbers = (
        max(len(column.title), *(len(column.text(report)) for _, report in rows)) + _GAP
        for column in columns
    )
    return name + _GAP + chip + sum(numbers)


def _named(reports: Sequence[tuple[str, Report]]) -> list[tuple[str, Report]]:
    """Return each row once, in order; with its signature if a chip has several of a name."""
    distinct: dict[tuple[str, str], dict[str, Report]] = {}
    for name, report in reports:
        distinct.setdefault((name, report["target"]), {})[report.get("signature", "")] = report
    several = {name for (name, _), signatures in distinct.items() if len(signatures) > 1}
    rows = [
        (f"{name} {_cut(signature)}" if name in several else name, report)
        for (name, _), signatures in distinct.items()
        for signature, report in signatures.items()
    ]
    names, chips = list(dict.fromkeys(name for name, _ in rows)), list(TARGETS)
    return sorted(rows, key=lambda row: (names.index(row[0]), chips.index(row[1]["target"])))


def _cut(text: str) -> str:
    return text if len(text) <= _SIGNATURE else text[: _SIGNATURE - 3] + "..."


def with_mesh(record: Record) -> str:
    """Return the name of the kernel, and the mesh that it was compiled for."""
    return " ".join([record.kernel, *(f"{axis}{size}" for axis, size in record.mesh.items())])


def shown_report(record: Record) -> Report | None:
    """Choose the report whose costs are shown: the worst of the typical calls, or of all."""
    done = [
        report
        for report in record.compiled
        if report["status"] == "compiled" and not report.get("costs_skipped")
    ]
    chosen = [report for report in done if report.get("typical")] or done
    return max(chosen, key=lambda r: (r.get("bundles", 0), r.get("registers", 0)), default=None)


def short_size(value: int | None) -> str:
    """Write a number of bytes in a few characters."""
    if value is None:
        return "-"
    if value < 1024:
        return f"{value} B"
    return f"{value / 1024:.0f} KiB" if value < 2**20 else f"{value / 2**20:.1f} MiB"


#: Titles of the units, by their names in ``Cost.loop_slots``.
UNITS = {
    **{name: name for name in ("mxu", "xlu", "valu", "eup")},
    "load": "ld",
    "store": "st",
    "scalar": "sc",
}

_TPU = (
    _Column("VMEM", "vmem_bytes", 9, "bytes", "vmem_capacity"),
    _Column("SMEM", "smem_bytes", 1, "bytes"),
    _Column("code", "code_bytes", 2, "bytes"),
    _Column("bundles", "bundles", 9),
    _Column("empty", "empty_bundles", 3),
    _Column("loop", "loop_bundles", 8),
    *(
        _Column(title, unit, 7 if unit in ("mxu", "valu") else 5, "slots")
        for unit, title in UNITS.items()
    ),
    _Column("spills", "spills", 9, bad=True),
    _Column("fills", "fills", 4, bad=True),
)

_GPU = (
    _Column("registers", "registers", 9),
    _Column("shared memory", "shared_bytes", 9, "bytes", "shared_capacity"),
    _Column("stack", "stack_bytes", 2, "bytes"),
    _Column("spill stores", "spill_store_bytes", 8, "bytes", bad=True),
    _Column("spill loads", "spill_load_bytes", 7, "bytes", bad=True),
    _Column("warnings", "warnings", 3, "list", bad=True),
)


def write_costs(session: PytestSession, records: Iterable[Record]) -> str:
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
    """Yield the costs of all compiled programs; for a spec with typical calls, of those only."""
    for record in records:
        reports = decode(list[CompileReport], record.compiled)
        typical = [report for report in reports if report.typical]
        for report in typical or reports:
            if report.status == "compiled":
                yield entry(record.kernel, record.check, report)


@section("costs")
def section_of_costs(results: Results) -> Iterator[str]:
    """Yield the result of recording or comparing costs."""
    if results.costs:
        yield results.costs
