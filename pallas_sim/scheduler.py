"""How many threads numpy's products use while a call is simulated: one.

OpenBLAS waits for its threads in busy loops. Where tests run on all cores (``pytest -n``), a
product of 256 x 256 matrices took 49 ms in two threads and 0.9 ms in one (OpenBLAS 0.3.34, two
cores).
"""

from __future__ import annotations

import functools
import gc
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from greenlet import GreenletExit, getcurrent, greenlet

from pallas_sim.errors import DeadlockError
from pallas_sim.findings import Wait

if TYPE_CHECKING:
    from pallas_sim.machine import Machine, Thread


def one_thread() -> AbstractContextManager[Any]:
    """Products use one thread in this context."""
    return _libraries().limit(limits=1)


@functools.cache
def _libraries() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController().select(user_api="blas")


#: With a seed, the share of signals and copies at which another core goes on.
_PREEMPTED = 0.25


@dataclass(eq=False)
class Task:
    """One thread of execution under the scheduler.

    Attributes:
      thread: the device or core.
      green: the greenlet that evaluates its program.
      parent: the task that waits for it, or None for the one that the scheduler runs in.
      result: what its program gave.
      done: whether it has ended.
      error: what it raised, or None.
      blocked: says what it waits for, in the words of a deadlock; None while it can go on.
      children: how many tasks it waits for.
    """

    thread: Thread
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
      machine: of which it runs the threads.
      ready: the tasks that can go on, in the order in which they became ready.
      tasks: those that have not ended.
      root: the greenlet that it runs in; None while nothing is scheduled.
      idle: called when no task is ready; they return whether they have woken one.
    """

    machine: Machine
    ready: deque[Task] = field(default_factory=deque)
    tasks: dict[Any, Task] = field(default_factory=dict)
    root: Any = None
    idle: list[Callable[[], bool]] = field(default_factory=list)

    def run(self, threads: Sequence[Thread], work: Callable[[Thread], Any]) -> list[Any]:
        """Run ``work`` for every thread, at the same time, and give their results.

        Raises:
          DeadlockError: every core is blocked.
          Exception: what the first of them raised; the others are ended.
        """
        parent = self.tasks.get(getcurrent())
        tasks = [Task(thread, parent=parent) for thread in threads]
        outermost = self.root is None
        if outermost:
            self.root = getcurrent()
        for task in tasks:
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
        """With a seed: let another task go on, now and then."""
        machine = self.machine
        if self.ready and machine.seed and machine.random.random() < _PREEMPTED:
            task = self.current
            if task is not None:
                self.ready.append(task)
                self.root.switch()

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

    def _body(self, task: Task, work: Callable[[Thread], Any]) -> Callable[[], None]:
        def body() -> None:
            try:
                # A greenlet has a context of its own, and numpy keeps this setting there.
                with np.errstate(all="ignore"):
                    task.result = work(task.thread)
            except GreenletExit:
                raise
            except BaseException as error:
                task.error = error
            finally:
                task.done = True

        return body

    def _loop(self, tasks: Sequence[Task]) -> None:
        while not all(task.done for task in tasks):
            if not self.ready and not any(wake() for wake in self.idle):
                raise self._deadlock([task for task in tasks if task.done])
            task = self._next()
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

    def _next(self) -> Task:
        if self.machine.seed and len(self.ready) > 1:
            at = int(self.machine.random.integers(len(self.ready)))
            self.ready.rotate(-at)
        return self.ready.popleft()

    def _deadlock(self, ended: Sequence[Task]) -> DeadlockError:
        blocked = [task for task in self.tasks.values() if task.blocked is not None]
        waits = tuple(task.blocked() for task in blocked if task.blocked is not None)
        # A task that could have signalled, and has ended.
        waits += tuple(
            Wait(owner=task.thread.owner, on="", line="the end of the program") for task in ended
        )
        return deadlock(self.machine, blocked[0].thread, waits)

    def _end(self) -> None:
        """End what has not ended, so that its cleanup runs."""
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


def deadlock(machine: Machine, thread: Thread, waits: tuple[Wait, ...]) -> DeadlockError:
    """Report waits that never end, and give the error that ends the run.

    Args:
      machine: that reports.
      thread: one that waits.
      waits: of all that wait.
    """
    message = (
        "deadlock: every program and thread waits, and nothing is pending that could wake one"
        if machine.platform == "gpu"
        else "deadlock: every core is blocked and no signal or copy is pending"
    )
    facts: dict[str, Any] = {"ref": waits[0].on, "waits": waits, "seed": machine.seed}
    return DeadlockError.of(thread.report("deadlock", message, waits[0].line, **facts))
