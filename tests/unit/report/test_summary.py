"""The cells of the summary table."""

from __future__ import annotations

import dataclasses
import re

import pytest

from pytest_pallas.record import NotApplicable, Record
from pytest_pallas.report.summary import summary
from pytest_pallas.report.terminal import entries, footnote_lines
from pytest_pallas.report.terminal import lines as lines_of


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


def left_out(kernel, check, backend, requirement, found="collection"):
    name = f"specs.py::{kernel}-{check}[{backend}]"
    return NotApplicable(test=name, kernel=kernel, family="f", check=check, backend=backend,
                         requirement=requirement, found=found)  # fmt: skip


FEW = [left_out("a", check, "b", "no DMA", "run") for check in ("races", "dma")]
MANY_LEFT = [left_out(f"k{i}", "donation", on, "no alias") for i in range(600) for on in "bc"]


def test_checks_that_do_not_apply_have_one_line_of_counts():
    assert list(lines_of([*FEW, *MANY_LEFT], every=False)) == [
        "not applicable: 1,202 checks of 601 kernels, 2 of them found during the run "
        "(-v lists them)"
    ]
    assert list(lines_of(FEW[:1], every=False)) == [
        "not applicable: 1 check of 1 kernel, 1 of them found during the run (-v lists them)"
    ]
    assert list(lines_of([], every=True)) == []


def test_checks_that_do_not_apply_are_listed_by_requirement():
    assert list(lines_of([*FEW, *MANY_LEFT[:4]], every=True)) == [
        "not applicable: 6 checks of 3 kernels, 2 of them found during the run",
        "  no alias (4): donation on b, c: k0, k1",
        "  no DMA (2): races, dma on b: a",
    ]


def test_what_a_test_found_not_to_apply_is_among_them():
    made = dataclasses.replace(record("skipped", "races"), requirement="no DMA")
    [entry] = entries({}, [made, record("skipped", reason="claims gpu only")])
    assert (entry.check, entry.requirement, entry.found) == ("races", "no DMA", "run")
    assert footnote_lines([made]) == []


def skips(reasons, outcome="skipped", kernels=1):
    return [
        dataclasses.replace(record(outcome, reason=f"reason {n}"), kernel=f"k{i}", backend=on)
        for n in range(reasons)
        for i in range(kernels)
        for on in "bc"
    ]


@pytest.mark.parametrize(
    ("outcome", "title", "titles"),
    [("skipped", "skipped", "skipped"), ("xfailed", "expected failure", "expected failures")],
)
def test_reasons_are_listed_where_they_are_few(outcome, title, titles):
    assert footnote_lines(skips(3, outcome)) == [
        f"{title} (2) on b, c: k0: reason {n}" for n in "012"
    ]
    assert footnote_lines(skips(4, outcome, 2)) == [
        f"{titles}: 16 checks of 2 kernels, for 4 reasons (-v lists them)"
    ]
    assert len(footnote_lines(skips(40, outcome), every=True)) == 40
    assert footnote_lines(skips(1, outcome, 9)) == [f"{title} (18) on b, c: 9 kernels: reason 0"]


def test_what_was_not_run_is_told_apart_from_skips():
    stopped = record(
        "skipped", reason="forward raised; see `k-forward[b]`", stopped_by="k-forward[b]"
    )
    assert footnote_lines([stopped, record("skipped", reason="else")]) == [
        "not run (1) on b: k: forward raised; see `k-forward[b]`",
        "skipped (1) on b: k: else",
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


def test_a_backend_of_no_kernel_that_is_shown_has_no_column():
    records = [of("wrong", "failed"), of("right", backend="tpu-interpret:v5p")]
    assert lines(records)[0].split() == [
        "kernel",
        "tpu-interpret:v6e",
        "tpu-interpret:v5p",
        "examples",
        "seconds",
    ]
    assert lines(records, lines=1)[0].split() == [
        "kernel",
        "tpu-interpret:v6e",
        "examples",
        "seconds",
    ]


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


def test_only_failed_kernels_are_shown_and_others_counted():
    found = lines(MANY, only_failed=True)
    assert names(found)[1:3] == ["matmul", "wrong"]
    assert found[-1] == "6 kernels without failures"
    assert len(found) == 4
    assert lines([of("k"), of("l")], only_failed=True) == ["2 kernels without failures"]


def test_every_kernel_is_named_if_asked():
    assert footnote_lines(skips(1, kernels=9), every=True) == [
        "skipped (18) on b, c: k0, k1, k2, k3, k4, k5, k6, k7, k8: reason 0"
    ]


@pytest.mark.parametrize("width", [50, 80, 150])
@pytest.mark.parametrize("most", [5, 24])
def test_only_the_worst_kernels_that_fit_are_shown(width, most):
    kernels = [
        of(f"kernel_{i}_with_a_long_name", multiple=float(i), family=f"f{i % 7}", backend=on)
        for i in range(159)
        for on in ("tpu-sim", "interpret", "tpu-interpret", "gpu-interpret")
    ]
    found = lines(kernels, width, lines=most)
    assert most - 6 <= len(found) <= max(most, 6) + 2  # a kernel may take several lines
    shown = re.findall(r"kernel_(\d+)_", "\n".join(found))
    assert sorted(map(int, shown), reverse=True) == list(range(158, 158 - len(shown), -1))
    assert found[-1] == f"... and {159 - len(shown)} more kernels (-v lists them)"
    assert not any("more kernel" in line for line in lines(kernels[:4], width, lines=most))
