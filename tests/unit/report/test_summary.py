"""The cells of the summary table."""

from __future__ import annotations

import dataclasses
import re

from pytest_pallas.record import Record
from pytest_pallas.report.terminal import footnotes, summary


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


def skipped(kernel, check, backend, reason):
    made = record("skipped", check, reason=f"{check} needs more: {reason}")
    return dataclasses.replace(made, kernel=kernel, backend=backend)


def test_checks_that_had_nothing_to_ask_share_a_line():
    few = [skipped("a", check, "b", "no DMA") for check in ("races", "dma")]
    many = [skipped(f"k{i}", "donation", place, "no alias") for i in range(5) for place in "bc"]
    assert footnotes([*few, *many]) == [
        "skipped (2) on b: a: races, dma need more: no DMA",
        "skipped (10) on b, c: 5 kernels: donation needs more: no alias",
    ]
