"""Every kind of message as text, as JSON and as HTML, compared with the files in ``messages/``.

Whoever changes a sentence sees here what else says it, and sees in the difference what users will.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pallas_test_support import message_samples as samples
from pallas_test_support.report_samples import ENVIRONMENT, OPTIONS
from pallas_test_support.stored_text import assert_stored, words_of_page

from pytest_pallas import errors, record
from pytest_pallas.compile import refusals as message
from pytest_pallas.compile import report as compilers
from pytest_pallas.compile import service as report
from pytest_pallas.mutate import report as mutants
from pytest_pallas.report import terminal as not_applicable
from pytest_pallas.report.html import page
from pytest_pallas.report.section import Results
from pytest_pallas.report.summary import summary
from pytest_pallas.report.terminal import footnote_lines

STORED = Path(__file__).parent / "messages"


def listed(texts: Mapping[str, Any] | Iterable[tuple[str, Any]]) -> str:
    """Texts, each below its title; what is no text is written as JSON."""
    pairs = texts.items() if isinstance(texts, Mapping) else texts
    return "\n".join(
        f"=== {title}\n{value if isinstance(value, str) else json.dumps(value, indent=1)}"
        for title, value in pairs
    )


def test_texts_of_findings_are_those_stored():
    found = samples.FINDINGS.items()
    texts = [(kind, str(finding)) for kind, finding in found]
    plain = [(f"{kind} as JSON", finding.to_json()) for kind, finding in found]
    assert_stored(STORED / "findings.txt", listed([*texts, *plain]))


def test_findings_of_grids():
    texts = {kind: str(finding) for kind, finding in samples.GRID_FINDINGS.items()}
    assert_stored(STORED / "grid_findings.txt", listed(texts))


def test_texts_of_explanations_are_those_stored():
    texts = {name: str(each) for name, each in samples.EXPLANATIONS.items()}
    plain = {f"{name} as JSON": each.to_json() for name, each in samples.EXPLANATIONS.items()}
    judged = samples.comparisons()
    assert all(each.kind == name.partition(",")[0] for name, each in judged.items())
    found = {f"comparison: {name}": each.message for name, each in judged.items()}
    assert_stored(STORED / "explanations.txt", listed({**texts, **plain, **found}))


def test_texts_of_refusals_are_those_stored():
    texts = {name: message.short(each) for name, each in samples.REFUSALS.items()}
    lines = compilers.sections(samples.COMPILED, width=100, color=False, every=True)
    plain = {f"{name} as JSON": report.to_json(each) for name, each in samples.REPORTS.items()}
    assert_stored(
        STORED / "refusals.txt", listed({**texts, "in the terminal": "\n".join(lines), **plain})
    )


def test_texts_of_errors_are_those_stored():
    found = samples.error_samples()
    texts = {name: f"{type(error).__module__}.{name}: {error}" for name, error in found.items()}
    assert set(errors.DIED) <= {type(error) for error in found.values()}
    assert_stored(STORED / "errors.txt", listed(texts))


def test_texts_of_records_are_those_stored():
    """Skips, expected failures, notes, and what does not apply, in the terminal and as JSON."""
    assert {each.outcome for each in samples.RECORDS} == set(record.OUTCOMES)
    some = samples.RECORDS[:7]
    table = summary(some, families=["tpu-sim"], width=100, color=False)
    lines = not_applicable.lines(samples.NOT_APPLICABLE, every=True)
    plain = {f"{each.check} as JSON": record.to_json(each) for each in some}
    texts = {
        "table": table,
        "footnotes": "\n".join(footnote_lines(some)),
        "footnotes with -v": "\n".join(footnote_lines(some, every=True)),
        "what does not apply": "\n".join(lines),
        **plain,
    }
    assert_stored(STORED / "records.txt", listed(texts))


def test_verdicts_of_mutants():
    results = Results(session=None, records=samples.MUTANTS, wide=100, verbosity=1)
    lines = mutants.section_of_mutants.lines(results)
    plain = [dict(verdict) for each in samples.MUTANTS for verdict in each.mutants]
    assert_stored(
        STORED / "verdicts.txt", listed({"in the terminal": "\n".join(lines), "as JSON": plain})
    )


def test_texts_of_the_page_are_those_stored():
    pytest.importorskip("jinja2")
    records = [*samples.RECORDS, *samples.COMPILED, *samples.MUTANTS]
    html = "".join(page(records, environment=ENVIRONMENT, options=OPTIONS, families=["tpu-sim"]))
    assert_stored(STORED / "page.txt", words_of_page(html))
