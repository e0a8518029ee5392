"""What can be drawn of a failure, as values: maps and histograms."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest

from pallas_sim.errors import KernelError
from pallas_sim.findings import Access, Finding, Owner
from pytest_pallas import MismatchError
from pytest_pallas.checks.context import CheckResult, ComparedOutputs
from pytest_pallas.draw.arguments import Arguments
from pytest_pallas.errors import facts_of
from pytest_pallas.judge.judgement import compare
from pytest_pallas.record import from_json, to_json
from pytest_pallas.report.pictures import (
    ERROR_CELLS,
    arguments_of,
    errors_of,
    level,
    lines_of,
    pictures_of,
    sources_of,
)
from pytest_pallas.run.result import MOST_POINTS, Result


def finding(actual, oracle, baseline=None):
    baseline = np.asarray(oracle, actual.dtype) if baseline is None else baseline
    expected = SimpleNamespace(oracle=[("", oracle)], baseline=[("", baseline)])
    comparison = compare(actual, oracle, baseline)
    answer = ComparedOutputs([("", actual)], expected, SimpleNamespace())
    return CheckResult(comparisons=[comparison], answer=answer)


def builder():
    return Result(kernel="k", check="forward", backend="interpret")


def test_each_level_of_errors_doubles_the_last():
    errors = np.array([0.0, 1e-9, 0.12, 0.13, 1.0, 1.9, 2.0, 2.0**20, 2.0**30, np.inf])
    assert level(errors).tolist() == [0, 1, 1, 2, 5, 5, 6, 25, 26, 26]


def test_map_of_an_error():
    """Wrong cells are upper case, the others are not; equal elements have no error."""
    oracle = np.ones((4, 6))
    actual = oracle.astype(np.float32)
    actual[1, 2] += 1
    actual[3, 5] = np.nan
    errors = errors_of(finding(actual, oracle))["errors"]
    assert errors["rows"] == ["......", "..Z...", "......", ".....!"]
    assert (errors["shape"], errors["cell"], errors["wrong"]) == ([4, 6], [1, 1], 2)
    assert errors["unit"] == "ulps"


def test_a_large_map_is_small_and_keeps_the_worst():
    oracle = np.ones((3, 500, 700))
    actual = oracle.astype(np.float32)
    actual[2, 499, 699] += 1
    errors = errors_of(finding(actual, oracle))["errors"]
    rows, columns = len(errors["rows"]), len(errors["rows"][0])
    assert errors["cell"] == [16, 8]
    assert (rows, columns) == (-(-1500 // 16), -(-700 // 8))
    assert max(rows, columns) <= ERROR_CELLS
    assert errors["rows"][-1][-1] == "Z"
    assert "".join(errors["rows"]).count("Z") == 1


def test_histogram_counts_every_element():
    oracle = np.ones((8, 8))
    actual = oracle.astype(np.float32)
    actual[0] += 1
    actual[1, 0] = np.inf
    counts = errors_of(finding(actual, oracle))["histogram"]
    assert sum(counts["kernel"]) == sum(counts["baseline"]) == 64
    assert (counts["kernel"][0], counts["kernel"][26], counts["kernel"][27]) == (55, 8, 1)
    assert counts["baseline"][0] == 64


def test_integers_have_differences():
    actual, right = np.array([[1, 2], [3, 260]]), np.array([[1, 2], [3, 4]])
    found = errors_of(finding(actual, right))
    assert found["errors"]["unit"] == "difference"
    assert found["errors"]["rows"] == ["..", ".M"]
    assert sum(found["histogram"]["baseline"]) == 0


def test_without_arrays_the_map_says_what_is_wrong():
    oracle = np.ones((2, 2))
    actual = oracle.astype(np.float32)
    actual[0, 1] = 2
    given = CheckResult(comparisons=[compare(actual, oracle, np.ones((2, 2), np.float32))])
    found = errors_of(given)
    assert found["errors"]["rows"] == [".A", ".."]
    assert not found["errors"]["measured"]
    assert "histogram" not in found


def test_a_right_answer_has_no_picture():
    oracle = np.ones((2, 2))
    assert errors_of(finding(oracle.astype(np.float32), oracle)) == {}


def test_scalars_and_empty_dims():
    assert errors_of(finding(np.float32(3.0).reshape(()), np.ones(())))["errors"]["rows"] == ["Z"]
    assert errors_of(finding(np.ones((0, 3), np.float32), np.ones((0, 3)))) == {}


def test_other_errors_have_no_pictures():
    assert pictures_of(KernelError("no block divides it"), builder()) == {}
    assert pictures_of(ValueError("a typo"), builder()) == {}


def test_a_picture_that_cannot_be_made_says_so():
    error = MismatchError("wrong")
    facts_of(error).failure = SimpleNamespace(result=object())
    assert "AttributeError" in pictures_of(error, builder())["unavailable"]


def begin(each, dims):
    """As a drawn call of these sizes."""
    recipe = {**dims, "dtype": "float32", "seed": 3}
    each.begin(
        SimpleNamespace(args=(), options={}, tuning={}, recipe=recipe, declared=None, mesh={})
    )


def test_errors_of_examples():
    oracle = np.ones((2, 2))
    each = builder()
    begin(each, {"m": 8})
    each.add(finding(oracle.astype(np.float32), oracle))
    begin(each, {"m": 16})
    each.withdraw()
    begin(each, {"m": 24})
    each.add(finding(2 * oracle.astype(np.float32), oracle))
    begin(each, {"m": 32})  # raises
    found = pictures_of(MismatchError("wrong"), each)["examples"]
    assert [(p["dims"], p["failed"]) for p in found] == [({"m": 8}, False), ({"m": 24}, True)]
    assert found[1]["error"] == pytest.approx(2.0**23, rel=1e-3)


def test_not_all_examples_of_a_long_run_are_kept():
    oracle = np.ones((2, 2))
    right, wrong = oracle.astype(np.float32), 2 * oracle.astype(np.float32)
    each = builder()
    for number in range(4 * MOST_POINTS):
        begin(each, {"m": number})
        each.add(finding(right, oracle))
    begin(each, {"m": 9999})
    each.add(finding(wrong, oracle))
    begin(each, {"m": 10000})
    points = pictures_of(MismatchError("wrong"), each)["examples"]
    assert len(points) <= MOST_POINTS + 2
    assert points[-1]["dims"] == {"m": 9999}


def test_pictures_are_json():
    oracle = np.ones((300, 300))
    actual = oracle.astype(np.float32)
    actual[5, 5] = np.nan
    each = builder()
    begin(each, {"m": 300})
    given = finding(actual, oracle)
    each.add(given)
    error = MismatchError("wrong")
    context = SimpleNamespace(arguments=Arguments(()))
    facts_of(error).failure = SimpleNamespace(result=given, context=context)
    record = each.record(test="a", outcome="failed", seconds=1.0, pictures=pictures_of(error, each))
    text = json.dumps(to_json(record), allow_nan=False)
    assert from_json(json.loads(text)).pictures == record.pictures
    assert record.pictures["examples"][0]["error"] == "inf"
    assert len(text) < 15_000


def test_masks_and_ids_of_the_failing_call():
    mask, ids = np.tril(np.ones((2, 3), bool)), np.array([4, 4, -1], np.int32)
    numbers = np.ones((2, 2), np.float32)
    found = arguments_of(Arguments((numbers, {"mask": mask}, ids)))
    assert [(each["where"], each["role"], each["rows"]) for each in found] == [
        ("argument 1['mask']", "mask", ["100", "110"]),
        ("argument 2", "ids", ["bba"]),
    ]
    assert found[0]["words"] == "causal 2x3"


def test_of_large_masks_the_first_rows():
    [found] = arguments_of(Arguments((np.ones((2, 100, 100), bool),)))
    assert found["shape"] == [2, 100, 100]
    assert found["rows"] == ["1" * 32] * 32


def test_source_code_around_the_lines_of_a_finding(tmp_path):
    file = tmp_path / "kernel.py"
    file.write_text("".join(f"line {number}\n" for number in range(1, 31)))
    accesses = tuple(
        Access(kind="read", ref="x", owner=Owner(), line=f"{file}:{line}") for line in (4, 30)
    )
    race = Finding(kind="race", message="", line=f"{file}:2", accesses=accesses)
    sources = sources_of([*lines_of([race]), "the end of the kernel", f"{tmp_path}/none.py:3"])
    assert sources == [
        {
            "file": str(file),
            "first": 1,
            "lines": [f"line {number}" for number in range(1, 6)],
            "marked": [2, 4],
        },
        {
            "file": str(file),
            "first": 27,
            "lines": [f"line {number}" for number in range(27, 31)],
            "marked": [30],
        },
    ]


def test_a_kernel_that_raised_has_its_source_code():
    error = KernelError("no")
    try:
        raise ValueError("no")
    except ValueError as cause:
        facts_of(error).kernel_error = cause
    [source] = pictures_of(error, builder())["sources"]
    assert source["file"] == __file__
    [marked] = source["marked"]
    assert source["lines"][marked - source["first"]] == '        raise ValueError("no")'
