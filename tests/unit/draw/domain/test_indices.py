import hypothesis
import numpy as np
import pytest

from pytest_pallas import SpecError
from pytest_pallas import strategies as pst


def elements(drawn):
    return {number for array in drawn for number in array.tolist()}


@pytest.mark.parametrize("length", [1, 2, 7, 300])
def test_permutations_are_permutations(draws, length):
    for array in draws(pst.permutations(length), 40):
        assert array.dtype == np.int32
        assert sorted(array.tolist()) == list(range(length))


def test_every_kind_of_permutation(draws):
    drawn = draws(pst.permutations(8))
    same = np.arange(8)
    assert any((array == same).all() for array in drawn)
    assert any((array == same[::-1]).all() for array in drawn)
    assert any((np.diff(array) % 8 == 1).all() and array[0] for array in drawn)
    assert any(np.count_nonzero(array != same) == 2 for array in drawn)
    assert any(np.count_nonzero(array != same) > 5 for array in drawn)


def test_permutations_shrink_to_the_identity(shrunk):
    text = shrunk(pst.permutations(4), lambda _: True)
    assert "args=array([0, 1, 2, 3], dtype=int32)" in text
    text = shrunk(pst.permutations(4), lambda array: array[0] != 0)
    assert "args=array([3, 2, 1, 0], dtype=int32)" in text


@pytest.mark.parametrize("number", range(3))
def test_indices_reach_every_boundary(draws, number):
    drawn = draws(pst.indices(6, size=70_000, around=512), number=number)
    for array in drawn:
        assert (array.dtype, array.shape) == (np.int32, (6,))
        assert 0 <= array.min() <= array.max() < 70_000
    assert elements(drawn) >= {0, 1, 511, 512, 513, 32_767, 32_768, 65_535, 65_536, 69_999}
    assert any((np.diff(array) < 0).any() for array in drawn)  # out of order
    assert any((array == array[0]).all() for array in drawn)  # repeated
    assert any(0 < len(set(array.tolist())) < 6 for array in drawn)


@pytest.mark.parametrize("number", range(3))
def test_a_single_index_reaches_every_boundary(draws, number):
    found = elements(draws(pst.indices(1, size=70_000), number=number))
    assert found >= {0, 1, 127, 128, 255, 256, 32_767, 32_768, 65_535, 65_536, 69_998, 69_999}


def test_indices_of_a_short_axis(draws):
    assert elements(draws(pst.indices(8, size=3))) == {0, 1, 2}
    assert elements(draws(pst.indices(2, size=1))) == {0}


@pytest.mark.parametrize("size", [6, 100])
def test_unique_indices_never_repeat(draws, size):
    drawn = draws(pst.indices(6, size=size, unique=True))
    assert all(len(set(array.tolist())) == 6 for array in drawn)
    assert elements(drawn) >= {0, size - 1}
    assert any((np.diff(array) < 0).any() for array in drawn)


def test_indices_of_another_dtype(draws):
    drawn = draws(pst.indices(4, size=256, dtype="uint8"))
    assert {array.dtype.name for array in drawn} == {"uint8"}
    assert 255 in elements(drawn)


def test_indices_shrink_to_ascending_ones(shrunk):
    assert "args=array([0, 1, 2], dtype=int32)" in shrunk(
        pst.indices(3, size=70_000), lambda _: True
    )


@pytest.mark.skipif(
    hypothesis.__version_info__ < (6, 170), reason="hypothesis 6.131 stops at a shuffled draw"
)
def test_a_large_index_shrinks_to_the_first_that_an_int16_cannot_hold(shrunk):
    text = shrunk(pst.indices(3, size=70_000), lambda array: array.max() > 32_767)
    assert "32768" in text
    value = text.rpartition("args=")[2]
    assert value.count(" 1,") + value.count(" 1]") + value.count("[    1") == 2


@pytest.mark.parametrize("shared", [False, True])
def test_page_tables_share_pages_only_if_allowed(draws, shared):
    drawn = draws(pst.page_tables(3, pages_each=4, pages=16, shared=shared))
    for table in drawn:
        assert (table.dtype, table.shape) == (np.int32, (3, 4))
        assert 0 <= table.min() <= table.max() < 16
        if not shared:
            assert np.unique(table).size == 12
    assert any((np.diff(table.ravel()) == 1).all() for table in drawn)
    assert any(len(set(np.diff(table.ravel()).tolist())) > 4 for table in drawn)  # permuted
    assert any(table[0, 0] == 15 for table in drawn)
    assert any((np.unique(table).size == 1) for table in drawn) is shared
    prefix = [t for t in drawn if (t[:, 0] == t[0, 0]).all() and not (t == t[0]).all()]
    assert bool(prefix) is shared


def test_entries_of_unused_pages_may_be_no_page(draws):
    used = [3, 0, 1]
    drawn = draws(pst.page_tables(3, pages_each=3, pages=9, used=used))
    unused = np.arange(3) >= np.array(used)[:, None]
    for table in drawn:
        assert 0 <= table[~unused].min() <= table[~unused].max() < 9
    assert {0, -1, 8, 9, 2**31 - 1} == {int(table[1, 0]) for table in drawn}
    assert any((np.diff(table[0]) == 3).all() for table in drawn)  # sequences that grew in turns


def test_fewer_pages_than_entries(draws):
    assert elements(t.ravel() for t in draws(pst.page_tables(3, pages_each=2, pages=4))) == {
        0,
        1,
        2,
        3,
    }


def test_page_tables_shrink(shrunk):
    text = shrunk(pst.page_tables(2, pages_each=2, pages=8), lambda _: True)
    assert "[0, 1]" in text
    assert "[2, 3]" in text


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: pst.permutations(0), "length must be"),
        (lambda: pst.indices(0, size=3), "count must be"),
        (lambda: pst.indices(3, size=0), "size must be"),
        (lambda: pst.indices(3, size=3, dtype="float32"), "indices must be integers, not float32"),
        (lambda: pst.indices(3, size=129, dtype="int8"), "int8 cannot hold the index 128"),
        (lambda: pst.indices(4, size=3, unique=True), "size=3 has fewer than 4 different"),
        (lambda: pst.indices(4, size=3, around=0), "around must be"),
        (lambda: pst.page_tables(0, pages_each=1, pages=1), "sequences must be"),
        (lambda: pst.page_tables(1, pages_each=0, pages=1), "pages_each must be"),
        (lambda: pst.page_tables(1, pages_each=1, pages=0), "pages must be"),
        (lambda: pst.page_tables(3, pages_each=4, pages=8, shared=False), "less than the 12"),
        (lambda: pst.page_tables(2, pages_each=4, pages=8, used=[1]), "used must be 2 numbers"),
        (lambda: pst.page_tables(1, pages_each=4, pages=8, used=[5]), "of at most 4"),
    ],
)
def test_arguments_are_checked_at_once(make, words):
    with pytest.raises(SpecError, match=words):
        make()
