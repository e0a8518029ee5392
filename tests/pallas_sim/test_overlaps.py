"""Blocks that are fetched for a program after another wrote them back."""

from __future__ import annotations

import pytest

from pallas_sim.pipeline import Overlap, Overlaps


def box(*pairs):
    return tuple(slice(*pair) for pair in pairs)


HERE, THERE = box((0, 8), (0, 4)), box((8, 16), (0, 4))


@pytest.mark.parametrize(
    "events",
    [
        [],
        [("fetch", HERE, 0), ("store", HERE, 0), ("fetch", THERE, 1), ("store", THERE, 1)],
        # The block of the next step is another one, and fetched before this one is stored.
        [("fetch", HERE, 0), ("fetch", THERE, 1), ("store", HERE, 0)],
        # So long after it was stored that it must have arrived.
        [("store", HERE, 0), ("fetch", HERE, 4)],
        # It is stored once more than it is fetched.
        [("fetch", HERE, 0), ("store", HERE, 0), ("store", HERE, 3)],
    ],
)
def test_none(events):
    overlaps = Overlaps((16, 4), reach=3)
    for what, where, step in events:
        getattr(overlaps, what)(where, step)
    assert overlaps.first is None


@pytest.mark.parametrize(
    "events",
    [
        [("store", HERE, 0), ("fetch", HERE, 1)],
        # Fetched ahead: it has the old contents.
        [("fetch", HERE, 1), ("store", HERE, 0)],
    ],
)
def test_before_and_after(events):
    overlaps = Overlaps((16, 4), reach=3)
    for what, where, step in events:
        getattr(overlaps, what)(where, step)
    assert overlaps.first == Overlap(HERE, writer=0, reader=1)


def test_the_part_that_both_have_and_the_first_of_all():
    overlaps = Overlaps((16, 4), reach=3)
    overlaps.store(HERE, 2)
    overlaps.fetch(box((4, 12), (1, 3)), 5)
    overlaps.fetch(HERE, 6)
    assert overlaps.first == Overlap(box((4, 8), (1, 3)), writer=2, reader=5)
