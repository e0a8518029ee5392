"""Masks and ids in words."""

import numpy as np
import pytest

from pytest_pallas.judge.explanation import in_words, role_of

CAUSAL = np.tril(np.ones((5, 5), bool))
SOME = np.ones((7, 9), bool)
SOME[0, 1] = SOME[3, 3:] = False


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        (CAUSAL, "causal 5x5"),
        (np.tril(np.ones((4, 6), bool), 2), "causal 4x6, moved by 2 columns"),
        (np.tril(np.ones((5, 5), bool), -1), "causal 5x5, moved by -1 columns"),
        (CAUSAL.T, "anti-causal 5x5"),
        (np.broadcast_to(CAUSAL, (2, 3, 5, 5)), "causal 2x3x5x5"),
        (SOME, "bool[7, 9], 56 of 63 True, first False at (0, 1)"),
        (np.ones((2, 3), bool), "bool[2, 3], all True"),
        (np.zeros(4, bool), "bool[4], all False"),
        (np.arange(8) < 3, "bool[8], the first 3 True"),
        (np.arange(8) < np.array([[2], [5]]), "bool[2, 8], each row True up to lengths 2 5"),
        (np.arange(8) < np.array([[5], [5]]), "bool[2, 8], the first 5 of each row True"),
        (np.arange(8) > 3, "bool[8], 4 of 8 True, first False at (0)"),
    ],
)
def test_masks(mask, words):
    assert role_of(mask) == "mask"
    assert in_words(mask) == words


@pytest.mark.parametrize(
    ("ids", "words"),
    [
        ([0, 0, 1, 1, 2], "int32[5] [0 0 1 1 2]"),
        ([[0, 3], [1, -1]], "int32[2, 2] [[0 3] [1 -1]]"),
        (
            list(range(20)),
            "int32[20] [0 1 2 3 4 5 6 7 ...], 0 to 19, 20 different, in order",
        ),
        ([3, 1] * 10, "int32[20] [3 1 3 1 3 1 3 1 ...], 1 to 3, 2 different"),
    ],
)
def test_ids(ids, words):
    array = np.array(ids, np.int32)
    assert role_of(array) == "ids"
    assert in_words(array) == words


@pytest.mark.parametrize(
    "numbers",
    [
        np.ones(4, np.float32),
        np.array([1, 2], np.int8),  # operands of a product
        np.array([-7, 3], np.int32),
        np.array([2**30], np.int32),
        np.zeros((2, 2, 2), np.int32),
        np.zeros(0, bool),
        np.array(3),
        3,
    ],
)
def test_numbers_are_neither(numbers):
    assert role_of(numbers) == ""
