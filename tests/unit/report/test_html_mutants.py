"""What the page of ``--pallas-html`` says of mutants, as plain values and as HTML."""

from __future__ import annotations

import dataclasses
import html
import re

import pytest
from pallas_test_support.mutant_samples import SOURCE, mutant_samples, mutated, verdict
from pallas_test_support.report_samples import samples

from pytest_pallas.mutate.report import mutants, others
from pytest_pallas.report.html import template

STATUSES = ("killed", "survived", "equivalent", "untried")


def counts(row):
    return (len(row.verdicts), *map(row.count, STATUSES))


def listed(row, verdicts):
    """The text of the page about mutants, without markup."""
    macro = template("mutants.html.j2").make_module({"mutants": mutants(mutant_samples())}).listed
    text = re.sub("<[^>]*>", "", str(macro(verdicts, row.kernel, "name")))
    return html.unescape(" ".join(text.split()))


def rows(*records):
    found = mutants(records)
    assert found is not None
    return {row.kernel: row for row in found.rows}


def test_nothing_without_mutants():
    assert mutants([]) is None
    assert mutants(samples()) is None
    assert others(samples()) == samples()


def test_counts_and_score():
    row = rows(*mutant_samples())["rms_norm"]
    assert counts(row) == (12, 7, 2, 2, 1)
    assert (row.percent, row.state) == ("77.7 %", "survived"), "7 of 9"


def test_all_kernels_together():
    found = mutants(mutant_samples())
    assert found is not None
    assert counts(found.every) == (18, 9, 3, 4, 2)
    assert found.every.percent == "75 %"
    assert found.without == ["plain"]


def test_worst_score_first_and_those_without_one_last():
    names = list(rows(*mutant_samples()))
    assert names[1:] == ["rms_norm", "perfect", "hopeless"]
    states = [row.state for row in rows(*mutant_samples()).values()]
    assert states == ["survived", "survived", "killed", "unscored"]
    assert rows(*mutant_samples())["hopeless"].percent == "-"


def test_with_a_survivor_the_score_is_never_100():
    killed = [verdict(number, "killed") for number in range(9999)]
    row = rows(mutated("k", *killed, verdict(10_000, "survived")))["k"]
    assert row.percent == "99.9 %"
    assert rows(mutated("k", *killed))["k"].percent == "100 %"


def test_survivors_are_written_out():
    row = rows(*mutant_samples())["rms_norm"]
    assert listed(row, row.survived[:1]) == (
        f"comparison: lt -> le in _body · 8 examples, 1.5 s {SOURCE} "
        "/home/me/norms.py:17, called in norms.py:90"
    )
    second = listed(row, row.survived[1:])
    assert ": the last dropped (grid axis 1) in _body" in second
    assert "called in" not in second


@pytest.mark.parametrize(
    ("change", "part", "words"),
    [
        ("sub -> add", "sub", "sub -> add"),
        ("dropped", "", "dropped"),
        ("to bfloat16 before mul", "mul", "to bfloat16 before mul"),
        ("exp -> log", "x", "exp -> log (x)"),
    ],
)
def test_a_part_that_the_change_names_is_not_said_twice(change, part, words):
    row = rows(mutated("k", verdict(1, "survived", change=change, part=part)))["k"]
    assert listed(row, row.survived).startswith(f"comparison: {words} in _body")


def test_the_body_is_named_where_it_is_not_the_kernel():
    own = mutated("", verdict(1, "survived"), family="")
    row = rows(own)["_body"]
    assert " in _body" not in listed(row, row.survived)


def test_what_caught_how_many():
    found = rows(*mutant_samples())["rms_norm"].killed_by
    assert found == [("forward on interpret", 6), ("races on tpu-interpret:v6e", 1)]


def test_of_a_process_that_died_the_death_is_named():
    row = rows(mutated("k", verdict(1, "killed", by="", on="", how="WorkerDiedError")))["k"]
    assert row.killed_by == [("WorkerDiedError", 1)]


def test_what_is_folded():
    row = rows(*mutant_samples())["rms_norm"]
    folded = {title: [v.reason for v in verdicts] for title, verdicts in row.folded.items()}
    assert folded == {
        "equivalent: marked by the spec": [
            "rows past the end are never written back, whatever a < b & c is"
        ],
        "equivalent: the same program": ["the same program after simplification, in 3 drawn calls"],
        "not tried": ["time was over"],
    }
    assert rows(mutated("k", verdict(1, "killed")))["k"].folded == {}


def test_the_rest_of_the_page_is_about_other_records():
    assert others([*mutant_samples(), *samples()]) == samples()


@pytest.mark.parametrize("outcome", ["failed", "xpassed"])
def test_what_turned_the_run_red_is_on_the_rest_of_the_page(outcome):
    """With mutants or without: a failure is never left out."""
    for record in (mutated("k", verdict(1, "killed")), mutated("k")):
        bad = dataclasses.replace(record, outcome=outcome)
        assert others([bad]) == [bad]
    skipped = mutated("k", outcome="skipped", reason="no interpreter")
    assert others([skipped]) == [skipped]
    assert mutants([skipped]) is None


def test_a_template_is_compiled_once():
    assert template("page.html.j2") is template("page.html.j2")
