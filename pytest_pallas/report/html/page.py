"""The whole page, from records and what is known of the session."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pytest_pallas.errors import OptionError
from pytest_pallas.record import OUTCOMES, Record
from pytest_pallas.report.drawings.bars import stacked
from pytest_pallas.report.drawings.svg import clean
from pytest_pallas.report.html import costs
from pytest_pallas.report.html.coverage import coverage
from pytest_pallas.report.html.kernels import BAD, MOST_DRAWN, kernels, times

_HERE = Path(__file__).parent


def check_installed(flag: str) -> None:
    """Find out before anything runs whether a page can be made.

    Raises:
      OptionError: it cannot: the extra is not installed.
    """
    if find_spec("jinja2") is None:
        raise OptionError(f"{flag} needs jinja2: pip install 'pytest-pallas[report]'")


def page(
    records: Sequence[Record],
    *,
    environment: Mapping[str, Any],
    options: Mapping[str, Any],
    recorded: costs.Recorded | None = None,
    families: Sequence[str] = (),
) -> str:
    """The page as HTML that needs nothing else.

    Args:
      records: what was found.
      environment: versions and machine, by name.
      options: what the session was asked to do, by name.
      recorded: the costs to compare with.
      families: names of the known backends, in the order of the columns.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    count = Counter(record.outcome for record in records)
    bad = sum(count[outcome] for outcome in BAD)
    backends = _backends(records, families)
    rows = kernels(records, backends)
    style, script = (_HERE.joinpath(name).read_text("utf-8") for name in ("page.css", "page.js"))
    environment_ = Environment(
        loader=FileSystemLoader(_HERE),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: clean(value) if type(value) is str else value,
    )
    environment_.filters["times"] = times
    return environment_.get_template("page.html.j2").render(
        style=Markup(style),
        script=Markup(script),
        style_hash=_hash(style),
        script_hash=_hash(script),
        verdict=_verdict(rows, bad),
        count={name: count[name] for name in ("failed", "xpassed", "xfailed", "skipped", "passed")},
        bad=bad,
        stacked=stacked(
            [(name, count[name]) for name in ("failed", "xpassed", "xfailed", "passed", "skipped")],
            ", ".join(f"{count[name]} {name}" for name in OUTCOMES),
        ),
        seconds=sum(record.seconds for record in records),
        examples=sum(record.examples for record in records),
        records=records,
        backends=backends,
        families=sorted({row.family for row in rows if row.family}),
        kernels=rows,
        undrawn=max(0, bad - MOST_DRAWN),
        most_drawn=MOST_DRAWN,
        costs=costs.table(records, recorded or {}),
        coverage=coverage(records),
        environment=environment,
        options=options,
    )


def _backends(records: Sequence[Record], families: Sequence[str]) -> list[str]:
    places = list(dict.fromkeys(record.backend for record in records))
    known = [*families, *(place.partition(":")[0] for place in places)]
    return sorted(places, key=lambda place: known.index(place.partition(":")[0]))


def _verdict(rows: Sequence[Any], bad: int) -> str:
    if not rows:
        return "No kernel was verified"
    total = "1 kernel" if len(rows) == 1 else f"{len(rows):,} kernels"
    if not bad:
        return f"Nothing failed in {total}"
    failing = sum(row.state == "failed" for row in rows)
    checks = "1 check failed" if bad == 1 else f"{bad:,} checks failed"
    return f"{checks}, in {failing:,} of {total}"


def _hash(text: str) -> str:
    """The name by which the page's policy knows its own style or script, and no other."""
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return "sha256-" + base64.b64encode(digest).decode("ascii")
