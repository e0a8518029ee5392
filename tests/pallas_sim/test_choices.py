"""The choices of a run: those of the plain order, and those of a seed."""

from __future__ import annotations

import pytest

from pallas_sim.choices import Choices


def test_the_plain_order():
    choices = Choices()
    assert not choices.vary
    assert [choices.among(count) for count in (1, 2, 5)] == [0, 0, 0]
    assert not choices.chance(1.0)
    assert list(choices.order(4)) == [0, 1, 2, 3]
    assert choices.orders([2, 3]) == [[0, 1], [0, 1, 2]]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_seed_decides(seed):
    def drawn():
        choices = Choices(seed)
        return [choices.among(9) for _ in range(9)], choices.chance(0.5), choices.order(9)

    assert drawn() == drawn()
    assert set(drawn()[0]) != {0}
    assert sorted(drawn()[2]) == list(range(9))


def test_a_grid_has_one_order_and_not_the_plain_one():
    choices = Choices(seed=1)
    choices.among(7)
    assert choices.orders([2, 2]) == Choices(seed=1).orders([2, 2]) != [[0, 1], [0, 1]]
    assert choices.orders([1, 0]) == [[0], []]
