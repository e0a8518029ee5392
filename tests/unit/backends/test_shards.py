"""What a process holds of an array that is spread over several."""

import numpy as np
import pytest

from pytest_pallas import GangError
from pytest_pallas.backends.spreading import LocalShard, LocalShards, describe_index

WHOLE = np.arange(16.0).reshape(4, 4)


def shard(rows: slice, device: str, data=None) -> LocalShard:
    index = (rows, slice(0, 4))
    return LocalShard(index, device, WHOLE[index] if data is None else data)


def holding(*shards: LocalShard) -> LocalShards:
    return LocalShards((4, 4), np.dtype(np.float64), shards)


def test_two_parts_are_one_layer():
    [(values, present)] = holding(shard(slice(2, 3), "a"), shard(slice(3, 4), "b")).layers()
    np.testing.assert_array_equal(values[2:], WHOLE[2:])
    np.testing.assert_array_equal(present.any(axis=1), [False, False, True, True])


def test_equal_copies_are_one_layer_and_different_ones_two():
    copies = [shard(slice(0, 4), "a"), shard(slice(0, 4), "b")]
    assert len(holding(*copies).layers()) == 1
    wrong = shard(slice(0, 4), "c", WHOLE + 1)
    assert len(holding(*copies, wrong).layers()) == 2


def test_a_whole_copy_converts_to_numpy():
    np.testing.assert_array_equal(np.asarray(holding(shard(slice(0, 4), "a"))), WHOLE)


def test_a_part_does_not_convert_to_numpy():
    with pytest.raises(GangError, match=r"only a part of float64\[4, 4\]"):
        np.asarray(holding(shard(slice(0, 2), "a")))


def test_different_copies_do_not_convert_to_numpy():
    with pytest.raises(GangError, match="different copies"):
        np.asarray(holding(shard(slice(0, 4), "a"), shard(slice(0, 4), "b", WHOLE + 1)))


def test_the_holders_of_an_element_are_those_with_its_value():
    right, wrong = shard(slice(0, 4), "a"), shard(slice(0, 4), "b", WHOLE + 1)
    held = holding(right, wrong, shard(slice(0, 1), "c"))
    assert held.holders((3, 1), WHOLE[3, 1]) == [right]
    assert held.holders((3, 1), WHOLE[3, 1] + 1) == [wrong]


def test_no_shard_is_a_layer_without_elements():
    [(_, present)] = holding().layers()
    assert not present.any()


def test_an_index_in_words():
    assert describe_index((slice(8, 16), slice(0, 128))) == "[8:16, 0:128]"
    assert describe_index(()) == "[]"
