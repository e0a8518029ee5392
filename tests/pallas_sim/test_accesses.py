"""Ranges of addresses: which items of theirs are near an access."""

from __future__ import annotations

import random

from pallas_sim.order.accesses import AddressRanges


def test_the_items_near_a_range_are_those_that_share_an_address_with_it():
    choose = random.Random(0)
    ranges: AddressRanges[int] = AddressRanges()
    there: dict[int, tuple[int, int]] = {}
    for item in range(300):
        start = choose.randrange(100)
        there[item] = bounds = (start, start + choose.randrange(1, 30))
        ranges.add(bounds, item)
        if choose.random() < 0.4:
            gone = choose.choice(list(there))
            assert ranges.remove(there.pop(gone), gone)
        low = choose.randrange(100)
        high = low + choose.randrange(1, 30)
        near = [each for each, (start, end) in there.items() if start < high and end > low]
        near.sort(key=lambda each: (there[each][0], each))
        assert list(ranges.near((low, high))) == near


def test_an_item_is_removed_once():
    ranges: AddressRanges[str] = AddressRanges()
    ranges.add((8, 16), "first")
    ranges.add((8, 16), "second")
    assert ranges.remove((8, 16), "second")
    assert not ranges.remove((8, 16), "second")
    assert list(ranges.near((0, 9))) == ["first"]
    assert not ranges.remove((0, 16), "first")
