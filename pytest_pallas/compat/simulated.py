"""Private names of JAX: the cores, memories and semaphores that the TPU interpreter simulates.

Seen in JAX 0.11.2 and 0.12.0.1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol


@dataclass(frozen=True)
class Operation:
    """One operation of a simulated core.

    Attributes:
      name: of the primitive; ``_barrier`` or ``_clean_up_shared_memory``, at which every device
        waits for all others: before and after the kernel; or ``_core_ended`` of one of several
        cores of a device.
      device: number of the device.
      core: number of the core on that device.
      place: ``file:line (function)`` of the kernel, or "".
      point: coordinates of the program in the grid; empty without a grid.
      semaphore: the semaphore's number, or None; of a DMA that which the receiver waits for.
      sends: of a DMA to another device, the semaphore that the sender waits for; else None.
      amount: by how much a signal or wait changes it (DMAs count bytes).
      target: device and core whose memory or semaphore is reached, or None for the core's own.
    """

    name: str
    device: int
    core: int
    place: str = ""
    point: tuple[int, ...] = ()
    semaphore: int | None = None
    sends: int | None = None
    amount: int | None = None
    target: tuple[int, int] | None = None


class Watch(Protocol):
    """Who is told. Called by several threads at once.

    Attributes:
      races: whether the interpreter looks for races, whatever it was traced with.
      dma: when it executes DMAs: ``"eager"`` or ``"on_wait"``; likewise.
      forgets: whether the window of an output's block is forgotten once that is copied to HBM, as
        on a TPU, whose pipeline goes on with another buffer: the next block then begins with memory
        that nobody has written, and not with the block before.
    """

    races: bool
    dma: str
    forgets: bool

    def begins(self, memory: Memory, operation: Operation) -> None:
        """An operation is about to be executed."""
        ...

    def ends(self, memory: Memory, operation: Operation) -> None:
        """An operation has been executed; after one that raised, this is not called."""
        ...

    def closes(self, memory: Memory) -> None:
        """Every device is at the end of its kernel, whose memory goes away."""
        ...


@dataclass(frozen=True)
class Left:
    """A semaphore that is not as it was when the kernel began, or has DMAs that nobody waits for.

    Attributes:
      semaphore: its number.
      device: whose counter it is.
      core: likewise.
      count: its value.
      pending: ``(place, point, half)`` of each DMA that no wait has executed; ``half`` is
        ``"send"``, ``"receive"`` or, for a DMA with one semaphore, "".
    """

    semaphore: int
    device: int
    core: int
    count: int
    pending: tuple[tuple[str, tuple[int, ...], str], ...] = ()


@dataclass
class Memory:
    """The memory of all simulated devices, while one kernel runs.

    Attributes:
      shared: the interpreter's own object.
      kernel: name of the kernel.
      semaphores: names of semaphores, by number.
      buffers: names of buffers, by memory space and number.
      points: where in the grid each core is, by device and core.
      entered: whether all devices waited for each other before the kernel began.
      shown: block windows of outputs that were copied to HBM last, by device and core.
    """

    shared: Any
    kernel: str = ""
    semaphores: dict[int, str] = field(default_factory=dict[int, str])
    buffers: dict[tuple[str, int], str] = field(default_factory=dict[tuple[str, int], str])
    points: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict[Any, Any])
    entered: bool = False
    shown: dict[tuple[int, int], Any] = field(default_factory=dict[tuple[int, int], Any])

    #: DMAs have numbers from here on, devices below.
    first_dma: ClassVar[int] = 100

    @property
    def cores(self) -> int:
        """How many cores there are, on all devices."""
        return self.shared.num_cores

    @property
    def cores_per_device(self) -> int:
        """How many of them a device has."""
        return self.shared.num_cores_per_device

    def value(self, semaphore: int, device: int, core: int) -> int:
        """The value of a semaphore on a core."""
        found = self._semaphore(semaphore)
        return int(found.count_by_core[self.shared.get_global_core_id(device, core)])

    def is_stuck(self, operation: Operation) -> bool:
        """Whether a wait cannot end unless somebody signals."""
        if operation.semaphore is None:
            return True
        found = self._semaphore(operation.semaphore)
        place = self.shared.get_global_core_id(operation.device, operation.core)
        with found.cv:
            return found.count_by_core[place] < (operation.amount or 0) and not found.tasks[place]

    def knows(self, operation: Operation, device: int, core: int) -> bool | None:
        """Whether what a core does now is after the begin of the kernel on another; None unknown.

        By the vector clocks, which only the race detector keeps.
        """
        if self.entered:
            return True
        if not self.shared.detect_races:
            return None
        clock = self.shared.clocks[operation.device, operation.core].clock
        return bool(clock[self.shared.thread_to_vc_position((device, core))] > 0)

    def is_barrier(self, semaphore: int) -> bool:
        """Whether a semaphore is one that exists before the kernel begins."""
        return semaphore in self.shared.fixed_id_sem

    def left(self) -> Iterator[Left]:
        """Semaphores that are not zero, or that somebody should have waited for."""
        every = {**self.shared.sem, **self.shared.fixed_id_sem}
        for number, found in sorted(every.items()):
            for place in range(self.shared.num_cores):
                device, core = self.shared.global_core_id_to_thread(place)
                pending = tuple(
                    _pending(task.__self__, number)
                    for task in found.tasks[place]
                    if hasattr(task, "__self__") and _is_due(task.__self__, number)
                )
                count = int(found.count_by_core[place])
                if count or pending:
                    yield Left(number, device, core, count, pending)

    def _semaphore(self, number: int) -> Any:
        fixed = self.shared.fixed_id_sem
        return fixed[number] if number in fixed else self.shared.sem[number]


def _is_due(dma: Any, semaphore: int) -> bool:
    """Whether a DMA has not done what a wait for this semaphore would make it do."""
    sends = dma.src_sem is not None and dma.src_sem.id == semaphore
    return dma.state.name == "STARTED" or (not sends and dma.state.name != "COMPLETED")


def _pending(dma: Any, semaphore: int) -> tuple[str, tuple[int, ...], str]:
    half = ""
    if dma.src_sem is not None:
        half = "send" if dma.src_sem.id == semaphore else "receive"
    placed = dma.source_info
    return getattr(placed, "place", ""), getattr(placed, "point", ()), half
