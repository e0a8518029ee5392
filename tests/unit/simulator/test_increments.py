"""What a wait costs: as much as it proves, whatever else is open."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_pallas.simulator.monitors.promises import Promise, SemaphoreHistory, amount_of, size_of


def promised(
    count: SemaphoreHistory, thread: int, *clock: int, amount: int = 1, order: int
) -> Promise:
    event: Any = SimpleNamespace()
    promise = Promise(thread, amount, np.array(clock, np.int32), event)
    count.promise(promise, order)
    return promise


@pytest.mark.parametrize("many", [50, 200])
def test_a_wait_asks_once_about_each_promise(many, monkeypatch):
    visited: list[int] = []
    is_begun = SemaphoreHistory._is_begun

    def counted(count: SemaphoreHistory, promise: Promise, at: int, *rest: Any) -> bool:
        visited.append(at)
        return is_begun(count, promise, at, *rest)

    monkeypatch.setattr(SemaphoreHistory, "_is_begun", counted)
    count = SemaphoreHistory()
    for number in range(many):
        promised(count, 0, number + 1, 0, order=number)
    for number in range(many):
        (promise,) = count.begun(1, many, number + 1, ())
        assert promise.clock[0] == number + 1
    assert len(visited) <= 2 * many


def test_what_comes_after_a_promise_cannot_stand_for_it():
    count = SemaphoreHistory()
    first = promised(count, 0, 1, 0, 0, order=0)
    after = promised(count, 1, 1, 1, 0, order=1)  # knows of the first
    beside = promised(count, 2, 0, 0, 1, order=2)
    assert [*count.begun(3, 3, 1, ())] == []  # any of the two could be it
    assert [*count.begun(3, 3, 2, ())] == [first]
    assert [*count.begun(3, 3, 3, ())] == [after, beside]


def test_what_comes_later_and_knows_of_a_wait_is_no_rival():
    count = SemaphoreHistory()
    promised(count, 0, 1, 0, order=0)
    count.waits[1] = ([2, 4], [1, 5])
    promised(count, 0, 2, 0, order=2)  # does not know of the first wait
    promised(count, 0, 3, 2, order=3)  # knows of it
    promised(count, 0, 4, 2, order=6)  # knows of the first wait, not of the second
    rivals = dict(count.rivals())
    assert {number: (size_of(each), amount_of(each)) for number, each in rivals.items()} == {
        1: (1, 1),
        5: (1, 1),
    }


def test_what_is_left_of_a_wait_is_what_later_ones_prove():
    count = SemaphoreHistory()
    first, second = promised(count, 0, 1, 0, order=0), promised(count, 0, 2, 0, order=1)
    for number, taken in ((2, 1), (3, 2)):
        for promise in count.begun(1, 2, taken, ()):
            promise.known += 1
            promise.close(1, number)
    assert [*count.left(2)] == [second]
    assert [*count.left(3)] == []
    assert first.closed == 2
