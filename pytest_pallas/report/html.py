"""Render the page of a run for ``--pallas-html``, and errors for notebooks.

``page`` renders the templates of this folder from the records of the run. Its parts follow in the
order of the page: the verdict, the kernels by backends, and the costs of machine code. The cards of
failures come from ``report.cards``, the mutants from ``mutate.report``, the inputs from
``report.inputs``. ``html_of`` renders the card of an error, a simulation or an analysis
for a notebook.

Texts come from kernels: everything is escaped, except ``Svg`` and the files of this folder.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from pallas_sim import Simulation
from pallas_sim.errors import OptionError, PallasError
from pallas_sim.findings import text_of
from pytest_pallas.backends.protocol import label
from pytest_pallas.compile.costs import RecordedCost
from pytest_pallas.compile.report import UNITS, short_size, shown_report, with_mesh
from pytest_pallas.errors import facts_of
from pytest_pallas.grid.analysis import Analysis
from pytest_pallas.judge.references import flatten
from pytest_pallas.mutate.report import MutantSummary, mutants, others
from pytest_pallas.record import BAD, STATUSES, Record, error_fields, status_of
from pytest_pallas.report.cards import FailureCard, failure
from pytest_pallas.report.charts import share, slots, stacked
from pytest_pallas.report.coverage import (
    CoveredSource,
    KernelCoverage,
    coverage_of,
    covered_sources,
    gap_of,
    place_of,
    reasons_of,
)
from pytest_pallas.report.drawings import Svg, clean
from pytest_pallas.report.inputs import covered
from pytest_pallas.report.orders import counts_of, open_text
from pytest_pallas.report.pictures import grids_of, lines_of, shown_of, sources_of
from pytest_pallas.report.section import group_by, number
from pytest_pallas.report.summary import backends_of, counts_text, grouped, times, worst

_TEMPLATES = Path(__file__).parent / "templates"


@functools.cache
def _environment() -> Any:
    """Make the environment of all templates, which compiles each of them once."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment: Any = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment.filters["times"] = times
    environment.filters["share"] = share
    environment.filters["gap"] = gap_of
    environment.filters["place"] = place_of
    environment.filters["reasons"] = reasons_of
    return environment


def template(name: str) -> Any:
    """Load a template of this folder by its file name; needs jinja2."""
    return _environment().get_template(name)


def style() -> dict[str, Any]:
    """Return the style of a page and its hash, by the names that templates have for them."""
    from markupsafe import Markup

    text = _text_of("page.css")
    return {"style": Markup(text), "style_hash": _hash(text)}


def _text_of(name: str) -> str:
    """Read a style or script of this folder."""
    return _TEMPLATES.joinpath(name).read_text("utf-8")


def check_installed(flag: str) -> None:
    """Check before any test runs that the page can be made.

    Raises:
      OptionError: the extra is not installed.
    """
    if find_spec("jinja2") is None:
        raise OptionError(f"{flag} needs jinja2: pip install 'pytest-pallas[report]'")


