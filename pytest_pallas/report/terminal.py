"""The header, and the lines below the summary table, from records only."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata

from pytest_pallas import compat
from pytest_pallas.backends import DEFAULT_TARGETS, TARGETS, label
from pytest_pallas.record import Record
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


def footnotes(records: Iterable[Record], *, every: bool = False) -> list[str]:
    """What the table cannot say: the legend, reasons of skips and expected failures.

    With ``every``, kernels of which a check asked nothing are named however many there are.
    """
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
    return lines + _not_asked(records, every)


def _not_asked(records: Iterable[Record], every: bool) -> list[str]:
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
        who = ", ".join(kernels) if every or len(kernels) <= _NAMED else f"{len(kernels)} kernels"
        need = f"{', '.join(checks)} {_NEEDS if len(checks) == 1 else 'need more: '}"
        lines.append(f"skipped ({len(found)}) on {', '.join(backends)}: {who}: {need}{reason}")
    return lines


def _reason(record: Record) -> str:
    """Why a check was skipped, without its name: several are skipped for the same reason."""
    return record.reason.removeprefix(f"{record.check} ")
