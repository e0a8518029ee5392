"""The scheduler: runs the devices and cores of a run as greenlets, one at a time.

A task runs until it waits for something (``block``) or lets others go on (``pause``,
``give_way``). In the plain order (seed 0), the scheduler resumes the task that has been ready for
longest. With another seed it chooses any of the ready tasks, and ``pause`` sometimes preempts the
running one. The choices are those of the machine, so equal seeds give equal orders.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from pallas_sim.choices import Choices
from pallas_sim.errors import DeadlockError
from pallas_sim.findings import Wait
from pallas_sim.tracing import collecting_later

#: With a seed, the share of calls of ``pause`` that preempt the running task. If all did, a core
#: would hardly ever be far ahead of another; if few did, seeds would give similar orders.
_PREEMPTED = 0.25


@dataclass(eq=False)
class Task:
    """One thread of execution under the scheduler.

    Attributes:
      thread: the device or core, a ``machine.Thread``; the scheduler only passes it on.
      green: the greenlet that evaluates its program.
      parent: the task that started it and waits for it; None if the outermost ``run`` did.
      result: what its program returned.
      done: whether it has ended.
      error: what it raised, or None.
      blocked: returns what it waits for, for the report of a deadlock; None while it can go on,
        and while it waits for children.
      children: how many of the tasks that it started have not ended.
      ended: the threads of those that have, while others have not.
    """

    thread: Any
    green: Any = None
    parent: Task | None = None
    result: Any = None
    done: bool = False
    error: BaseException | None = None
    blocked: Callable[[], Wait] | None = None
    children: int = 0
    ended: list[Any] = field(default_factory=list)


@dataclass(eq=False)
class Scheduler:
    """Decides which device or core goes on.

    Attributes:
      choices: which task goes on.
      deadlock: reports a deadlock and returns the error to raise. Its arguments are the first
        blocked thread, what each blocked thread waits for, and the threads that have ended.
      ready: the tasks that can go on, in the order in which they became ready.
      tasks: the tasks that have not ended, by greenlet.
      root: the greenlet of the loop, to which tasks switch back; None while nothing is scheduled.
      idle: functions that are called when no task is ready; each returns whether it woke one.
    """

    choices: Choices
    deadlock: Callable[[Any, tuple[Wait, ...], Sequence[Any]], DeadlockError]
    ready: deque[Task] = field(default_factory=deque)
    tasks: dict[Any, Task] = field(default_factory=dict)
    root: Any = None
    idle: list[Callable[[], bool]] = field(default_factory=list)

    def run(self, threads: Sequence[Any], work: Callable[[Any], Any]) -> list[Any]:
        """Run ``work`` for every thread, at the same time, and return their results.

        Raises:
          DeadlockError: every task is blocked.
          Exception: the error of the first task that raised; the other tasks are ended.
        """
        # Runs nest: a task for a device runs the cores of a kernel. One loop schedules the tasks of
        # all runs, so that cores of two devices interleave, and none waits for a whole device.
        parent = self.tasks.get(getcurrent())
        tasks = [Task(thread, parent=parent) for thread in threads]
        outermost = self.root is None
        if outermost:
            self.root = getcurrent()
        for task in tasks:
            # The parent of the greenlet is the loop, not the task that starts it: a greenlet that
            # ends returns to its parent, and the loop must choose the next task.
            task.green = greenlet(self._body(task, work), parent=self.root)
            self.tasks[task.green] = task
            self.ready.append(task)
        if outermost:
            try:
                with collecting_later():
                    self._loop(tasks)
                self.choices.finish()
            finally:
                self._end()
        elif parent is not None:
            # The parent is neither ready nor blocked until its last child ends (``_loop``). So a
            # deadlock names what the children wait for, and not the parent.
            parent.children, parent.ended = len(tasks), []
            parent.blocked = None
            self.root.switch()
        return [task.result for task in tasks]

    def block(self, blocked: Callable[[], Wait]) -> bool:
        """Let the others go on until one of them wakes this task.

        Args:
          blocked: returns what the task waits for, for the report of a deadlock.

        Returns:
          Whether the task waited; False if nothing is scheduled, so that no task could wake it.
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
        # Where every order is explored, a task may wait for several things.
        if not (self.choices.explores and task in self.ready):
            self.ready.append(task)

    def pause(self) -> None:
        """Let another task go on at random; never in the plain order."""
        if self.choices.explores:
            self.stop()
        elif self.ready and self.choices.chance(_PREEMPTED):
            self.give_way()

    def stop(self) -> None:
        """Let whatever can happen come first, copies too; only where every order is explored."""
        task = self.current
        if task is not None and self.choices.explores:
            self.ready.appendleft(task)  # first: the plain choice goes on
            self.root.switch()

    def give_way(self, thing: Any = None) -> None:
        """Let all others that are ready go on first.

        Args:
          thing: what the running task is about to look at.
        """
        task = self.current
        if task is not None and self.choices.explores:
            self.choices.defer(task.thread, thing)
        if task is not None and (self.ready or self.choices.explores):
            self.ready.append(task)
            self.root.switch()

    @property
    def current(self) -> Task | None:
        """The running task; None if nothing is scheduled."""
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
                # ``switch`` would raise it in the loop, which would not see ``done`` and ``error``
                # of the task.
                task.error = error
            finally:
                task.done = True

        return body

    def _loop(self, tasks: Sequence[Task]) -> None:
        while not all(task.done for task in tasks):
            # On a GPU, a block may still be able to begin, or a program to look at memory again. If
            # that wakes nobody either, the blocked tasks wait forever.
            task = self.choices.next_task(self.ready)
            if task is None and any(wakes() for wakes in self.idle):
                continue
            if task is None:
                blocked = [task for task in self.tasks.values() if task.blocked is not None]
                waits = tuple(task.blocked() for task in blocked if task.blocked is not None)
                # A deadlock names these, too: they may have ended without a signal they owed.
                ended = [task.thread for task in tasks if task.done]
                ended += [thread for task in self.tasks.values() for thread in task.ended]
                raise self.deadlock(blocked[0].thread, waits, ended)
            task.green.switch()
            if task.error is not None:
                raise task.error
            if task.done:
                del self.tasks[task.green]
                parent = task.parent
                if parent is not None:
                    parent.children -= 1
                    parent.ended.append(task.thread)
                    if not parent.children:
                        parent.ended.clear()
                        self.ready.append(parent)

    def _end(self) -> None:
        """End the tasks that have not ended, so that their cleanup runs.

        An error of one task ends the run while others are suspended. Their ``finally`` clauses must
        restore what they changed: grids, axes, kernels.
        """
        # Forget the tasks first: cleanup that wakes or blocks a task must find nothing scheduled.
        tasks, self.tasks = list(self.tasks.values()), {}
        self.ready.clear()
        self.root = None
        for task in tasks:
            if task.green and not task.green.dead:
                task.green.throw(GreenletExit)


def one_thread() -> AbstractContextManager[Any]:
    """Let numpy's products use one thread in this context.

    OpenBLAS waits for its threads in busy loops. With tests on all cores (``pytest -n``), a
    product of 256 x 256 matrices took 49 ms in two threads and 0.9 ms in one (OpenBLAS 0.3.34, two
    cores).
    """
    return _libraries().limit(limits=1)


@functools.cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")
