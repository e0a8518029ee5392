"""Programs of a grid on a GPU that wait for each other by what they see in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pytest_pallas.compat.jaxprs import open_jaxpr, sub_jaxprs
from pytest_pallas.devices.gpus import GPUS
from pytest_pallas.findings import Wait
from pytest_pallas.simulator.concurrency.scheduler import Task
from pytest_pallas.simulator.gpu.portable.blocks import SharedArray
from pytest_pallas.simulator.gpu.portable.order import GridProgram
from pytest_pallas.simulator.machine import Machine
from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.simulator.thread import Thread

#: How often all programs look again before it is a deadlock.
_ROUNDS = 100


#: Threads and blocks of threads that a multiprocessor can have ("Technical Specifications per
#: Compute Capability" in the CUDA C++ Programming Guide).
_THREADS = 2048
_RESIDENT = 32


#: Warps of a program, where the kernel does not say (``pallas_call_registration.py``).
_WARPS = 4


_Programs = Iterator[tuple[GridProgram, tuple[int, ...]]]


def may_wait(kernel: Any) -> bool:
    """Whether programs of a kernel may wait for each other: they look at memory in a loop.

    Args:
      kernel: the equation of a ``pallas_call``.
    """
    return _looks([kernel.params["jaxpr"]], inside=False)


def _looks(jaxprs: Iterable[Any], *, inside: bool) -> bool:
    for jaxpr in jaxprs:
        for eqn in open_jaxpr(jaxpr)[0].eqns:
            name = eqn.primitive.name
            if inside and name in ("atomic_rmw", "atomic_cas"):
                return True
            if inside and name == "masked_load" and eqn.params.get("is_volatile"):
                return True
            if _looks(sub_jaxprs(eqn), inside=inside or name == "while"):
                return True
    return False


@dataclass(eq=False)
class WaitingPrograms:
    """The programs of one grid that wait.

    Attributes:
      machine: the run.
      tasks: those that wait, and for which memory.
      rounds: how often all of them have looked again since something changed.
    """

    machine: Machine
    tasks: dict[Task, SharedArray] = field(default_factory=dict)
    rounds: int = 0

    def run(
        self,
        thread: Thread,
        programs: _Programs,
        work: Callable[[Thread, _Programs], None],
        warps: int | None,
    ) -> None:
        """Run programs at the same time, as many as the chip can have.

        Args:
          thread: the device.
          programs: in the order in which they begin.
          work: runs programs one after the other.
          warps: of a program, or None for the default.
        """
        begun = list(programs)
        each = min(_RESIDENT, _THREADS // (32 * (warps or _WARPS)))
        places = min(len(begun), each * GPUS[self.machine.target].cores)
        # A program that ends makes place for the next one.
        shared = iter(begun)
        cores = [thread.child(thread.owner) for _ in range(places)]
        scheduler = self.machine.scheduler
        scheduler.idle.append(self.look_again)
        try:
            scheduler.run(cores, lambda core: work(core, shared))
        finally:
            scheduler.idle.remove(self.look_again)

    def changed(self, memory: SharedArray) -> None:
        """A program changed some memory: those that wait for it look again."""
        self.rounds = 0
        for task in [task for task, each_memory in self.tasks.items() if each_memory is memory]:
            del self.tasks[task]
            self.machine.scheduler.wake(task)
        self.machine.scheduler.pause()

    def looked(self, thread: Thread, ref: Ref, seen: tuple[str, bytes, bytes]) -> None:
        """A program looked at memory that others change, and changed nothing.

        Args:
          thread: that runs it.
          ref: of the memory.
          seen: ``file:line``, where it looked, and what was there.
        """
        program: GridProgram = ref.block.program
        before, program.last = program.last, seen
        scheduler = self.machine.scheduler
        task = scheduler.current
        if before != seen or task is None:
            scheduler.pause()
            return
        self.tasks[task] = ref.block.memory

        def blocked() -> Wait:
            return Wait(owner=thread.owner, on=ref.name, line=seen[0], program=program.point)

        scheduler.block(blocked)

    def look_again(self) -> bool:
        """Let all programs that wait go on, unless they did so too often; whether they do."""
        if not self.tasks or self.rounds >= _ROUNDS:
            return False
        self.rounds += 1
        tasks = list(self.tasks)
        self.tasks.clear()
        for task in tasks:
            self.machine.scheduler.wake(task)
        return True
