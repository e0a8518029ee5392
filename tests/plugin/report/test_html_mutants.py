"""The section of mutants on the page of ``--pallas-html``."""

from __future__ import annotations

import dataclasses
import itertools
import re

import pytest

pytest.importorskip("jinja2", reason="jinja2 is not installed: pip install 'pytest-pallas[report]'")

from pallas_test_support.mutant_samples import SOURCE, mutant_samples, mutated, verdict
from pallas_test_support.report_samples import ENVIRONMENT, HOSTILE, OPTIONS, samples

from pytest_pallas.report.html import page

from .test_html_page import outline


def rendered(*records):
    return "".join(page(records, environment=ENVIRONMENT, options=OPTIONS))


def headline(*records):
    return re.search(r'<h1 id="verdict">(.*)</h1>', rendered(*records))[1]


def test_no_section_without_mutants():
    assert 'id="mutants"' not in rendered(*samples())
    assert 'href="#mutants"' not in rendered(*samples())


def test_is_well_formed_and_names_are_unique():
    found = outline([*samples(), *mutant_samples()])
    names = [attrs["id"] for _, attrs in found.elements if "id" in attrs]
    assert len(names) == len(set(names))
    targets = {attrs["href"] for attrs in found.all("a")}
    assert {target[1:] for target in targets} <= set(names)
    assert {"#mutants", "#mutants-0"} <= targets


def test_for_screen_readers():
    found = outline(mutant_samples())
    assert all(attrs.get("scope") in ("row", "col") for attrs in found.all("th"))
    regions = [attrs for _, attrs in found.elements if attrs.get("role") == "region"]
    assert regions
    assert all(attrs.get("aria-label") and attrs.get("tabindex") == "0" for attrs in regions)
    assert len(found.all("caption")) == len(found.all("table"))
    headings = [int(tag[1]) for tag, _ in found.elements if re.fullmatch(r"h\d", tag)]
    assert headings[0] == 1
    assert all(b - a <= 1 for a, b in itertools.pairwise(headings))


def test_a_page_of_mutants_only():
    """No empty table of checks, and no link to one."""
    text = rendered(*mutant_samples())
    assert 'id="matrix"' not in text
    assert 'href="#kernels"' not in text
    assert "No test of this run verified a kernel" not in text
    assert "interpret, tpu-interpret:v6e · seed 0 · 400 examples" in text


def test_mutants_are_no_rows_of_the_table_of_checks():
    """No column of their own, and no more checks than were asked."""
    plain, both = outline(samples()), outline([*samples(), *mutant_samples()])
    for tag, mark in (("th", "data-backend"), ("tr", "data-kernel")):
        counts = [sum(mark in attrs for attrs in each.all(tag)) for each in (plain, both)]
        assert counts[0] == counts[1]
    counted = re.compile(r'<ul class="counts".*?</ul>', re.DOTALL)
    text = rendered(*samples(), *mutant_samples())
    assert counted.findall(text) == counted.findall(rendered(*samples()))


def test_source_code_is_text():
    from markupsafe import escape

    text = rendered(*mutant_samples())
    assert f'<pre class="source"><code>{escape(SOURCE)}</code></pre>' in text
    found = outline(mutant_samples())
    assert SOURCE in found.text
    assert "whatever a < b & c is" in "".join(found.text)


def test_hostile_names_are_text():
    found = outline(mutant_samples())
    assert "img" not in {tag for tag, _ in found.elements}
    assert len(found.all("script")) == 1
    assert not [k for _, attrs in found.elements for k in attrs if k.startswith("on")]
    assert HOSTILE in "".join(found.text)


def test_what_is_open():
    """Survivors are seen at once; what is equivalent only by whoever asks."""
    found = outline(mutant_samples())
    kernels = [attrs for attrs in found.all("details") if attrs.get("class") == "kernel"]
    assert [("open" in attrs, attrs["data-state"]) for attrs in kernels] == [
        (True, "survived"), (True, "survived"), (False, "killed"), (False, "unscored"),
    ]  # fmt: skip
    folded = [attrs for attrs in found.all("details") if attrs.get("class") == "data"]
    assert len(folded) == 7, "one for all kernels, and six kinds of mutants"
    assert not any("open" in attrs for attrs in folded)


KILLED, SURVIVED = mutated("a", verdict(1, "killed")), mutated("b", verdict(2, "survived"))


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([KILLED], "None of 1 mutants survived"),
        ([KILLED, SURVIVED], "1 of 2 mutants survived"),
        ([KILLED, mutated("c", verdict(3, "untried"))], "None of 1 mutants survived, 1 not tried"),
        ([mutated("c", verdict(1, "equivalent"))], "No mutant was judged"),
        ([mutated("d")], "No mutant was judged"),
        ([KILLED, samples()[1]], "Nothing failed in 1 kernel; none of 1 mutants survived"),
        ([SURVIVED, *samples()], "6 checks failed, in 5 of 7 kernels; 1 of 1 mutants survived"),
    ],
)
def test_the_headline_counts_checks_and_mutants(records, words):
    assert headline(*records) == words


@pytest.mark.parametrize(
    ("records", "mood"),
    [
        ([KILLED], "is-good"),
        ([KILLED, samples()[1]], "is-good"),
        ([SURVIVED, samples()[1]], ""),
        ([mutated("c", verdict(1, "untried"))], ""),
        ([KILLED, samples()[0]], "is-bad"),
    ],
)
def test_a_survivor_is_neither_good_nor_a_failure(records, mood):
    assert f'<section class="verdict {mood}"' in rendered(*records)


def test_one_kernel_needs_no_sum():
    assert "<tfoot>" not in rendered(KILLED)
    assert "Number of mutants that each check killed" not in rendered(KILLED)
    assert "<tfoot>" in rendered(KILLED, SURVIVED)


def test_a_failure_of_mutants_is_told_with_the_others():
    bad = dataclasses.replace(KILLED, outcome="failed", message="a: mutants: the worker died")
    text = rendered(bad)
    assert "1 check failed, in 1 of 1 kernel" in text
    assert "the worker died" in text


def test_of_a_run(project):
    """A spec, and a test of one's own that zeros are too easy for."""
    project.specs('name="sum", kernel=add')
    project.write(
        test_own="""
        import numpy as np
        from kernels import *

        def test_zeros(pallas_backend, pallas_check):
            zeros = np.zeros((8, 128), np.float32)
            pallas_check(add, zeros, zeros, reference=reference)
        """
    )
    records = project.records(
        "--pallas-suite=specs", "--pallas-backend=tpu-sim", "--pallas-max-examples=1",
        "--pallas-mutate", "--pallas-html=report.html", "test_own.py",
    )  # fmt: skip
    assert [record["outcome"] for record in records] == ["passed"] * 3
    text = (project.path / "report.html").read_text("utf-8")
    names = re.findall(r'<th scope="row"><a href="#mutants-\d+">(\w+)</a>', text)
    assert sorted(names) == ["_add_body", "sum"]
    assert "Nothing failed in 1 kernel; " in text
    # The spec catches what the test lets survive: alone it shows that.
    project.records(
        "--pallas-backend=tpu-sim", "--pallas-mutate=all", "--pallas-html=report.html",
        "test_own.py",
    )  # fmt: skip
    text = (project.path / "report.html").read_text("utf-8")
    assert '<pre class="source"><code>o_ref[...] = x_ref[...] + y_ref[...]</code></pre>' in text
