"""The cells of the summary table."""

from __future__ import annotations

import re

from pytest_pallas.record import Record
from pytest_pallas.report.terminal import summary


def record(outcome, check="forward", **rest):
    return Record(test="t", kernel="k", check=check, backend="b", outcome=outcome, **rest)


def cell(*records):
    text = summary(records, families=["b"], width=80, color=False)
    return re.split(r"  +", text.splitlines()[1])[1]


def test_a_skip_beside_what_passed_is_left_to_the_line_below():
    assert cell(record("passed", multiple=0.5), record("skipped", "padding")) == "1 ok 0.5x"


def test_a_kernel_that_was_only_skipped_says_so():
    assert cell(record("skipped"), record("skipped", "vmap")) == "2 skipped"


def test_failures_and_expected_failures():
    assert cell(record("failed"), record("passed", "vmap"), record("xfailed", "jit")) == (
        "1 ok 1 FAILED 1 xfail"
    )