def page(
    records: Sequence[Record],
    *,
    environment: Mapping[str, Any],
    options: Mapping[str, Any],
    recorded: Recorded | None = None,
    families: Sequence[str] = (),
    sections: Sequence[tuple[str, str]] = (),
) -> Iterator[str]:
    """Render the page as self-contained HTML, in parts.

    Args:
      records: the records of the session.
      environment: versions and machine, by name.
      options: the options of the session, by name.
      recorded: the costs to compare with.
      families: names of the known backends, in the order of the columns.
      sections: the sections of the project: names and texts; "" for nothing to show.
    """
    from markupsafe import Markup

    tried, rest = mutants(records), others(records)
    inputs = covered(record for record in rest if not record.compiled)
    count = Counter(map(status_of, rest))
    bad = sum(count[outcome] for outcome in BAD)
    backends = backends_of(rest, families)
    rows = kernels(rest, backends)
    script = _text_of("page.js")
    return template("page.html.j2").generate(
        **style(),
        script=Markup(script),
        script_hash=_hash(script),
        verdict=_verdict(rows, bad, tried),
        mood=_mood(rows, bad, tried),
        count={name: count[name] for name in STATUSES},
        bad=bad,
        stacked=stacked(
            [(name, count[name]) for name in STATUSES],
            ", ".join(f"{count[name]} {name}" for name in STATUSES if count[name]),
        ),
        seconds=sum(record.seconds for record in records),
        examples=sum(record.examples for record in records),
        backends=backends,
        # Records of mutants cover all selected backends.
        ran=backends or (options.get("backends", ()) if tried else ()),
        families=sorted({row.family for row in rows if row.family}),
        kernels=rows,
        undrawn=max(0, bad - MOST_DRAWN),
        most_drawn=MOST_DRAWN,
        undetailed=sum(not row.checks for row in rows),
        most_detailed=MOST_DETAILED,
        mutants=tried,
        costs=cost_table(rest, recorded or {}),
        coverage=sorted(inputs, key=lambda one: (one.drawn / max(1, one.declared), one.kernel)),
        sections=[(name, text) for name, text in sections if text],
        environment=environment,
        options=options,
    )


def _verdict(rows: Sequence[KernelRow], bad: int, tried: MutantSummary | None) -> str:
    """Write the result of the run in one line."""
    parts = [] if tried is None else [_of_mutants(tried)]
    if rows:
        parts.insert(0, _of_checks(rows, bad))
    text = "; ".join(parts) or "No kernel was verified"
    return text[:1].upper() + text[1:]


def _of_checks(rows: Sequence[KernelRow], bad: int) -> str:
    total = number(len(rows), "kernel")
    if not bad:
        return f"Nothing failed in {total}"
    failing = sum(row.state == "failed" for row in rows)
    return f"{number(bad, 'check')} failed, in {failing:,} of {total}"


def _of_mutants(tried: MutantSummary) -> str:
    survived, untried = tried.every.count("survived"), tried.every.count("untried")
    judged = tried.every.count("killed") + survived
    some = f"{survived:,}" if survived else "none"
    text = f"{some} of {judged:,} mutants survived" if judged else "no mutant was judged"
    return f"{text}, {untried:,} not tried" if untried else text


def _mood(rows: Sequence[KernelRow], bad: int, tried: MutantSummary | None) -> str:
    """Choose the colour of the verdict: a surviving mutant is a warning, and no failure."""
    if bad:
        return "is-bad"
    state = "killed" if tried is None else tried.every.state
    return "is-good" if (rows or tried) and state == "killed" else ""


