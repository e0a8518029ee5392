"""``Choices``: decides whatever the hardware may do in any order, in one place.

Which thread goes on, whether a copy moves while a core computes, in what order programs begin: each
is a choice, a number below the count of its alternatives. Seed 0 takes the plain order, 0
everywhere; another seed draws, and the same one draws the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar

import numpy as np


def atomic_kind(operator: str, dtype: Any, *, used: bool) -> str:
    """Return what an atomic operation is to others on the same memory.

    Two of the same kind commute, unless it is ``"sum"``, of numbers that round, or ``"change"``.

    Args:
      operator: ``"add"``, ``"max"``, ``"xchg"`` or the like.
      dtype: of the memory.
      used: whether the old value is used.
    """
    if used or operator in ("xchg", "cas"):
        return "change"
    exact = np.dtype(dtype).kind in "iub" or operator in ("min", "max")
    return operator if exact else "sum"


@dataclass(frozen=True, eq=False)
class AwaitedElements:
    """Elements of memory, for which a loop may wait as for the count of a semaphore.

    Attributes:
      name: of the reference.
      memory: flat.
      numbers: of the elements in it.
      waiting: the tasks that wait for a change of the memory.
    """

    name: str
    memory: np.ndarray[Any, Any]
    numbers: np.ndarray[Any, Any]
    waiting: list[Any]

    @property
    def count(self) -> bytes:
        """Their values."""
        return self.memory[self.numbers].tobytes()


@dataclass(eq=False)
class Choices:
    """The choices of a run.

    Attributes:
      seed: decides them; 0 for the plain order.
      by_seed: whether there was an order that only a seed changes, and no exploration: of the
        programs of a grid, the rounds of a parallel loop, or the rows of a copy.
      matter: whether another order of the same program may do something else: several threads
        waited on a semaphore, or something looked at a count or changed memory in one step.
    """

    seed: int = 0
    by_seed: bool = field(default=False, init=False)
    matter: bool = field(default=False, init=False)

    #: Whether every order of what threads and copies do is to be had: see ``exploration``. Then
    #: threads stop before each operation on a semaphore, and copies move by choice only.
    explores: ClassVar[bool] = False

    #: Whether the order of accesses to memory is among the choices, too.
    memory: bool = field(default=False, init=False)

    def next_task(self, ready: deque[Any]) -> Any:
        """Take the task that goes on out of those that can; None if there is none."""
        if len(ready) > 1:
            # Rotate, do not shuffle: this takes one draw a turn, and keeps the order of the others.
            ready.rotate(-self.among(len(ready)))
        return ready.popleft() if ready else None

    def begin(self, jaxpr: Any) -> None:
        """Take note of the program that is about to run."""

    def complete(self) -> None:
        """Note that the program has ended."""

    def look(self, thread: Any, kind: str, target: Any, line: str = "") -> None:
        """Note an operation whose result depends on the order, and that no event records.

        Args:
          thread: who does it.
          kind: ``"look"`` at the count of a semaphore, ``"wait"`` where it does not suffice, or
            ``"change"``, which reads memory and writes it in one step.
          target: the semaphore, or the name of the memory.
          line: ``file:line``.
        """
        self.matter = self.matter or kind != "wait"

    def await_change(self, thread: Any, elements: AwaitedElements, line: str) -> None:
        """Let a loop wait before it looks at memory, if its rounds so far have only looked.

        Called only where every order is explored.

        Args:
          thread: whose loop.
          elements: what it is about to look at, or to change.
          line: ``file:line``.
        """

    def repeats(self, elements: AwaitedElements) -> bool:
        """Return whether a loop looks at memory again, and nothing has changed; asked as above."""
        del elements
        return False

    def operate(
        self, kind: str, name: Hashable, value: int, where: tuple[str, str] = ("", "")
    ) -> None:
        """Note an operation on something that is no semaphore.

        Args:
          kind: at a barrier of a GPU ``"arrive"`` in a phase, as the last one, too, which makes it
            ``"full"``, ``"end"`` it or ``"pass"`` it; ``"look"`` at anything else, or ``"change"``
            it.
          name: of the thing, the same in each run.
          value: the phase.
          where: its name in messages, and ``file:line``.
        """

    def operation_done(self, operation: Any, steps: int) -> None:
        """Note that the thread waited for so many steps of an operation of an engine."""

    def access(
        self,
        region: Any,
        atomic: str,
        where: tuple[str, str],
        *,
        writes: bool | None = None,
        awaited: AwaitedElements | None = None,
    ) -> None:
        """Note an access to memory, whose result depends on the order if it is atomic.

        Args:
          region: the memory.
          atomic: see ``atomic_kind``; ``"look"`` for one that changed nothing; "" for none, where
            the order of these is among the choices.
          where: name of the reference, and ``file:line``.
          writes: whether it writes; None if ``atomic`` says so.
          awaited: of a look: the elements, for which a loop may wait.
        """
        self.matter = self.matter or atomic in ("change", "look")

    def act(self) -> None:
        """Note that the thread that runs has changed memory, which may be no access otherwise."""

    def follow_waker(self) -> None:
        """Note that the current step comes after the one that let its blocked thread go on."""

    def name(self, thing: Any, where: Hashable) -> None:
        """Name an array or a barrier that is made, by where it is: the same in each run."""

    def enter_round(self, thread: Any, mark: Any, state: Callable[[], Hashable]) -> Any:
        """Note that a loop goes on; called only where every order is explored.

        Args:
          thread: whose loop.
          mark: what this gave for the round before; None for the first round.
          state: returns the bits that decide, with what the thread sees, what the loop does next.
        """

    def defer(self, thread: Any, thing: Any) -> None:
        """Note that a thread lets all others go on; called only where every order is explored.

        Args:
          thread: who does.
          thing: what it is about to look at: a semaphore, a barrier or ``AwaitedElements``.
        """

    def finish(self) -> None:
        """Note that all tasks have ended, and that what comes next comes after all they did."""

    @property
    def story(self) -> tuple[str, ...]:
        """The order in lines, from where it leaves the plain one; () where that is not known."""
        return ()

    @property
    def vary(self) -> bool:
        """Whether they may be others than those of the plain order."""
        return self.seed != 0

    def among(self, count: int) -> int:
        """Choose one of so many alternatives; the first one in the plain order."""
        return int(self._random.integers(count)) if self.seed else 0

    def chance(self, share: float) -> bool:
        """Choose whether something happens, in a share of all cases; never in the plain order."""
        return bool(self.seed) and self._random.random() < share

    def order(self, count: int) -> Sequence[int]:
        """Choose an order of so many things."""
        self.by_seed |= count > 1
        return self._random.permutation(count).tolist() if self.seed else range(count)

    def orders(self, counts: Sequence[int]) -> list[list[int]]:
        """Choose an order for each axis of a grid; not all plain but in the plain order.

        They are the same whenever a run asks for them: devices run a grid in the same order.
        """
        self.by_seed |= max(counts, default=0) > 1
        plain = chosen = [list(range(count)) for count in counts]
        random = np.random.Generator(np.random.Philox(self.seed))
        while chosen == plain and self.seed and max(counts, default=0) > 1:
            chosen = [random.permutation(count).tolist() for count in counts]
        return chosen

    def one_of(self, shares: Sequence[float]) -> float:
        """Return the share of a run, the same in all of it; runs differ by their seed."""
        return shares[self.seed % len(shares)] if self.seed else 0.0

    @cached_property
    def _random(self) -> Any:
        return np.random.Generator(np.random.Philox(self.seed))
