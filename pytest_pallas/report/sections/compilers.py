"""The tables of compiling backends: which kernels are compiled for which chips, and why not."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

from pytest_pallas.backends import TARGETS, Family, Label
from pytest_pallas.record import Record
from pytest_pallas.report.section import Results, section
from pytest_pallas.report.sections.costs import costs
from pytest_pallas.report.terminal import footnotes, rendered

#: Texts of a cell for the status of a compilation, worst first.
_WORDS = {
    "timed out": "TIMED OUT",
    "crashed": "CRASHED",
    "out of memory": "OUT OF MEMORY",
    "refused": "REFUSED",
}


def split(
    records: Iterable[Record], families: Iterable[Family]
) -> tuple[list[Record], list[Record]]:
    """The records of backends that execute kernels, and those of backends that compile them."""
    names = {family.name for family in families if family.kind == "compiling"}
    executed: list[Record] = []
    compiled: list[Record] = []
    for record in records:
        compiles = Label.of(record.backend).name in names
        (compiled if compiles else executed).append(record)
    return executed, compiled


def sections(
    records: Sequence[Record], *, width: int, color: bool, every: bool = False
) -> Iterator[str]:
    """The text for the records of compiling backends; nothing without one.

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
    yield from footnotes(records, every=every)
    yield from reasons(ran)
    yield from costs(ran, width=width, color=color)


def matrix(records: Sequence[Record], *, width: int, color: bool) -> str:
    """Kernels by chips, with the status of the compilation."""
    from rich.table import Table
    from rich.text import Text

    present = dict.fromkeys(_chip(record) for record in records)
    chips = sorted(present, key=[*TARGETS, *present].index)
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("kernel", no_wrap=True)
    for chip in chips:
        table.add_column(chip, no_wrap=True)
    for kernel in dict.fromkeys(r.kernel for r in sorted(records, key=lambda r: r.family)):
        rows = [record for record in records if record.kernel == kernel]
        cells = [_cell([r for r in rows if _chip(r) == chip]) for chip in chips]
        table.add_row(Text(kernel), *(Text(text, style=style) for text, style in cells))
    # a broken line is better than a cut word
    longest = max(len(record.kernel) for record in records) + 24 * len(chips)
    return rendered(table, width=max(width, longest), color=color)


def counts(records: Iterable[Record]) -> str:
    """The number of programs, and how many of them an earlier run compiled."""
    reports = [report for record in records for report in record.compiled]
    compilers = dict.fromkeys(r["compiler"] for r in reports if r.get("cached") or r.get("seconds"))
    cached = sum(bool(report.get("cached")) for report in reports)
    programs = "1 program" if len(reports) == 1 else f"{len(reports)} programs"
    text = f"{programs}, {cached or 'none'} of them compiled by an earlier run"
    return f"{text} ({'; '.join(compilers)})" if compilers else text


def reasons(records: Iterable[Record]) -> Iterator[str]:
    """One line for each reason why a kernel failed, with the chips that it failed on.

    Messages that differ only in numbers count as one reason. Expected failures have footnotes.
    """
    texts: dict[tuple[str, str, str], str] = {}
    chips: dict[tuple[str, str, str], list[str]] = {}
    for record in records:
        if record.outcome == "xfailed":
            continue
        for status, text in _problems(record):
            key = (record.kernel, status, re.sub(r"\d+", "0", text))
            texts.setdefault(key, text)
            found = chips.setdefault(key, [])
            if _chip(record) not in found:
                found.append(_chip(record))
    for key, text in texts.items():
        kernel, status, _ = key
        yield f"{status}: {kernel} ({', '.join(chips[key])}): {text}"


def _problems(record: Record) -> Iterator[tuple[str, str]]:
    """The failure, in a word and a line."""
    bad = [report for report in record.compiled if report["status"] != "compiled"]
    for report in bad:
        yield report["status"], _first_line(report.get("message", ""))
    if record.outcome == "xpassed":
        yield "unexpected pass", _first_line(record.reason)
    elif record.outcome == "failed" and not bad:
        yield "failed", _first_line(record.explanation.get("summary") or record.message)


def _platform(record: Record) -> str:
    """The platform of the record's chip; chips of a project are shown with the first platform."""
    chip = TARGETS.get(_chip(record)) or next(iter(TARGETS.values()))
    return chip.platform


def _chip(record: Record) -> str:
    if record.compiled:
        return str(record.compiled[0]["target"])
    found = Label.of(record.backend)
    return found.chip or found.name


def _cell(rows: Sequence[Record]) -> tuple[str, str]:
    """The text of one cell and its style."""
    if not rows:
        return "-", "dim"
    rest = [row for row in rows if row.outcome != "xfailed"]
    expected = len(rows) - len(rest)
    if not rest:
        return "xfail", "yellow"
    reports = [report for row in rest for report in row.compiled]
    for status, word in _WORDS.items():
        bad = sum(report["status"] == status for report in reports)
        if bad:
            return f"{word} {bad}/{len(reports)}", "red"
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
    """The results of compilers, and the costs of their code."""
    yield from sections(
        results.compiled, width=results.wide, color=results.color, every=results.every
    )