def _hash(text: str) -> str:
    """Hash a style or script for the page's content security policy."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")


# The kernels by backends, and their details.

#: States of a row or a cell, worst first.
STATES = ("failed", "xfailed", "passed", "skipped", "none")

#: Limits on the size of the page: the number of failures with pictures, of kernels without
#: failures that have details, and of kernels with source code.
MOST_DRAWN, MOST_DETAILED, MOST_SOURCED = 400, 1000, 200


@dataclass(frozen=True, kw_only=True)
class KernelCell:
    """The result of a kernel on one backend.

    Attributes:
      state: one of ``STATES``.
      text: as in the terminal, such as ``8 ok 2 FAILED``.
      multiple: the worst error of checks that passed as a multiple of the baseline's, as text.
      title: counts of all outcomes.
      rank: the sort key of a column, the worst first.
    """

    state: str
    text: str
    multiple: str
    title: str
    rank: float


@dataclass(frozen=True, kw_only=True)
class CheckRow:
    """Checks of a kernel in one row: one that failed, or those that differ in their backend only.

    Attributes:
      check: its name.
      backends: their labels.
      outcome: of each, one of ``STATUSES``.
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
      records: of all checks.
      multiple: the worst error as a multiple of the baseline's, or None.
      coverage: what of it ran on simulators, or None.
      sources: its source code with what ran, if there is room.
    """

    anchor: str
    name: str
    family: str
    file: str
    state: str
    cells: Sequence[KernelCell]
    failures: Sequence[FailureCard]
    checks: Sequence[CheckRow]
    records: Sequence[Record]
    multiple: float | None
    coverage: KernelCoverage | None = None
    sources: Sequence[CoveredSource] = ()

    @property
    def counts(self) -> str:
        """The number of checks by their status."""
        return _described(self.records)

    @property
    def rank(self) -> float:
        """The sort key of kernels, the worst first."""
        return _rank(self.state, len(self.failures), self.multiple)


def kernels(records: Sequence[Record], backends: Sequence[str]) -> list[KernelRow]:
    """Make the rows of kernels, worst first. Two files may have kernels of the same name."""
    groups = group_by(records, lambda r: (r.family, r.test.partition("::")[0], r.kernel))
    left = MOST_DRAWN
    made: list[KernelRow] = []
    for position, ((family, file, name), rows) in enumerate(groups.items()):
        bad = [row for row in rows if row.outcome in BAD]
        causes = grouped(bad)
        failures = [
            failure(first, drawn=i < left, likewise=others)
            for i, (first, *others) in enumerate(causes)
        ]
        left = max(0, left - len(causes))
        cells = [_cell([row for row in rows if row.backend == b]) for b in backends]
        made.append(
            KernelRow(
                anchor=f"kernel-{position}",
                name=name,
                family=family,
                file=file,
                state=min((cell.state for cell in cells), key=STATES.index),
                cells=cells,
                failures=failures,
                checks=check_rows(rows),
                records=rows,
                multiple=worst(rows),
                coverage=coverage_of(rows) if any(row.coverage for row in rows) else None,
            )
        )
    made.sort(key=lambda kernel: (-kernel.rank, kernel.family, kernel.name))
    right = [position for position, kernel in enumerate(made) if not kernel.failures]
    for position in right[MOST_DETAILED:]:
        made[position] = replace(made[position], checks=())
    detailed = [i for i, kernel in enumerate(made) if kernel.coverage and kernel.checks]
    detailed.sort(key=lambda i: -getattr(made[i].coverage, "missing", 0))
    for position in detailed[:MOST_SOURCED]:
        kernel = made[position]
        assert kernel.coverage is not None
        made[position] = replace(kernel, sources=covered_sources(kernel.coverage))
    return made


def check_rows(records: Sequence[Record]) -> list[CheckRow]:
    """Make the rows of checks of a kernel, failures first."""

    def key(record: Record) -> Hashable:
        alike = (record.check, status_of(record), _remark(record))
        return id(record) if record.outcome in BAD else alike

    groups = group_by(sorted(records, key=_order), key)
    return [
        CheckRow(
            check=rows[0].check,
            backends=list(dict.fromkeys(row.backend for row in rows)),
            outcome=status_of(rows[0]),
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
    return " ".join(filter(None, (mesh, record.reason, notes, unverified, _orders(record))))


def _orders(record: Record) -> str:
    """Write the verdicts of a check's calls in all their orders; "" if it asks for one only."""
    orders = record.orders
    if orders is None:
        return ""
    undecided = open_text(orders)
    counts = f"Orders of {number(orders.calls, 'call')}: {counts_of(orders)}"
    return f"{counts}; open: {undecided}" if undecided else counts


def _order(record: Record) -> tuple[int, str]:
    return STATUSES.index(status_of(record)), record.backend


def _cell(rows: Sequence[Record]) -> KernelCell:
    if not rows:
        return KernelCell(state="none", text="-", multiple="", title="no check", rank=-1.0)
    count = Counter(row.outcome for row in rows)
    failed = sum(count[outcome] for outcome in BAD)
    outcomes = ("passed", "xfailed", "skipped")  # passed checks precede expected failures
    state = "failed" if failed else next(name for name in outcomes if count[name])
    multiple = worst([row for row in rows if row.outcome == "passed"])
    return KernelCell(
        state=state,
        text=counts_text(rows),
        multiple="" if failed else times(multiple),
        title=_described(rows),
        rank=_rank(state, failed, None if failed else multiple),
    )


