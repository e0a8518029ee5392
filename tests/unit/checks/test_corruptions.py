"""Corruptions of right outputs, which the check ``oracle-strength`` makes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from pytest_pallas.checks.oracle_strength import corruptions

DTYPES = [
    "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "int32",
    "int8", "uint8", "int4", "uint4", "bool",
]  # fmt: skip


def dtype_of(name):
    return np.dtype(getattr(ml_dtypes, name, name))


def made(answer, **rest):
    return dict(corruptions(np.asarray(answer), **rest))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (5,), (1, 1), (3, 3), (4, 7), (2, 1, 3), (2, 3, 4, 4)])
def test_shapes_and_dtypes_stay_and_one_element_always_changes(shape, name):
    values = np.arange(1, 1 + int(np.prod(shape))).reshape(shape) % 5
    answer = values.astype(dtype_of(name))
    before = answer.copy()
    wrong = made(answer)
    assert all((w.shape, w.dtype) == (answer.shape, answer.dtype) for w in wrong.values())
    assert (answer == before).all()
    [one] = [w for kind, w in wrong.items() if "element" in kind or "flipped" in kind]
    assert np.count_nonzero(one != answer) == 1


def test_an_empty_answer_has_none():
    assert made(np.zeros((0, 4), np.float32)) == {}


def test_what_is_done():
    answer = np.array([[1.0, 2.0, -8.0], [4.0, 5.0, 6.0], [7.0, 7.5, 3.0]], np.float32)
    wrong = made(answer)
    assert wrong["scaled by 1.1"].tolist() == (answer * np.float64(1.1)).astype("f4").tolist()
    assert wrong["the largest element with the other sign"][0].tolist() == [1, 2, 8]
    assert wrong["rolled by one along axis 1"][0].tolist() == [-8, 1, 2]
    assert wrong["zeros at the last index of axis 0"].tolist()[1:] == [[4, 5, 6], [0, 0, 0]]
    assert wrong["one row replaced by its neighbour"].tolist()[1] == [1, 2, -8]
    assert (wrong["last two axes transposed"] == answer.T).all()
    assert len(wrong) == 8
    assert "last two axes transposed" not in made(answer[:2])


def test_only_one_matrix_has_the_wrong_row():
    answer = np.arange(24.0).reshape(2, 3, 4)
    wrong = made(answer)["one row replaced by its neighbour"]
    assert sorted({tuple(i[:2]) for i in np.argwhere(wrong != answer)}) == [(0, 1)]
    assert made([[3.0, 4.0]])["one row replaced by its neighbour"].tolist() == [[3, 3]]


@pytest.mark.parametrize(
    ("answer", "wrong"),
    [([5, -7, 3], [5, -6, 3]), ([0, 0], [1, 0]), ([-128, 0], [-127, 0]), ([127, 0], [126, 0])],
)
def test_integers_are_off_by_one(answer, wrong):
    found = made(np.array(answer, np.int8))["the largest element off by one"]
    assert found.tolist() == wrong


def test_as_many_elements_as_may_be_wrong_and_one():
    answer = np.arange(1.0, 101.0)
    wrong = made(answer, fraction=0.05)["the 6 largest elements with the other sign"]
    assert np.count_nonzero(wrong != answer) == 6
