"""The scheduler: runs the devices and cores of a run as greenlets, one at a time.

A thread runs until it waits for something (``block``) or lets others go on (``pause``,
``give_way``). In the plain order (seed 0) the task goes on that has been ready for longest; with
another seed any ready one does, and a thread may lose its turn wherever a chip's core could. What
is drawn comes from the generator of the machine, so a seed gives the same order again.
"""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from pallas_sim.errors import DeadlockError
from pallas_sim.findings import Wait

#: With a seed, the share of signals and copies at which another core goes on. At each one, a core
#: would hardly ever be far ahead of another; at few, orders would differ little between seeds.
_PREEMPTED = 0.25


@dataclass(eq=False)
class Task:
    """One thread of execution under the scheduler.

    Attributes:
      thread: the device or core: a ``machine.Thread``, of which nothing is used here.
      green: the greenlet that evaluates its program.
      parent: the task that waits for it, or None for the one that the scheduler runs in.
      result: what its program gave.
      done: whether it has ended.
      error: what it raised, or None.
      blocked: says what it waits for, in the words of a deadlock; None while it can go on.
      children: how many tasks it waits for.
    """

    thread: Any
    green: Any = None
    parent: Task | None = None
    result: Any = None
    done: bool = False
    error: BaseException | None = None
    blocked: Callable[[], Wait] | None = None
    children: int = 0


@dataclass(eq=False)
class Scheduler:
    """Decides which device or core goes on.

    Attributes:
      random: draws which task goes on; None for the plain order.
      deadlock: reports a deadlock, of the first blocked thread, what all wait for, and the threads
        that have ended, and gives the error.
      ready: the tasks that can go on, in the order in which they became ready.
      tasks: those that have not ended.
      root: the greenlet that it runs in; None while nothing is scheduled.
      idle: called when no task is ready; they return whether they have woken one.
    """

    random: np.random.Generator | None
    deadlock: Callable[[Any, tuple[Wait, ...], Sequence[Any]], DeadlockError]
    ready: deque[Task] = field(default_factory=deque)
    tasks: dict[Any, Task] = field(default_factory=dict)
    root: Any = None
    idle: list[Callable[[], bool]] = field(default_factory=list)

    def run(self, threads: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        """Run ``work`` for every thread, at the same time, and give their results.

        Raises:
          DeadlockError: every core is blocked.
          Exception: what the first of them raised; the others are ended.
        """
        # A mesh inside of a mesh: a device runs the cores of a kernel. All of them are tasks of one
        # loop, so that cores of two devices interleave, and none waits for a whole device.
        parent = self.tasks.get(getcurrent())
        tasks = [Task(thread, parent=parent) for thread in threads]
        outermost = self.root is None
        if outermost:
            self.root = getcurrent()
        for task in tasks:
            # Its parent is the loop, and not the task that starts it: there it continues when the
            # task ends, and the loop decides who is next.
            task.green = greenlet(self._body(task, work), parent=self.root)
            self.tasks[task.green] = task
            self.ready.append(task)
        if outermost:
            try:
                with collecting_later():
                    self._loop(tasks)
            finally:
                self._end()
        elif parent is not None:
            # It is neither ready nor blocked until its last child ends (``_loop``). A deadlock
            # names what its children wait for, and not the parent.
            parent.children = len(tasks)
            parent.blocked = None
            self.root.switch()
        return [task.result for task in tasks]

    def block(self, blocked: Callable[[], Wait]) -> bool:
        """Let the others go on until one of them wakes this task.

        Args:
          blocked: says what the task waits for, for the report of a deadlock.

        Returns:
          False where nothing is scheduled: no other task could wake it.
        """
        task = self.current
        if task is None:
            return False
        task.blocked = blocked
        self.root.switch()
        task.blocked = None
        return True

    def wake(self, task: Task) -> None:
        """Let a blocked task go on."""
        self.ready.append(task)

    def pause(self) -> None:
        """Let another task go on now and then, with a seed."""
        if self.ready and self.random is not None and self.random.random() < _PREEMPTED:
            self.give_way()

    def give_way(self) -> None:
        """Let all others that are ready go on first."""
        task = self.current
        if task is not None and self.ready:
            self.ready.append(task)
            self.root.switch()

    @property
    def current(self) -> Task | None:
        """The task that runs."""
        return self.tasks.get(getcurrent()) if self.root is not None else None

    def _body(self, task: Task, work: Callable[[Any], Any]) -> Callable[[], None]:
        def body() -> None:
            try:
                # A greenlet has a context of its own, and numpy keeps this setting there.
                with np.errstate(all="ignore"):
                    task.result = work(task.thread)
            except GreenletExit:
                raise
            except BaseException as error:
                # Raised here, it would come out of ``switch`` in the loop without its task.
                task.error = error
            finally:
                task.done = True

        return body

    def _loop(self, tasks: Sequence[Task]) -> None:
        while not all(task.done for task in tasks):
            # Nobody is ready. Engines of a GPU may still have something to do that wakes a thread:
            # only if they have not, all who wait do so for ever.
            if not self.ready and not any(wake() for wake in self.idle):
                blocked = [task for task in self.tasks.values() if task.blocked is not None]
                waits = tuple(task.blocked() for task in blocked if task.blocked is not None)
                # A task that could have signalled, and has ended.
                ended = [task.thread for task in tasks if task.done]
                raise self.deadlock(blocked[0].thread, waits, ended)
            # Rotated and not shuffled: one draw a turn, and the order of the others is kept.
            if self.random is not None and len(self.ready) > 1:
                self.ready.rotate(-int(self.random.integers(len(self.ready))))
            task = self.ready.popleft()
            task.green.switch()
            if task.error is not None:
                raise task.error
            if task.done:
                del self.tasks[task.green]
                parent = task.parent
                if parent is not None:
                    parent.children -= 1
                    if not parent.children:
                        self.ready.append(parent)

    def _end(self) -> None:
        """End what has not ended, so that its cleanup runs.

        An error of one task ends the run in the middle of all others, whose ``finally`` clauses
        restore what they changed: grids, axes, kernels.
        """
        # Empty before that: cleanup that wakes or blocks somebody must find nothing scheduled.
        tasks, self.tasks = list(self.tasks.values()), {}
        self.ready.clear()
        self.root = None
        for task in tasks:
            if task.green and not task.green.dead:
                task.green.throw(GreenletExit)


@contextmanager
def collecting_later() -> Generator[None]:
    """Do not look for garbage in this context.

    A run of many devices keeps what it records, and Python would go through all of it again and
    again: half of the time of a ring of 256 devices.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def one_thread() -> AbstractContextManager[Any]:
    """Let numpy's products use one thread in this context.

    OpenBLAS waits for its threads in busy loops. Where tests run on all cores (``pytest -n``), a
    product of 256 x 256 matrices took 49 ms in two threads and 0.9 ms in one (OpenBLAS 0.3.34, two
    cores).
    """
    return _libraries().limit(limits=1)


@functools.cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