def _described(rows: Iterable[Record]) -> str:
    """Count all checks by their status: ``2 failed, 8 passed, 10 not run``."""
    count = Counter(map(status_of, rows))
    count["failed"] += count.pop("xpassed", 0)  # as in the table
    return ", ".join(f"{count[name]:,} {name}" for name in STATUSES if count[name])


def _rank(state: str, failed: int, multiple: float | None) -> float:
    """Rank by the state, then by the number of failures, then by the error."""
    error = 0.0 if multiple is None else min(multiple, 1e5) / 1e6
    return 1e4 * (len(STATES) - STATES.index(state)) + min(failed, 9999) + error


# The costs of machine code.

#: Recorded costs by ``RecordedCost.key``.
Recorded = Mapping[tuple[str, str, str, str], RecordedCost]

#: Titles of the numbers of a program, by their names in ``Cost``.
_NUMBERS = {
    "bundles": "bundles",
    "loop_bundles": "loop",
    "registers": "registers",
    "spills": "spills",
    "fills": "fills",
    "spill_store_bytes": "spill stores",
    "spill_load_bytes": "spill loads",
}

#: Any value above 0 of these is bad.
_NEVER = ("spills", "fills", "spill_store_bytes", "spill_load_bytes")


@dataclass(frozen=True)
class CostNumber:
    """A number, its change from the recorded one, and whether the change is good or bad."""

    text: str
    change: str = ""
    state: str = ""


@dataclass(frozen=True, kw_only=True)
class CostRow:
    """The costs of one program on one chip.

    Attributes:
      kernel: its name, with the mesh.
      report: what the compiler said, as in ``Record.compiled``.
      memory: VMEM or shared memory.
      bar: the same relative to the chip's limit, or None.
      slots: the use of slots in the main loop, or None.
      numbers: one for each title of the table.
    """

    kernel: str
    report: Mapping[str, Any]
    memory: CostNumber
    bar: Svg | None
    slots: Svg | None
    numbers: Sequence[CostNumber]


@dataclass(frozen=True)
class CostTable:
    """Rows, and the titles of the numbers that some of them have."""

    titles: Sequence[str]
    rows: Sequence[CostRow]
    compared: bool


def cost_table(records: Sequence[Record], recorded: Recorded) -> CostTable | None:
    """Make the table of the costs of everything that compiled; None if nothing did."""
    shown = [
        (record, report)
        for record in records
        if record.check == "forward" and (report := shown_report(record)) is not None
    ]
    if not shown:
        return None
    names = [name for name in _NUMBERS if any(r.get(name) is not None for _, r in shown)]
    rows = [_cost_row(record, report, names, recorded) for record, report in shown]
    rows.sort(key=lambda row: (row.kernel, row.report["target"]))
    return CostTable([_NUMBERS[name] for name in names], rows, bool(recorded))


def _cost_row(
    record: Record, report: Mapping[str, Any], names: Sequence[str], recorded: Recorded
) -> CostRow:
    key = (record.kernel, record.check, report["target"], report.get("signature", ""))
    before = recorded[key].cost if key in recorded else {}
    name, limit = "vmem_bytes", "vmem_capacity"
    if report.get(name) is None:
        name, limit = "shared_bytes", "shared_capacity"
    used, most = report.get(name), report.get(limit)
    memory, bar = short_size(used), None
    if used is not None and most:
        memory += f", {100 * used / most:.0f} %"
        title = f"{short_size(used)} of {short_size(most)}, {100 * used / most:.0f} %"
        if name in before:
            title += f"; recorded: {short_size(before[name])}"
        bar = share(used, most, title, before=before.get(name))
    shares = {u: s for u in UNITS if (s := report.get("loop_slots", {}).get(u)) is not None}
    used_slots = ", ".join(f"{unit} {100 * value:.0f} %" for unit, value in shares.items())
    return CostRow(
        kernel=with_mesh(record),
        report=report,
        memory=_cost_number(memory, used, before.get(name)),
        bar=bar,
        slots=slots(shares, f"Used slots in the main loop: {used_slots}") if shares else None,
        numbers=[_number_of(report, name, before) for name in names],
    )


