"""Errors, simulations and analyses as HTML in a notebook: the cards of the page, by themselves."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import numpy as np

from pallas_sim.errors import PallasError
from pallas_sim.findings import text_of
from pallas_sim.simulation import Simulation
from pytest_pallas.analysis.grid import Analysis
from pytest_pallas.backends import label
from pytest_pallas.oracle.expected import flatten
from pytest_pallas.record import Record
from pytest_pallas.report.html.failures import FailureCard, failure
from pytest_pallas.report.html.templates import template
from pytest_pallas.report.html.templates import text_of as source_of
from pytest_pallas.report.pictures.blocks import grids_of
from pytest_pallas.report.pictures.gather import shown_of

_FONT = '14px/1.5 system-ui, -apple-system, "Segoe UI", "Noto Sans", "DejaVu Sans", sans-serif'

#: Number of changes of watched references that are listed.
_CHANGES = 20


def html_of(shown: Any) -> str | None:
    """An error, a ``Simulation`` or an ``Analysis`` as HTML; None if jinja2 is not installed."""
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
    style = Markup(_style())
    return template("inline.html.j2").render(style=style, failure=card, text=text)


def _style() -> str:
    """The style of the page, for what is inside of one element of another page."""
    own = f"background: var(--card); color: var(--ink); font: {_FONT}; padding: 0.4rem;"
    return f".pallas-inline {{ {own} {source_of('page.css').replace(':root', '&')} }}"


def _error(error: PallasError) -> FailureCard:
    from pytest_pallas.report.collect import error_fields

    failed = error.failure
    record = Record(
        test="",
        kernel="" if failed is None else failed.name,
        check=type(error).__name__ if failed is None else f"{failed.name}: {failed.check}",
        backend="" if failed is None else label(failed.context.backend),
        outcome="failed",
        **error_fields(error),
        pictures=shown_of(error),
    )
    return failure(record)


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
    record = Record(
        test="",
        kernel="",
        check="simulate",
        backend="",
        outcome="failed",
        message=text_of(simulation.findings),
        findings=tuple(finding.to_json() for finding in simulation.findings),
    )
    return failure(record), text


def _analysis(analysis: Analysis) -> tuple[FailureCard | None, str]:
    if not analysis.findings:
        return None, analysis.report()
    record = Record(
        test="",
        kernel="",
        check="analyze",
        backend=analysis.chip,
        outcome="failed",
        message="\n".join(finding.message for finding in analysis.findings),
        pictures={"grids": grids_of(analysis)},
    )
    return failure(record), analysis.report()
