"""``Locks``: semaphores that several threads take from, and the accesses that they keep apart.

A mutex made of a semaphore orders two critical sections, and not which of them comes first. So no
clock knows it: in every order of the same events one of the two comes first, and which one differs.
It is proved by counting. Two accesses can happen at the same time only if there is a state of a run
in which both threads have come to them. Until then a semaphore was given no more than what its
threads had given: each of them between what is known to have happened before the accesses, and what
comes after one of them. If even the best of these states has taken more than it was given, there is
none. This is an invariant of places, as of Petri nets (Lautenbach 1975), cut by vector clocks.

Then the one that comes first has given back what the other one took, and the units that it gave
order them. On a GPU, JAX lowers a signal to ``red.release`` and a wait to ``atom.cas`` and
``fence.acquire``, and atomics that read and write continue what a release began: so a release of
one holder and the acquire of the next one synchronize, whoever gave in between (PTX ISA, "Memory
Consistency Model": "Release and Acquire Patterns", "Synchronizes-With", "Observation Order").
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from pallas_sim.dtypes import Array
from pallas_sim.order.semaphores import SemaphoreHistory, ThreadIncrements, ThreadWaits
from pallas_sim.recording import Semaphore, Signalled

#: Whether a thread that has a clock knows that an access is over.
type IsOver = Callable[[Array], bool]


@dataclass(frozen=True, slots=True)
class _Holder:
    """A thread that gives to a semaphore, or takes from it.

    Attributes:
      thread: its number.
      gives: what it gives, and when.
      times: of its times, those after which it gives.
      waits: what it takes, and when.
      left: what it has given by a time, less what it has taken: first 0, then after each time that
        it gives.
    """

    thread: int
    gives: ThreadIncrements
    times: tuple[int, ...]
    waits: ThreadWaits
    left: tuple[int, ...]

    @classmethod
    def of(cls, history: SemaphoreHistory, thread: int) -> _Holder:
        """Return the events of a thread on a semaphore."""
        gives = history.increments.get(thread) or ThreadIncrements(thread)
        waits = history.waits[thread] if thread in history.waits else ThreadWaits()
        times = tuple(int(one.clock[thread]) for one in gives.increments)
        given = accumulate(one.amount for one in gives.increments)
        left = (amount - waits.taken_at(time) for amount, time in zip(given, times, strict=True))
        return cls(thread, gives, times, waits, (0, *left))

    def most_left(self, time: int, is_over: IsOver, *, own: bool) -> int:
        """Return the most that it may have given, less what it has taken, while an access happens.

        Args:
          time: of the thread, which comes before the access; for the thread that makes the access,
            the time of that.
          is_over: of the access.
          own: whether it is the thread that makes the access.
        """
        begun = (bisect_left if own else bisect_right)(self.times, time)
        now = self.gives.totals[begun] - self.waits.taken_at(time)
        end = bisect_left(self.gives.increments, True, begun, key=lambda one: is_over(one.clock))
        return max((now, *self.left[begun + 1 : end + 1]))


@dataclass(frozen=True, slots=True)
class Locks:
    """The semaphores of a run that several threads take from.

    Attributes:
      locks: what is done to each.
      starts: where the numbers of each begin in the result of ``held``.
      initial: what each had before the first event.
    """

    locks: tuple[tuple[_Holder, ...], ...]
    starts: Array
    initial: Array

    @classmethod
    def of(cls, histories: Mapping[Semaphore, SemaphoreHistory]) -> Locks | None:
        """Return the locks among the semaphores of a run; None if there are none."""
        several = {
            semaphore: history
            for semaphore, history in histories.items()
            if sum(waits.totals[-1] > 0 for waits in history.waits.values()) > 1
        }
        if not several:
            return None
        locks = tuple(map(_holders, several.values()))
        starts = np.array([0, *accumulate(map(len, locks[:-1]))])
        return cls(locks, starts, np.array([_initial(*lock) for lock in several.items()]))

    def held(self, thread: int, clock: Array, is_over: IsOver) -> Array:
        """Return what each thread may have given at most, less what it has taken, to each lock.

        Args:
          thread: that makes the access.
          clock: of that thread then.
          is_over: of the access.

        Returns:
          An element for each holder of each lock, int64.
        """
        return np.array(
            [
                holder.most_left(int(clock[holder.thread]), is_over, own=holder.thread == thread)
                for lock in self.locks
                for holder in lock
            ]
        )

    def is_fenced(self, thread: int, fence: int, time: int) -> bool:
        """Return whether a thread took nothing from a lock between a fence and a time."""
        return all(
            holder.waits.taken_at(fence) == holder.waits.taken_at(time)
            for lock in self.locks
            for holder in lock
            if holder.thread == thread
        )

    def keep_apart(self, one: Array, other: Array) -> bool:
        """Return whether a lock keeps two accesses apart, by what is held during each."""
        both = np.add.reduceat(np.minimum(one, other), self.starts)
        return bool((self.initial + both < 0).any())


def _holders(history: SemaphoreHistory) -> tuple[_Holder, ...]:
    threads = dict.fromkeys((*history.increments, *history.waits))
    return tuple(_Holder.of(history, thread) for thread in threads)


def _initial(semaphore: Semaphore, history: SemaphoreHistory) -> int:
    """Return what a semaphore had before the first event: one that outlives kernels may have."""
    if not semaphore.lasting and semaphore.kind != "barrier":
        return 0
    given = sum(
        one.event.amount if isinstance(one.event, Signalled) else one.amount
        for one in history.all_increments()
    )
    taken = sum(waits.totals[-1] for waits in history.waits.values())
    return max(semaphore.promised - semaphore.taken - given + taken, 0)
