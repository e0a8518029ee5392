"""The header, and the summary table: kernels by backends, from records only."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import metadata

from pytest_pallas import compat
from pytest_pallas.backends import DEFAULT_TARGETS, TARGETS, label
from pytest_pallas.record import Record
from pytest_pallas.report.tables import rendered
from pytest_pallas.session import Session

#: How the reason of a check begins that cannot be asked, after its name.
_NEEDS = "needs more: "

#: Of how many kernels the names are told that a check had nothing to ask about.
_NAMED = 4


def header(session: Session) -> list[str]:
    """What this session runs on. Imports jax only where hardware was chosen."""
    options = session.options
    words = [f"jax {metadata.version('jax')}"]
    words.append(f"backends {', '.join(options.backend)}")
    words.append(f"{options.devices} simulated devices")
    words.append(f"seed {options.seed}")
    words.append(f"hypothesis profile {compat.hypothesis_profile()}")
    lines = ["pallas: " + ", ".join(words)]
    if "backend" in options.asked or options.suite:
        lines.append(f"pallas: runs on {', '.join(places(session))}")
        lines += [f"pallas: without {n}: {why}" for n, why in session.selection.left_out.items()]
    return lines


def places(session: Session) -> list[str]:
    """Each backend with the device that it runs on or stands for."""
    texts: list[str] = []
    for backend in session.selection.backends:
        if backend.kind == "hardware":
            import jax

            devices = jax.devices(backend.platform)
            texts.append(f"{label(backend)} ({len(devices)} x {devices[0].device_kind})")
            continue
        default = TARGETS.get(DEFAULT_TARGETS.get(backend.platform, ""))
        target = backend.target or default
        texts.append(label(backend) + (f" (as {target.device_kind})" if target else ""))
    return texts


def summary(records: Sequence[Record], *, families: Sequence[str], width: int, color: bool) -> str:
    """The summary table as text.

    A cell says how many checks passed, failed, were skipped or failed as expected, and the worst
    error as a multiple of the baseline's; the last columns are examples and seconds. Columns are
    in the order of ``families``, the names of the known backends.
    """
    from rich.table import Table
    from rich.text import Text

    places = list(dict.fromkeys(record.backend for record in records))
    known = [*families, *(place.partition(":")[0] for place in places)]
    backends = sorted(places, key=lambda place: known.index(place.partition(":")[0]))
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    table.add_column("kernel", no_wrap=True)
    for backend in backends:
        table.add_column(backend)
    table.add_column("examples", justify="right")
    table.add_column("seconds", justify="right")
    for kernel, rows in _grouped(records).items():
        cells = [_cell([row for row in rows if row.backend == backend]) for backend in backends]
        table.add_row(
            Text(kernel),
            *(Text(text, style=style) for text, style in cells),
            str(sum(row.examples for row in rows)),
            f"{sum(row.seconds for row in rows):.1f}",
        )
    return rendered(table, width=width, color=color)


def footnotes(records: Iterable[Record]) -> list[str]:
    """What the table cannot say: the legend, reasons of skips and expected failures."""
    records = list(records)
    lines: list[str] = []
    if any(record.multiple is not None for record in records):
        lines.append(
            "1.2x: worst error as a multiple of the jnp baseline's; exact: no error at all"
        )
    for outcome, title in (("xfailed", "expected failure"), ("skipped", "skipped")):
        groups: dict[tuple[str, str, str], list[Record]] = {}
        for record in records:
            if record.outcome == outcome and not _reason(record).startswith(_NEEDS):
                key = (_reason(record), record.backend, record.check)
                groups.setdefault(key, []).append(record)
        # What is said of the same kernels shares a line: there may be five chips.
        lines_of: dict[tuple[str, str], list[tuple[str, str, int]]] = {}
        for (reason, backend, check), found in groups.items():
            names = ", ".join(dict.fromkeys(record.kernel for record in found))
            lines_of.setdefault((reason, names), []).append((backend, check, len(found)))
        for (reason, names), places in lines_of.items():
            count = sum(number for _, _, number in places)
            where = ", ".join(dict.fromkeys(backend for backend, _, _ in places))
            lines.append(f"{title} ({count}) on {where}: {names}: {reason}")
    return lines + _not_asked(records)


def _not_asked(records: Iterable[Record]) -> list[str]:
    """Checks that had nothing to ask, a line for each reason: of many kernels, their number."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        if record.outcome == "skipped" and _reason(record).startswith(_NEEDS):
            groups.setdefault(_reason(record).removeprefix(_NEEDS), []).append(record)
    lines: list[str] = []
    for reason, found in groups.items():
        kernels, checks, backends = (
            list(dict.fromkeys(getattr(record, name) for record in found))
            for name in ("kernel", "check", "backend")
        )
        who = ", ".join(kernels) if len(kernels) <= _NAMED else f"{len(kernels)} kernels"
        need = f"{', '.join(checks)} {_NEEDS if len(checks) == 1 else 'need more: '}"
        lines.append(f"skipped ({len(found)}) on {', '.join(backends)}: {who}: {need}{reason}")
    return lines


def _reason(record: Record) -> str:
    """Why a check was skipped, without its name: several are skipped for the same reason."""
    return record.reason.removeprefix(f"{record.check} ")


def _grouped(records: Iterable[Record]) -> dict[str, list[Record]]:
    groups: dict[str, list[Record]] = {}
    for record in sorted(records, key=lambda record: record.family):
        groups.setdefault(record.kernel, []).append(record)
    return groups


def _cell(rows: Sequence[Record]) -> tuple[str, str]:
    """The text of one cell and its style."""
    if not rows:
        return "-", "dim"
    count = Counter(row.outcome for row in rows)
    words = [f"{count['passed']} ok"] if count["passed"] else []
    failed = count["failed"] + count["xpassed"]
    words += [f"{failed} FAILED"] if failed else []
    words += [f"{count['xfailed']} xfail"] if count["xfailed"] else []
    # Beside checks that ran, a line below the table says which one was skipped and why.
    words += [f"{count['skipped']} skipped"] if count["skipped"] and not words else []
    multiples = [r.multiple for r in rows if r.multiple is not None and r.outcome == "passed"]
    if multiples and not failed:
        worst = max(multiples)
        words.append(_times(worst))
    style = "red" if failed else "yellow" if not count["passed"] else "green"
    return " ".join(words), style


def _times(multiple: float) -> str:
    """An error as a multiple of the baseline's, which may be as good as none."""
    if not multiple:
        return "exact"
    return f"{multiple:.1f}x" if multiple < 1000 else ">999x"
