"""The tables of compiling backends: kernels by chips, and what the machine code costs."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pytest_pallas.backends import TARGETS
from pytest_pallas.record import Record
from pytest_pallas.report.tables import rendered

#: How a cell says what a compiler did with a kernel, worst first, and its style.
_WORDS = {
    "timed out": ("TIMED OUT", "red"),
    "crashed": ("CRASHED", "red"),
    "out of memory": ("OUT OF MEMORY", "red"),
    "refused": ("REFUSED", "red"),
}

#: Titles of the cost table's numbers, and of the units by their names in ``Cost.loop_slots``.
_NUMBERS = ("VMEM", "SMEM", "code", "bundles", "empty", "loop")
_UNITS = {
    "mxu": "mxu",
    "xlu": "xlu",
    "valu": "valu",
    "eup": "eup",
    "load": "ld",
    "store": "st",
    "scalar": "sc",
}


def sections(records: Iterable[Record], *, width: int, color: bool) -> Iterator[str]:
    """What to print of the records that compiling backends made; nothing without one."""
    compiled = [record for record in records if record.compiled]
    if compiled:
        yield matrix(compiled, width=width, color=color)
        yield from refusals(compiled)
        yield from costs(compiled, width=width, color=color)


def matrix(records: Sequence[Record], *, width: int, color: bool) -> str:
    """Kernels by chips: compiled, or what else."""
    from rich.table import Table
    from rich.text import Text

    chips = _chips(records)
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("kernel", no_wrap=True)
    for chip in chips:
        table.add_column(chip, no_wrap=True)
    kernels = dict.fromkeys(r.kernel for r in sorted(records, key=lambda r: r.family))
    for kernel in kernels:
        rows = [record for record in records if record.kernel == kernel]
        cells = [_cell([r for r in rows if _chip(r) == chip]) for chip in chips]
        table.add_row(Text(kernel), *(Text(text, style=style) for text, style in cells))
    return rendered(table, width=width, color=color)


def refusals(records: Iterable[Record]) -> Iterator[str]:
    """One line for each reason why a kernel was not compiled."""
    chips: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        for report in record.compiled:
            if report["status"] != "compiled":
                first = _first_line(report.get("message", ""))
                key = (record.kernel, report["status"], first)
                chips.setdefault(key, [])
                if report["target"] not in chips[key]:
                    chips[key].append(report["target"])
    for (kernel, status, reason), names in chips.items():
        yield f"{status}: {kernel} ({', '.join(names)}): {reason}"


def costs(records: Sequence[Record], *, width: int, color: bool) -> Iterator[str]:
    """What the code of each kernel costs on each chip: a table for TPUs, one for GPUs."""
    reports = [
        (_with_mesh(record), report)
        for record in sorted(records, key=lambda record: record.family)
        if record.check == "forward" and (report := _shown(record)) is not None
    ]
    tpu = [(name, r) for name, r in reports if TARGETS[r["target"]].platform == "tpu"]
    gpu = [(name, r) for name, r in reports if TARGETS[r["target"]].platform == "gpu"]
    if tpu:
        yield rendered(_tpu_table(tpu), width=max(width, 130), color=color)
        yield (
            "loop: bundles of the innermost loop; mxu to sc: its slots in use, in %. Bundles are "
            "code, not time: DMAs are not in them"
        )
    if gpu:
        yield rendered(_gpu_table(gpu), width=max(width, 100), color=color)
        notes = {(n, text): None for n, r in gpu for text in r.get("warnings", ())}
        yield from (f"warning: {name}: {text}" for name, text in notes)


def _tpu_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("kernel", no_wrap=True)
    table.add_column("chip", no_wrap=True)
    for title in (*_NUMBERS, *_UNITS.values(), "spills", "fills"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, report in _named_once(rows):
        slots = report.get("loop_slots", {})
        table.add_row(
            name,
            report["target"],
            _share(report.get("vmem_bytes"), report.get("vmem_capacity")),
            _bytes(report.get("smem_bytes")),
            _bytes(report.get("code_bytes")),
            _number(report.get("bundles")),
            _number(report.get("empty_bundles")),
            _number(report.get("loop_bundles")),
            *(f"{100 * slots[unit]:.0f}" if unit in slots else "-" for unit in _UNITS),
            _number(report.get("spills")),
            _number(report.get("fills")),
        )
    return table


def _gpu_table(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("kernel", no_wrap=True)
    table.add_column("chip", no_wrap=True)
    for title in ("registers", "shared memory", "stack", "spill stores", "spill loads", "warnings"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, report in _named_once(rows):
        table.add_row(
            name,
            report["target"],
            _number(report.get("registers")),
            _share(report.get("shared_bytes"), report.get("shared_capacity")),
            _bytes(report.get("stack_bytes")),
            _bytes(report.get("spill_store_bytes")),
            _bytes(report.get("spill_load_bytes")),
            _number(len(report.get("warnings", ()))),
        )
    return table


def _named_once(
    rows: Sequence[tuple[str, Mapping[str, Any]]],
) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The rows, with a kernel's name in its first one only."""
    before = ""
    for name, report in sorted(rows, key=lambda row: _order([n for n, _ in rows], row)):
        yield ("" if name == before else name), report
        before = name


def _order(names: Sequence[str], row: tuple[str, Mapping[str, Any]]) -> tuple[int, int]:
    return names.index(row[0]), list(TARGETS).index(row[1]["target"])


def _with_mesh(record: Record) -> str:
    """The name of the kernel, and the mesh it was compiled for."""
    return " ".join([record.kernel, *(f"{axis}{size}" for axis, size in record.mesh.items())])


def _shown(record: Record) -> Mapping[str, Any] | None:
    """The report of a record to show the costs of: of typical calls, or else of all, the worst."""
    done = [report for report in record.compiled if report["status"] == "compiled"]
    chosen = [report for report in done if report.get("typical")] or done
    return max(chosen, key=lambda r: (r.get("bundles", 0), r.get("registers", 0)), default=None)


def _chips(records: Iterable[Record]) -> list[str]:
    present = {_chip(record) for record in records}
    return [name for name in TARGETS if name in present]


def _chip(record: Record) -> str:
    return str(record.compiled[0]["target"])


def _cell(rows: Sequence[Record]) -> tuple[str, str]:
    """The text of one cell and its style."""
    reports = [report for row in rows for report in row.compiled]
    if not reports:
        return "-", "dim"
    if all(row.outcome == "xfailed" for row in rows):
        return "xfail", "yellow"
    for status, (word, style) in _WORDS.items():
        bad = sum(report["status"] == status for report in reports)
        if bad:
            return f"{word} {bad}/{len(reports)}", style
    return "compiled", "green"


def _first_line(text: str) -> str:
    line = re.sub(r"\s+", " ", text.strip().partition("\n")[0])
    return line if len(line) <= 160 else line[:157] + "..."


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _bytes(value: int | None) -> str:
    if value is None:
        return "-"
    if value < 1024:
        return f"{value} B"
    return f"{value / 1024:.0f} KiB" if value < 2**20 else f"{value / 2**20:.1f} MiB"


def _share(value: int | None, capacity: int | None) -> str:
    if value is None or not capacity:
        return _bytes(value)
    return f"{_bytes(value)} {100 * value / capacity:.0f}%"
