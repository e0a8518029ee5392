import numpy as np
import pytest

from pytest_pallas import KernelReferenceError
from pytest_pallas.judge.judgement import Expected, compare_trees
from pytest_pallas.judge.tolerance import Tolerance

ONES = np.ones(3, np.float32)


def leaves(**arrays):
    return [(f"['{name}']", array) for name, array in arrays.items()]


def test_each_output_is_judged_under_its_path():
    right = leaves(dq=ONES, dk=ONES)
    results = compare_trees(leaves(dq=ONES, dk=ONES + 1), Expected(right, right))
    assert [(r.where, r.passed) for r in results] == [("['dq']", True), ("['dk']", False)]


def test_outputs_are_matched_by_path_not_by_place():
    right = leaves(dq=ONES, dk=2 * ONES)
    assert all(r.passed for r in compare_trees(right[::-1], Expected(right, right)))


def test_options_reach_each_comparison():
    right = leaves(o=ONES)
    wrong = leaves(o=ONES + 1)
    assert compare_trees(wrong, Expected(right, right), tolerance=Tolerance(atol=1))[0].passed
    assert compare_trees(right, Expected(right, right), exact=True)[0].kind == "exact"
    near = leaves(o=ONES + np.float32(30 * 2.0**-23))
    assert compare_trees(near, Expected(right, right, depth=1000))[0].passed
    half = leaves(o=ONES.astype(np.float16))
    assert compare_trees(half, Expected(right, right))[0].kind == "dtype"
    assert compare_trees(half, Expected(right, right), check_dtype=False)[0].passed


def test_missing_and_extra_outputs_are_named():
    right = leaves(dq=ONES, dk=ONES)
    (result,) = compare_trees(leaves(dq=ONES, dv=ONES), Expected(right, right))
    assert (result.passed, result.kind) == (False, "tree")
    assert "missing: ['dk']" in result.message
    assert "not in the reference: ['dv']" in result.message


def test_a_reference_whose_outputs_depend_on_the_dtype_is_an_error():
    with pytest.raises(KernelReferenceError, match="depend on the dtype"):
        compare_trees(leaves(o=ONES), Expected(leaves(o=ONES), leaves(p=ONES)))


def test_a_failure_that_nobody_reads_is_the_same_without_words():
    right = leaves(o=ONES)
    [full] = compare_trees(leaves(o=ONES + 1), Expected(right, right))
    [short] = compare_trees(leaves(o=ONES + 1), Expected(right, right), explained=False)
    assert full.message
    assert (short.message, short.patterns) == ("", ())
    assert (short.passed, short.kind, short.error) == (full.passed, full.kind, full.error)
