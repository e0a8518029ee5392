"""The whole page, from records and the session's data."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from pallas_sim.errors import OptionError
from pytest_pallas.record import OUTCOMES, Record
from pytest_pallas.report.drawings.charts import stacked
from pytest_pallas.report.html import tables
from pytest_pallas.report.html.kernels import (
    BAD,
    MOST_DETAILED,
    MOST_DRAWN,
    KernelRow,
    kernels,
)
from pytest_pallas.report.html.mutants import MutantSummary, mutants
from pytest_pallas.report.html.tables import coverage
from pytest_pallas.report.html.templates import template, text_of
from pytest_pallas.report.sections.mutants import others
from pytest_pallas.report.summary import backends_of


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
    recorded: tables.Recorded | None = None,
    families: Sequence[str] = (),
    sections: Sequence[tuple[str, str]] = (),
) -> Iterator[str]:
    """The page as self-contained HTML, in parts.

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
    count = Counter(record.outcome for record in rest)
    bad = sum(count[outcome] for outcome in BAD)
    backends = backends_of(rest, families)
    rows = kernels(rest, backends)
    style, script = (text_of(name) for name in ("page.css", "page.js"))
    return template("page.html.j2").generate(
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        verdict=_verdict(rows, bad, tried),
        mood=_mood(rows, bad, tried),
        count={name: count[name] for name in ("failed", "xpassed", "xfailed", "skipped", "passed")},
        bad=bad,
        stacked=stacked(
            [(name, count[name]) for name in ("failed", "xpassed", "xfailed", "passed", "skipped")],
            ", ".join(f"{count[name]} {name}" for name in OUTCOMES),
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
        costs=tables.table(rest, recorded or {}),
        coverage=coverage(rest),
        sections=[(name, text) for name, text in sections if text],
        environment=environment,
        options=options,
    )


def _verdict(rows: Sequence[KernelRow], bad: int, tried: MutantSummary | None) -> str:
    """The result of the run, in one line."""
    parts = [] if tried is None else [_of_mutants(tried)]
    if rows:
        parts.insert(0, _of_checks(rows, bad))
    text = "; ".join(parts) or "No kernel was verified"
    return text[:1].upper() + text[1:]


def _of_checks(rows: Sequence[KernelRow], bad: int) -> str:
    total = "1 kernel" if len(rows) == 1 else f"{len(rows):,} kernels"
    if not bad:
        return f"Nothing failed in {total}"
    failing = sum(row.state == "failed" for row in rows)
    checks = "1 check failed" if bad == 1 else f"{bad:,} checks failed"
    return f"{checks}, in {failing:,} of {total}"


def _of_mutants(tried: MutantSummary) -> str:
    every = tried.every
    judged = every.killed + every.survived
    survived = f"{every.survived:,}" if every.survived else "none"
    text = f"{survived} of {judged:,} mutants survived" if judged else "no mutant was judged"
    return f"{text}, {every.untried:,} not tried" if every.untried else text


def _mood(rows: Sequence[KernelRow], bad: int, tried: MutantSummary | None) -> str:
    """The colour of that line: a surviving mutant does not fail the run, but is a warning."""
    if bad:
        return "is-bad"
    state = "killed" if tried is None else tried.every.state
    return "is-good" if (rows or tried) and state == "killed" else ""


def _hash(text: str) -> str:
    """The hash of a style or script for the page's content security policy."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
