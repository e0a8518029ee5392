"""What semaphores are promised, and what a wait proves of it.

The promises of one thread come in order, and each knows at least what the one before it knew. So
which of them come after something is a question of where they begin to, and a wait costs as much as
there are threads that promise, whatever is open.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from pytest_pallas.simulator.concurrency.recording import Signalled, Started

if TYPE_CHECKING:
    from pytest_pallas.simulator.concurrency.transfers import Copy

Array = np.ndarray[Any, Any]

#: What several threads promise: of each, from the first number to before the last.
Rivals = tuple[tuple["ThreadPromises", int, int], ...]


@dataclass(slots=True, eq=False)
class Promise:
    """What a semaphore gets: a copy's bytes, or a signal.

    Attributes:
      thread: who promised it.
      amount: how much it is.
      clock: of that thread when it did.
      event: the signal, or the start of the copy.
      copy: the copy, or None.
      done: whether a wait proved the copy to be done.
      known: to how many threads a wait proved that it was begun.
      closed: number of the wait since which there is nothing more to be proved of it, or None.
    """

    thread: int
    amount: int
    clock: Array
    event: Started | Signalled
    copy: Copy | None = None
    done: bool = False
    known: int = 0
    closed: int | None = None

    def close(self, waiters: int, number: int) -> None:
        """Close it if a wait proved the last of it: it is begun, to all waiters, and done."""
        if self.known == waiters and (self.done or self.copy is None):
            self.closed = number


@dataclass(slots=True, eq=False)
class ThreadPromises:
    """What one thread promises a semaphore, in its order.

    Attributes:
      thread: its number.
      promises: so far.
      totals: amounts of the first promises, by how many these are.
      orders: of each, how many events came before it.
      known: for each thread that waits, of how many promises it knows that they were begun.
    """

    thread: int
    promises: list[Promise] = field(default_factory=list[Promise])
    totals: list[int] = field(default_factory=lambda: [0])
    orders: list[int] = field(default_factory=list[int])
    known: dict[int, int] = field(default_factory=dict[int, int])

    def add(self, promise: Promise, order: int) -> None:
        """The thread makes another promise."""
        self.promises.append(promise)
        self.totals.append(self.totals[-1] + promise.amount)
        self.orders.append(order)

    def unaware(self, thread: int, time: int, start: int, end: int | None = None) -> int:
        """The number of the first promise, from ``start`` on, that knows a thread at a time."""
        return bisect_left(self.promises, time, start, end, key=lambda each: each.clock[thread])

    def after(self, promise: Promise, start: int, end: int) -> int:
        """The sum of what is promised after another promise, from a number to before another."""
        thread = promise.thread
        first = self.unaware(thread, int(promise.clock[thread]), start, end)
        return self.totals[end] - self.totals[first]


@dataclass(slots=True, eq=False)
class SemaphoreHistory:
    """A semaphore while the events are gone through.

    Attributes:
      promised: by all promises so far.
      taken: by all waits so far.
      lines: the promises, by thread.
      copies: those that no wait proved to be done.
      waits: for each thread that waited, the times and numbers of its waits, in order.
    """

    promised: int = 0
    taken: int = 0
    lines: dict[int, ThreadPromises] = field(default_factory=dict[int, ThreadPromises])
    copies: list[Promise] = field(default_factory=list[Promise])
    waits: dict[int, tuple[list[int], list[int]]] = field(default_factory=dict[int, Any])

    def promise(self, promise: Promise, order: int) -> None:
        """A thread promises something.

        Args:
          promise: what.
          order: how many events came before.
        """
        self.promised += promise.amount
        line = self.lines.get(promise.thread)
        if line is None:
            line = self.lines[promise.thread] = ThreadPromises(promise.thread)
        line.add(promise, order)
        if promise.copy is not None:
            self.copies.append(promise)

    def begun(self, thread: int, given: int, taken: int, rivals: Rivals) -> Iterator[Promise]:
        """The promises of which a wait proves, and none before proved to its thread, that they are.

        Args:
          thread: that waits.
          given: all that the semaphore can have been given, whatever happens first.
          taken: what waits have taken, with this one.
          rivals: what may be promised before the wait, and came later in this run.
        """
        for line in self.lines.values():
            at = line.known.get(thread, 0)
            # What a thread promises later is not begun if this is not.
            while at < len(line.promises):
                promise = line.promises[at]
                if not self._is_begun(promise, at, given, taken, rivals):
                    break
                at += 1
                yield promise
            line.known[thread] = at

    def _is_begun(self, promise: Promise, at: int, given: int, taken: int, rivals: Rivals) -> bool:
        """Whether a wait could not be satisfied without a promise, and what follows from it."""
        others = given - promise.amount
        if others < taken:
            return True
        for line in self.lines.values():
            start = at + 1 if line.thread == promise.thread else 0
            others -= line.after(promise, start, len(line.promises))
            if others < taken:
                return True
        for line, start, end in rivals:
            others -= line.after(promise, start, end)
        return others < taken

    def rivals(self) -> Iterator[tuple[int, Rivals]]:
        """For the number of a wait, what was promised later that it could have taken.

        That is what comes later and does not know of the wait.
        """
        for thread, (times, numbers) in self.waits.items():
            for time, number in zip(times, numbers, strict=True):
                spans: list[tuple[ThreadPromises, int, int]] = []
                for line in self.lines.values():
                    if line.orders[-1] > number:
                        start = bisect_left(line.orders, number)
                        end = line.unaware(thread, time, start)
                        if end > start:
                            spans.append((line, start, end))
                if spans:
                    yield number, tuple(spans)

    def left(self, number: int) -> Iterator[Promise]:
        """What was promised before a wait, and of which more was to be proved after it."""
        for line in self.lines.values():
            for promise in line.promises[: bisect_left(line.orders, number)]:
                if promise.closed is None or promise.closed > number:
                    yield promise


def amount_of(rivals: Rivals) -> int:
    """The sum of some promises."""
    return sum(line.totals[end] - line.totals[start] for line, start, end in rivals)


def size_of(rivals: Rivals) -> int:
    """How many promises these are."""
    return sum(end - start for _, start, end in rivals)