def _number_of(report: Mapping[str, Any], name: str, before: Mapping[str, int]) -> CostNumber:
    """Make the number of a program with this name in ``Cost``."""
    value = report.get(name)
    shown = _cost_number("-" if value is None else f"{value:,}", value, before.get(name))
    return replace(shown, state="warn") if name in _NEVER and value and not shown.state else shown


def _cost_number(text: str, value: int | None, before: int | None) -> CostNumber:
    """Compare a number with the recorded one."""
    if value is None or before is None or value == before:
        return CostNumber(text)
    change = f"{100 * (value - before) / before:+.0f} %" if before else f"was {before}"
    return CostNumber(text, change, "bad" if value > before else "good")


# Errors, simulations and analyses in a notebook: the cards of the page, by themselves.

_FONT = '14px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif'

#: Number of changes of watched references that are listed.
_CHANGES = 20


def html_of(shown: Any) -> str | None:
    """Render an error, a ``Simulation`` or an ``Analysis``; None if jinja2 is not installed."""
    if find_spec("jinja2") is None:
        return None
    from markupsafe import Markup

    if isinstance(shown, PallasError):
        card, text = _error(shown), ""
    elif isinstance(shown, Simulation):
        card, text = _simulation(shown)
    elif isinstance(shown, Analysis):
        card, text = _analysis(shown)
    else:
        raise TypeError(f"{type(shown).__name__} has no picture")
    return template("inline.html.j2").render(style=Markup(_style()), failure=card, text=text)


def _style() -> str:
    """Scope the style of the page to one element of another page."""
    own = f"background: var(--card); color: var(--ink); font: {_FONT}; padding: 0.4rem;"
    return f".pallas-inline {{ {own} {_text_of('page.css').replace(':root', '&')} }}"


def _card(check: str, kernel: str = "", backend: str = "", **fields: Any) -> FailureCard:
    """Make the card of a failure without a test; ``fields`` are those of ``Record``."""
    blank = Record(test="", kernel=kernel, check=check, backend=backend, outcome="failed")
    return failure(replace(blank, **fields))


def _error(error: PallasError) -> FailureCard:
    failed = facts_of(error).failure
    check, kernel, backend = type(error).__name__, "", ""
    if failed is not None:
        check, kernel = f"{failed.name}: {failed.check}", failed.name
        backend = label(failed.context.backend)
    return _card(check, kernel, backend, **error_fields(error), pictures=shown_of(error))


def _simulation(simulation: Simulation) -> tuple[FailureCard | None, str]:
    lines = [
        f"{path or 'output'}: {np.asarray(value).dtype}{list(np.shape(value))}"
        for path, value in flatten(simulation.values)
    ]
    lines.append(f"{simulation.steps:,} equations evaluated")
    lines += [f"{name} has no rule: evaluated by JAX" for name in simulation.fallbacks]
    lines += [f"unverified: {note}" for note in simulation.notes]
    lines += [str(change) for change in simulation.watched[:_CHANGES]]
    if len(simulation.watched) > _CHANGES:
        lines.append(f"{len(simulation.watched) - _CHANGES} more changes in .watched")
    text = "\n".join(lines)
    if not simulation.findings:
        return None, f"{text}\nno finding"
    card = _card(
        check="simulate",
        message=text_of(simulation.findings),
        findings=tuple(finding.to_json() for finding in simulation.findings),
        pictures={"sources": sources_of(lines_of(simulation.findings))},
    )
    return card, text


def _analysis(analysis: Analysis) -> tuple[FailureCard | None, str]:
    if not analysis.findings:
        return None, analysis.report()
    card = _card(
        check="analyze",
        backend=analysis.chip,
        message="\n".join(finding.message for finding in analysis.findings),
        pictures={"grids": grids_of(analysis)},
    )
    return card, analysis.report()
