import numpy as np
import pytest

from pytest_pallas import SpecError
from pytest_pallas import strategies as pst


def some(drawn, holds):
    return any(holds(mask) for mask in drawn)


def causal(queries, keys, shift=0):
    return np.arange(keys)[None] <= np.arange(queries)[:, None] + shift


@pytest.mark.parametrize("number", range(3))
def test_every_kind_within_100_examples(draws, number):
    drawn = draws(pst.masks(20, 30, block=8), number=number)
    for mask in drawn:
        assert (mask.dtype, mask.shape) == (np.bool_, (20, 30))
    assert some(drawn, np.all)
    assert not all(map(np.any, drawn))  # no query sees anything
    for shift in (0, 10):
        assert some(drawn, lambda m, shift=shift: np.array_equal(m, causal(20, 30, shift)))
    assert some(drawn, lambda m: m.any() and not m.any(axis=1).all())  # some rows see nothing


def test_rows_are_full_empty_of_one_key_and_end_at_borders(draws):
    counts = [mask.sum(axis=1).tolist() for mask in draws(pst.masks(10, 24, kinds="rows", block=8))]
    assert all(min(count) == 0 and max(count) == 24 and 1 in count for count in counts)
    assert {7, 8, 9, 15, 16, 17} <= {number for count in counts for number in count}


def test_local_masks_are_bands(draws):
    drawn = draws(pst.masks(40, 40, kinds="local", block=8))
    widths = set()
    for mask in drawn:
        assert not np.any(mask & ~causal(40, 40))
        assert mask.diagonal().all()
        widths.add(int(mask.sum(axis=1).max()))
    assert widths >= {1, 7, 8, 9, 40}


def test_block_sparse_masks_have_whole_blocks(draws):
    for mask in draws(pst.masks(20, 30, kinds="block-sparse", block=(8, 16)), 40):
        assert mask.any()
        for row in range(0, 20, 8):
            for column in range(0, 30, 16):
                assert np.unique(mask[row : row + 8, column : column + 16]).size == 1


def test_causal_with_fewer_keys_than_queries(draws):
    drawn = draws(pst.masks(9, 4, kinds="causal"))
    assert some(drawn, lambda m: not m[0].any() and m[-1].all())
    assert some(drawn, lambda m: m[0].any())


def test_no_empty_rows_if_not_wanted(draws):
    for mask in draws(pst.masks(9, 4, empty_rows=False)):
        assert mask.any(axis=1).all()


def test_a_batch_of_masks_of_several_kinds(draws):
    drawn = draws(pst.masks(4, 4, batch=3))
    assert all(mask.shape == (3, 4, 4) for mask in drawn)
    assert some(drawn, lambda m: not np.array_equal(m[0], m[1]))


def test_shrinks_to_a_full_mask_and_to_a_causal_one(shrunk):
    text = shrunk(pst.masks(2, 2), lambda _: True)
    assert "True" in text
    assert "False" not in text
    text = shrunk(pst.masks(2, 2), lambda mask: not mask.all())
    assert text.count("False") == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pst.masks(0, 3), "queries must be"),
        (lambda: pst.masks(3, 0), "keys must be"),
        (lambda: pst.masks(3, 3, kinds="random-ish"), "there is no kind 'random-ish'"),
        (lambda: pst.masks(3, 3, kinds=()), "leaves no kind of mask; give at least one$"),
        (lambda: pst.masks(3, 3, kinds="none", empty_rows=False), "or allow empty_rows"),
        (lambda: pst.masks(3, 3, block=(1, 2, 3)), "block must be an integer or rows"),
        (lambda: pst.masks(3, 3, block=0), "block must be"),
        (lambda: pst.masks(3, 3, batch=0), "batch must be"),
    ],
)
def test_arguments_are_checked_at_once(make, words):
    with pytest.raises(SpecError, match=words):
        make()
