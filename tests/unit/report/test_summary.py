"""The cells of the summary table."""

from __future__ import annotations

import dataclasses
import re

import pytest

from pytest_pallas.record import Record
from pytest_pallas.report.summary import summary
from pytest_pallas.report.terminal import footnotes


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


def of(kernel, outcome="passed", *, family="", backend="tpu-interpret:v6e", **rest):
    return Record(test="t", kernel=kernel, check="forward", backend=backend, outcome=outcome,
                  family=family, examples=8, seconds=1.25, **rest)  # fmt: skip


MANY = [
    of("exact", multiple=0.0, family="copies"),
    of("near", multiple=1.2, family="copies"),
    of("far", multiple=7.5, family="norms"),
    of("unmeasured", family="norms"),
    of("wrong", "failed", multiple=3.0, family="matmul"),
    of("right", multiple=9.0, family="matmul"),
    of("mine", multiple=0.1),
]


def lines(records, width=80, **rest):
    text = summary(records, families=["tpu-interpret"], width=width, color=False, **rest)
    return text.splitlines()


def names(found):
    return [line.partition("  ")[0] if line[0] != " " else line.split()[0] for line in found]


def test_families_and_kernels_are_sorted_worst_first():
    assert names(lines(MANY)[1:]) == [
        "matmul", "wrong", "right", "norms", "far", "unmeasured", "copies", "near", "exact",
        "tests without specs", "mine",
    ]  # fmt: skip


def test_an_expected_failure_is_not_sorted_by_its_error():
    found = lines([of("known", "xfailed", multiple=1e9), of("far", multiple=2.0)])
    assert names(found) == ["kernel", "far", "known"]


def test_one_family_needs_no_heading():
    found = lines([of("near", multiple=1.0, family="a"), of("far", multiple=2.0, family="a")])
    assert names(found) == ["kernel", "far", "near"]
    assert all(line[0] != " " for line in found)


def test_columns_are_aligned():
    found = lines(MANY)
    at = found[0].index("tpu-interpret")
    assert {line[at] for line in found if line.startswith("  ")} == {"1"}
    assert {len(line) for line in found if line.startswith("  ")} == {len(found[0])}


@pytest.mark.parametrize("width", [40, 50, 60])
def test_a_narrow_terminal_gets_a_list(width):
    records = [*MANY, of("a_kernel_with_a_long_name", family="matmul", backend="interpret")]
    found = lines(records, width)
    assert max(map(len, found)) <= width
    at = next(i for i, line in enumerate(found) if line.strip().startswith("wrong"))
    assert re.fullmatch(r"  wrong  8 in 1.2 s", found[at])
    assert re.fullmatch(r" +tpu-interpret:v6e +1 FAILED", found[at + 1])
    assert not any("…" in line for line in found)


def test_a_narrow_table_that_fits_stays_a_table():
    assert lines([of("k", multiple=1.0)], 60)[0].split() == [
        "kernel", "tpu-interpret:v6e", "examples", "seconds",
    ]  # fmt: skip


def test_quiet():
    found = lines(MANY, only_failed=True)
    assert names(found)[1:3] == ["matmul", "wrong"]
    assert found[-1] == "6 kernels without failures"
    assert len(found) == 4
    assert lines([of("k"), of("l")], only_failed=True) == ["2 kernels without failures"]


def test_every_kernel_is_named_if_asked():
    many = [skipped(f"k{i}", "donation", "b", "no alias") for i in range(5)]
    assert footnotes(many, every=True) == [
        "skipped (5) on b: k0, k1, k2, k3, k4: donation needs more: no alias"
    ]
