"""Semaphores while the events of a run are gone through, and what a wait on one proves.

A semaphore counts units: a signal adds some, a copy adds its bytes. A wait takes a number of units
and does not say whose. So what it proves is proved by cases. Let T be what it takes, with all that
is known to be taken before it. Then at least T units came before the wait. If the increments whose
clocks do not know thread B at time t add up to less than T, one of the others came before the wait,
so the wait comes after B at t. The largest such t is a weighted order statistic: the T-th smallest
of the entries for B in the clocks of the increments, where each clock counts once for each unit.

The increments of one thread come in program order, and each knows at least what the one before it
knew. So only a few of each thread can be the T-th smallest, and a wait looks at no others.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.recording import Copy, Signalled, Started

#: Increments of several threads: for each thread, from the first number to before the last.
Spans = tuple[tuple["ThreadIncrements", int, int], ...]


@dataclass(slots=True, eq=False)
class Increment:
    """What a semaphore gets: a copy's bytes, or a signal.

    Attributes:
      thread: that signals, or starts the copy.
      amount: how many units it is.
      clock: of that thread when it did.
      event: the signal, or the start of the copy.
      copy: the copy, or None.
      done: whether a wait proved the copy to be done.
      waiters: how many of the threads that wait know that it was begun.
      closed: number of the wait since which there is nothing more to be proved of it, or None.
    """

    thread: int
    amount: int
    clock: Array
    event: Started | Signalled
    copy: Copy | None = None
    done: bool = False
    waiters: int = 0
    closed: int | None = None

    def close(self, waiters: int, number: int) -> None:
        """Close it if a wait proved the last of it: it is begun, to all waiters, and done."""
        if self.closed is None and self.waiters == waiters and (self.done or self.copy is None):
            self.closed = number


@dataclass(slots=True, eq=False)
class ThreadIncrements:
    """The increments of a semaphore by one thread, in program order.

    Attributes:
      thread: its number.
      increments: so far.
      totals: the amounts of the first increments, by how many these are.
      orders: for each, how many events came before it.
      known: for each thread that waits, how many of them it knows to be begun.
    """

    thread: int
    increments: list[Increment] = field(default_factory=list[Increment])
    totals: list[int] = field(default_factory=lambda: [0])
    orders: list[int] = field(default_factory=list[int])
    known: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, increment: Increment, order: int) -> None:
        """Add the next increment of the thread."""
        self.increments.append(increment)
        self.totals.append(self.totals[-1] + increment.amount)
        self.orders.append(order)

    def first_after(self, thread: int, time: int, start: int) -> int:
        """Return the number of the first increment from ``start`` that knows a thread at a time."""
        return bisect_left(
            self.increments, time, start, key=lambda increment: increment.clock[thread]
        )


@dataclass(slots=True, eq=False)
class ThreadWaits:
    """The waits of one thread on a semaphore, in program order.

    Attributes:
      times: of the thread after each wait.
      numbers: of the waits, among the events.
      totals: what the first waits took, by how many these are.
    """

    times: list[int] = field(default_factory=list[int])
    numbers: list[int] = field(default_factory=list[int])
    totals: list[int] = field(default_factory=lambda: [0])

    def add(self, time: int, number: int, taken: int) -> None:
        """Add the next wait of the thread."""
        self.times.append(time)
        self.numbers.append(number)
        self.totals.append(self.totals[-1] + taken)

    def taken_at(self, time: int) -> int:
        """Return what its waits took up to a time of the thread."""
        return self.totals[bisect_right(self.times, time)]


@dataclass(slots=True, eq=False)
class SemaphoreHistory:
    """A semaphore while the events are gone through.

    Attributes:
      total: of all increments so far.
      increments: so far, by thread.
      waits: so far, by thread.
      copies: so far.
      proved: for each thread that waits, how many of them its waits proved to be done.
    """

    total: int = 0
    increments: dict[int, ThreadIncrements] = field(default_factory=dict[int, ThreadIncrements])
    waits: dict[int, ThreadWaits] = field(default_factory=lambda: defaultdict(ThreadWaits))
    copies: list[Increment] = field(default_factory=list[Increment])
    proved: dict[int, int] = field(default_factory=dict[int, int])

    def increase(self, increment: Increment, order: int) -> None:
        """Note that a thread adds to the semaphore.

        Args:
          increment: what it adds.
          order: how many events came before.
        """
        self.total += increment.amount
        of_thread = self.increments.get(increment.thread)
        if of_thread is None:
            of_thread = self.increments[increment.thread] = ThreadIncrements(increment.thread)
        of_thread.add(increment, order)
        if increment.copy is not None:
            self.copies.append(increment)

    def all_increments(self) -> Iterator[Increment]:
        """Yield its increments so far, thread by thread."""
        for of_thread in self.increments.values():
            yield from of_thread.increments

    def wait(self, thread: int, time: int, number: int, taken: int) -> None:
        """Note that a thread has waited.

        Args:
          thread: which one.
          time: of the thread after the wait.
          number: of the wait, among the events.
          taken: how many units it took.
        """
        self.waits[thread].add(time, number, taken)

    def taken_before(self, clock: Array) -> int:
        """Return what was taken by waits that a clock knows.

        In another order other threads may take first, so that a wait may rely on no more.
        """
        return sum(waits.taken_at(clock[thread]) for thread, waits in self.waits.items())

    def prove(self, thread: int, taken: int, racing: Spans) -> Array | None:
        """Prove by cases what comes before a wait.

        Args:
          thread: that waits.
          taken: what the wait takes, with what is known to be taken before.
          racing: increments that came later in this run, and may come before the wait in another.

        Returns:
          A clock that the thread knows after the wait, or None if there is nothing new.
        """
        spans: list[tuple[ThreadIncrements, int, int]] = []
        needed, available = taken, 0
        for increments in self.increments.values():
            known, end = increments.known.get(thread, 0), len(increments.increments)
            # The wait knows these already: they are the smallest, whatever the thread. Without them
            # the same clock is looked for, at a lower rank.
            needed -= increments.totals[known]
            if known < end:
                spans.append((increments, known, end))
        if needed <= 0:
            return None
        candidates: list[Increment] = []
        for increments, start, end in (*spans, *racing):
            # What follows more than is needed is larger than what is looked for.
            totals = increments.totals
            last = bisect_left(totals, min(totals[start] + needed, totals[end]), start, end)
            available += totals[last] - totals[start]
            candidates += increments.increments[start:last]
        if len(candidates) < 2:
            return candidates[0].clock if candidates else None
        if available <= needed:
            return np.maximum.reduce([candidate.clock for candidate in candidates])
        return _order_statistic(candidates, needed)

    def learn(self, thread: int, clock: Array) -> Iterator[Increment]:
        """Yield the increments that the clock of a thread that waits knows for the first time."""
        for increments in self.increments.values():
            at = increments.known.get(thread, 0)
            while at < len(increments.increments):
                increment = increments.increments[at]
                if increment.clock[increment.thread] > clock[increment.thread]:
                    break
                at += 1
                yield increment
            increments.known[thread] = at

    def prove_copies(self, thread: int) -> list[Increment]:
        """Return the copies so far that no earlier wait of a thread proved to be done."""
        first, self.proved[thread] = self.proved.get(thread, 0), len(self.copies)
        return self.copies[first:]

    def racing(self) -> Iterator[tuple[int, Spans]]:
        """Yield for the number of a wait, the later increments that do not know of it.

        In another order they may come before the wait.
        """
        for thread, waits in self.waits.items():
            for time, number in zip(waits.times, waits.numbers, strict=True):
                spans: list[tuple[ThreadIncrements, int, int]] = []
                for increments in self.increments.values():
                    if increments.orders[-1] > number:
                        start = bisect_left(increments.orders, number)
                        end = increments.first_after(thread, time, start)
                        if end > start:
                            spans.append((increments, start, end))
                if spans:
                    yield number, tuple(spans)

    def others(self, thread: int, racing: Mapping[int, Spans]) -> Iterator[Increment]:
        """Yield the increments that can have satisfied a thread's wait and were not proved by then.

        Args:
          thread: that waits.
          racing: for a wait's number, the increments that came later and may come before it.

        Yields:
          Each increment at the first of the waits. Both ends of the increments that a wait can have
          got rise from wait to wait, so a later wait yields only what is beyond.
        """
        reached = dict.fromkeys(self.increments, 0)
        passed: dict[int, int] = {}
        for number in self.waits[thread].numbers:
            for other, increments in self.increments.items():
                end = bisect_left(increments.orders, number)
                for increment in increments.increments[reached[other] : end]:
                    if increment.closed is None or increment.closed > number:
                        yield increment
                reached[other] = end
            for increments, start, end in racing.get(number, ()):
                first = max(start, passed.get(increments.thread, 0))
                yield from increments.increments[first:end]
                passed[increments.thread] = max(first, end)


def _order_statistic(increments: list[Increment], needed: int) -> Array:
    """Return, for each thread, the smallest time that increments of so many units know at most."""
    clocks = np.array([increment.clock for increment in increments])
    amounts = np.array([increment.amount for increment in increments])
    if (amounts == amounts[0]).all():  # steps of a ring: a partial sort is enough
        at = -(-needed // int(amounts[0])) - 1
        return np.partition(clocks, at, axis=0)[at]
    order = np.argsort(clocks, axis=0)
    reached = np.cumsum(amounts[order], axis=0) >= needed
    first = reached.argmax(axis=0)[np.newaxis]
    return np.take_along_axis(clocks, np.take_along_axis(order, first, 0), 0)[0]


def amount_of(spans: Spans) -> int:
    """Return how many units some increments add."""
    return sum(of_thread.totals[end] - of_thread.totals[start] for of_thread, start, end in spans)
