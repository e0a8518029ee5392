"""What a wait proves of the increments of a semaphore, and what that costs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pallas_sim.order import semaphores as module
from pallas_sim.order.semaphores import Increment, SemaphoreHistory, Spans, amount_of


def increased(
    history: SemaphoreHistory, thread: int, *clock: int, amount: int = 1, order: int = 0
) -> Increment:
    event: Any = SimpleNamespace()
    increment = Increment(thread, amount, np.array(clock, np.int32), event)
    history.increase(increment, order)
    return increment


def in_spans(spans: Spans) -> list[Increment]:
    return [each for of, start, end in spans for each in of.increments[start:end]]


def proved(history: SemaphoreHistory, thread: int, taken: int, *racing: Any) -> list[int] | None:
    clock = history.prove(thread, taken, racing)
    return None if clock is None else clock.tolist()


def test_a_wait_proves_what_it_cannot_do_without():
    history = SemaphoreHistory()
    increased(history, 0, 1, 0, 0, 0)
    increased(history, 1, 1, 1, 0, 0)  # knows of the first
    increased(history, 2, 0, 0, 1, 0)
    assert proved(history, 3, 1) == [0, 0, 0, 0]  # any of the three may be the one
    assert proved(history, 3, 2) == [1, 0, 0, 0]  # two of them, of which two know thread 0
    assert proved(history, 3, 3) == [1, 1, 1, 0]


def test_cases_that_know_the_same_prove_it_though_none_is_certain():
    history = SemaphoreHistory()
    increased(history, 1, 5, 1, 0, 0)
    increased(history, 2, 4, 0, 1, 0)
    assert proved(history, 3, 1) == [4, 0, 0, 0]


@pytest.mark.parametrize(("taken", "known"), [(1, 0), (2, 0), (3, 1), (5, 1), (6, 2), (8, 2)])
def test_an_increment_counts_as_often_as_it_has_units(taken, known):
    history = SemaphoreHistory()
    increased(history, 0, 0, 1, 0, 0, amount=2)
    increased(history, 1, 1, 0, 0, 0, amount=3)
    increased(history, 2, 2, 0, 0, 0, amount=3)
    clock = proved(history, 3, taken)
    assert clock is not None
    assert clock[0] == known


def test_one_of_no_units_proves_nothing():
    history = SemaphoreHistory()
    increased(history, 0, 1, 0, 0)
    increased(history, 1, 0, 1, 0, amount=0)
    assert proved(history, 2, 1) == [1, 0, 0]


def test_what_a_wait_knows_is_nothing_new():
    history = SemaphoreHistory()
    first = increased(history, 0, 1, 0, 0)
    second = increased(history, 0, 2, 0, 0)
    assert [*history.learn(2, np.array([1, 0, 1]))] == [first]
    assert proved(history, 2, 1) is None
    assert proved(history, 2, 2) == [2, 0, 0]
    assert [*history.learn(2, np.array([2, 0, 1]))] == [second]
    assert proved(history, 2, 2) is None


def test_a_wait_relies_on_takes_that_it_knows():
    history = SemaphoreHistory()
    history.wait(0, 3, 0, 2)
    history.wait(0, 5, 1, 4)
    history.wait(1, 2, 2, 1)
    assert [history.taken_before(np.array(each)) for each in ((2, 1), (3, 1), (4, 2), (5, 9))] == [
        0,
        2,
        3,
        7,
    ]


def test_what_comes_later_and_knows_of_a_wait_does_not_race_with_it():
    history = SemaphoreHistory()
    increased(history, 0, 1, 0, order=0)
    history.wait(1, 2, 1, 1)
    second = increased(history, 0, 2, 0, order=2)  # does not know of the first wait
    increased(history, 0, 3, 2, order=3)  # knows of it
    history.wait(1, 4, 5, 1)
    third = increased(history, 0, 4, 2, order=6)  # knows of the first wait, not of the second
    racing = dict(history.racing())
    assert {number: in_spans(spans) for number, spans in racing.items()} == {
        1: [second],
        5: [third],
    }
    assert [amount_of(spans) for spans in racing.values()] == [1, 1]


def test_what_races_with_a_wait_may_be_what_it_takes():
    history, later = SemaphoreHistory(), SemaphoreHistory()
    increased(history, 0, 1, 0, 0)
    increased(later, 1, 0, 1, 0)
    assert proved(history, 2, 1) == [1, 0, 0]
    assert proved(history, 2, 1, (later.increments[1], 0, 1)) == [0, 0, 0]


def test_an_increment_is_open_until_a_wait_proves_it():
    history = SemaphoreHistory()
    first, second = increased(history, 0, 1, 0, order=0), increased(history, 0, 2, 0, order=1)
    for number in (2, 3):
        for increment in history.learn(1, np.array([number - 1, 1])):
            increment.waiters += 1
            increment.close(1, number)
    assert (first.closed, second.closed) == (2, 3)
    history.wait(1, 1, 2, 0)
    assert [*history.others(1, {})] == [second]
    history.waits.clear()
    history.wait(1, 2, 3, 0)
    assert [*history.others(1, {})] == []


def test_what_else_satisfies_waits_is_listed_at_most_twice():
    """Each of many waits can have got most of the increments: all of them together are many."""
    history, count = SemaphoreHistory(), 20
    each = [increased(history, 0, number, 0, order=2 * number) for number in range(count)]
    for number in range(count):
        history.wait(1, number + 1, 2 * number + 1, 1)
    racing = dict(history.racing())
    assert sum(len(in_spans(spans)) for spans in racing.values()) > 5 * count
    others = [*history.others(1, racing)]  # as later ones, and as those that no wait has proved
    assert [*dict.fromkeys(others)] == each
    assert len(others) <= 2 * count


def test_a_thread_proves_a_copy_once():
    history = SemaphoreHistory()
    history.copies += (first := [increased(history, 0, 1, 0)])
    assert history.prove_copies(1) == first
    history.copies += (second := [increased(history, 0, 2, 0)])
    assert [history.prove_copies(thread) for thread in (1, 1, 2)] == [second, [], first + second]


@pytest.mark.parametrize("many", [50, 200])
def test_a_wait_looks_at_what_it_may_take_only(many, monkeypatch):
    looked_at: list[int] = []
    order_statistic = module._order_statistic

    def counted(increments: list[Increment], needed: int) -> Any:
        looked_at.append(len(increments))
        return order_statistic(increments, needed)

    monkeypatch.setattr(module, "_order_statistic", counted)
    history = SemaphoreHistory()
    for number in range(many):
        for thread in (0, 1):
            clock = [0, 0, 0]
            clock[thread] = number + 1
            increased(history, thread, *clock, order=number)
    for number in range(many):
        history.prove(2, 2 * number + 1, ())
        assert [*history.learn(2, np.array([number + 1, number + 1, 1]))] == [
            history.increments[0].increments[number],
            history.increments[1].increments[number],
        ]
    assert looked_at == [2] * many
