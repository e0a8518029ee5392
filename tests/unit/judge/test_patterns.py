import numpy as np
import pytest

from pytest_pallas.judge.wrong_elements import location_patterns


def mask(shape, *selection):
    result = np.zeros(shape, bool)
    result[selection] = True
    return result


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (mask((8, 9), 3), "only index 3 of axis 0 (rows)"),
        (mask((8, 9), 0), "only index 0 of axis 0 (rows), the first"),
        (mask((8, 9), -1), "only index 7 of axis 0 (rows), the last"),
        (mask((8, 9), slice(None), 8), "only index 8 of axis 1 (columns), the last"),
        (mask((3, 4), 2), "only index 2 of axis 0 (rows), the last"),
        (mask((2, 8, 9), 1), "only index 1 of axis 0, the last"),
        (mask((40,), slice(32, None)), "only indices >= 32 of axis 0: the last 8 of 40, a tail"),
        (mask((8, 300), slice(None), slice(256, None)), "only indices >= 256 of axis 1 (columns)"),
        (mask((40,), slice(20, None)), "only indices >= 20 of axis 0: the last 20 of 40"),
        (mask((40, 8), slice(0, 16)), "only indices < 16 of axis 0 (rows), which has 40"),
        (mask((40, 8), slice(8, 16)), "only indices 8 to 15 of axis 0 (rows)"),
        (mask((32, 19), slice(20, None)), "only indices >= 20 of axis 0 (rows)"),
        (mask((40, 8), [3, 11, 12]), "only indices 3, 11, 12 of axis 0 (rows)"),
        (mask((40, 8), slice(1, None, 4)), "only indices 1, 5, ... 37 (every 4th) of axis 0"),
        (mask((64, 64), slice(16, 32), slice(48, 64)), "exactly the box [16:32, 48:64]"),
        (mask((4, 8, 8), 2, slice(0, 4)), "exactly the box [2, 0:4, :]"),
        (np.eye(8, dtype=bool), "only where column = row, in the last two axes"),
        (np.eye(8, k=1, dtype=bool), "only where column = row + 1"),
        (np.eye(8, k=-2, dtype=bool), "only where column = row - 2"),
        (np.triu(np.ones((8, 8), bool)), "only where column >= row (above the diagonal)"),
        (np.triu(np.ones((3, 8, 8), bool), 1), "only where column > row (above the diagonal)"),
        (np.tril(np.ones((8, 8), bool)), "only where column <= row (below the diagonal)"),
        (np.tril(np.ones((8, 8), bool), -1), "only where column < row (below the diagonal)"),
        (np.ones((2, 2), bool), "every element is wrong"),
        (mask((4, 4), 1, 2), "a single element is wrong"),
    ],
)
def test_place(wrong, sentence):
    assert location_patterns(wrong)[0].startswith(sentence)


def test_a_confined_part_need_not_be_full():
    wrong = np.zeros((64, 64), bool)
    wrong[60:] = np.random.default_rng(0).random((4, 64)) < 0.4
    (sentence,) = location_patterns(wrong)
    assert sentence.startswith("only indices >= 60 of axis 0 (rows)")


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("count", [2, 3, 30])
def test_scattered_elements_have_no_place(seed, count):
    wrong = np.zeros(64 * 64, bool)
    wrong[np.random.default_rng(seed).choice(wrong.size, count, replace=False)] = True
    sentences = location_patterns(wrong.reshape(64, 64), (16, 16))
    assert not [s for s in sentences if "block" in s or "diagonal" in s or "box" in s]


def test_scattered_half_has_no_pattern_at_all():
    assert location_patterns(np.random.default_rng(0).random((32, 32)) < 0.5, (8, 8)) == ()


def test_nothing_wrong_and_nothing_to_tell_apart():
    assert location_patterns(np.zeros((3, 3), bool)) == ()
    assert location_patterns(np.ones((), bool)) == ()
    assert location_patterns(np.zeros((0, 3), bool)) == ()


def test_whole_blocks_with_a_ragged_edge():
    wrong = np.zeros((40, 40), bool)
    wrong[32:, 32:] = wrong[:16, 16:32] = True
    sentence = location_patterns(wrong, (16, 16))[0]
    assert sentence == "whole blocks of shape (16, 16): 2 of 9, at block index (0, 1) (2, 2)"


def test_squeezed_dimensions_of_a_block():
    sentence = location_patterns(mask((3, 16, 16), 1, slice(8, 16)), (None, 8, 16))[0]
    assert sentence == "whole blocks of shape (1, 8, 16): 1 of 6, at block index (1, 1, 0)"


def test_part_of_one_block():
    wrong = mask((64, 64), slice(16, 20), slice(0, 16, 3))
    sentence = location_patterns(wrong, (16, 16))[0]
    assert sentence == "confined to blocks of shape (16, 16): 1 of 16, at block index (1, 0)"


def test_a_block_shape_of_other_rank_is_ignored():
    assert not any("block" in s for s in location_patterns(mask((64, 64), 3), (64,)))


def test_half_of_an_axis_is_no_tail():
    for first, hint in ((19, False), (20, False), (21, True)):
        (sentence,) = location_patterns(mask((40,), slice(first, None)))
        assert ("a tail mask?" in sentence) == hint
