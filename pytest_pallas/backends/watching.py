"""What the cores of a simulated TPU leave behind, whom they reach too early, what they wait for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytest_pallas import compat
from pytest_pallas.findings import Access, Finding, Owner, Wait

#: How many devices that are reached too early are kept.
_KEPT = 4

#: The name of the semaphore that exists before the kernel begins, as a kernel gets it.
_BARRIER = "get_barrier_semaphore()"

#: How long a slow device does nothing before each of its operations, in seconds.
_PAUSE = 0.002


@dataclass
class Watch:
    """Told by the TPU interpreter what its cores do; see ``compat.Watch``.

    Attributes:
      races: whether to look for races.
      dma: when DMAs are executed; see ``Schedule``.
      slow: the device that is slower than the others, or None.
      forgets: see ``compat.Watch``.
      leftovers: what kernels left behind: DMAs without a wait, semaphores that are not 0.
      early: memory of devices that was reached before they were known to be in the kernel.
    """

    races: bool = False
    dma: str = "on_wait"
    slow: int | None = None
    forgets: bool = False
    leftovers: list[Finding] = field(default_factory=list[Finding])
    early: list[Finding] = field(default_factory=list[Finding])
    _waiting: dict[tuple[int, int], compat.Operation] = field(default_factory=dict)
    _memory: compat.Memory | None = None
    _progress: int = 0
    _started: dict[int | None, list[str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begins(self, memory: compat.Memory, operation: compat.Operation) -> None:
        """An operation is about to be executed."""
        with self._lock:
            self._progress += 1
            if self._memory is not memory:
                self._memory = memory
                self._started.clear()
            if operation.name == "_clean_up_shared_memory":  # its cores have ended, all of them
                for core in [each for each in self._waiting if each[0] == operation.device]:
                    del self._waiting[core]
            if operation.name in _WAITS:
                self._waiting[operation.device, operation.core] = operation
            if operation.name == "dma_start":
                for semaphore in {operation.semaphore, operation.sends} - {None}:
                    places = self._started.setdefault(semaphore, [])
                    if (where := _where(operation.place, operation.point)) not in places:
                        places.append(where)
        self._reaches(memory, operation)
        if operation.device == self.slow:
            time.sleep(_PAUSE)

    def ends(self, memory: compat.Memory, operation: compat.Operation) -> None:
        """An operation has been executed."""
        del memory
        with self._lock:
            self._progress += 1
            self._waiting.pop((operation.device, operation.core), None)

    def closes(self, memory: compat.Memory) -> None:
        """Every device is at the end of the kernel: what is not as it was?"""
        with self._lock:
            self.leftovers += _merged(_leftovers(memory, self._started))

    @property
    def progress(self) -> int:
        """A number that changes with every operation."""
        return self._progress

    @property
    def findings(self) -> list[Finding]:
        """Everything that no kernel should do, worst first."""
        return [*self.early, *self.leftovers]

    @property
    def kernel(self) -> str:
        """Name of the last kernel that ran, or ""."""
        return "" if self._memory is None else self._memory.kernel

    def deadlock(self) -> Finding | None:
        """Who waits for what, if every core waits and nobody is left to signal."""
        with self._lock:
            memory, waiting = self._memory, sorted(self._waiting.items())
        if memory is None:
            return None
        operations = [operation for _, operation in waiting]
        each = memory.cores_per_device
        if sum(each if op.name in _FOR_ALL else 1 for op in operations) < memory.cores:
            return None
        if not all(memory.is_stuck(operation) for operation in operations):
            return None
        if all(operation.semaphore is None for operation in operations):
            return None
        return Finding(
            kind="deadlock",
            message="deadlock: every core is blocked and no signal or copy is pending",
            kernel=memory.kernel,
            waits=tuple(_wait(memory, operation) for operation in operations),
        )

    def missing(self) -> Finding | None:
        """Who waits for which devices to begin the kernel; None if all have."""
        with self._lock:
            memory = self._memory
            waiting = [operation for _, operation in sorted(self._waiting.items())]
        begun = {operation.device for operation in waiting}
        if memory is None or not all(operation.name == "_barrier" for operation in waiting):
            return None
        others = sorted(set(range(memory.cores // memory.cores_per_device)) - begun)
        if not begun or not others:
            return None
        return Finding(
            kind="deadlock",
            message=(
                f"devices {_listed(sorted(begun))} wait for devices {_listed(others)} to begin "
                "the kernel: this interpreter begins a kernel on all devices of the mesh together. "
                "Do all of them call it, or is it under jax.lax.cond or switch?"
            ),
            waits=tuple(_wait(memory, operation) for operation in waiting),
        )

    def _reaches(self, memory: compat.Memory, operation: compat.Operation) -> None:
        """A DMA to another device, or a signal of its semaphore, before it is in the kernel."""
        target = operation.target
        if target is None or target[0] == operation.device or operation.semaphore is None:
            return
        if operation.name == "semaphore_signal" and memory.is_barrier(operation.semaphore):
            return
        if memory.knows(operation, *target) is False:
            copies = operation.name == "dma_start"
            name = "" if copies else _semaphore(memory, operation.semaphore)
            owner, device = _core(memory, operation.device, operation.core), target[0]
            does = (
                f"copies to device {device}" if copies else f"signals `{name}` of device {device}"
            )
            found = Finding(
                kind="entry",
                message=(
                    f"{owner} {does}, which may not have entered the kernel (let them wait for "
                    "each other before, by pltpu.get_barrier_semaphore())"
                ),
                kernel=memory.kernel,
                ref=name,
                accesses=(
                    Access(
                        kind="write",
                        ref=name,
                        owner=owner,
                        home=device,
                        line=operation.place,
                        program=operation.point,
                        copy=copies,
                    ),
                ),
            )
            with self._lock:
                if len(self.early) < _KEPT:
                    self.early.append(found)


def race(kernel: str, accesses: tuple[Access, Access]) -> Finding:
    """The finding of two accesses that an interpreter found to be unordered."""
    return Finding(
        kind="race",
        message=f"race on {accesses[0].ref or 'memory'}: nothing orders two accesses",
        kernel=kernel,
        ref=accesses[0].ref,
        accesses=accesses,
    )


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


#: Where all cores of a device wait as one.
_FOR_ALL = frozenset({"_barrier", "_clean_up_shared_memory"})

#: What a core may wait in for ever, and its end.
_WAITS = _FOR_ALL | {"dma_wait", "semaphore_wait", "_core_ended"}


def _merged(found: Iterable[Finding]) -> list[Finding]:
    """Each finding once, with everyone of whom it is true."""
    owners: dict[Finding, list[Owner]] = {}
    for finding in found:
        owners.setdefault(replace(finding, owners=()), []).extend(finding.owners)
    return [replace(finding, owners=tuple(every)) for finding, every in owners.items()]


def _leftovers(memory: compat.Memory, started: dict[int | None, list[str]]) -> Iterator[Finding]:
    """What each core is left with."""
    for left in memory.left():
        name = _semaphore(memory, left.semaphore)
        owner = _core(memory, left.device, left.core)
        places = started.get(left.semaphore, [])
        for place, point, half in left.pending:
            side = f" on its {half} side" if half else ""
            shared = ", shared with other copies" if len(places) > 1 else ""
            yield Finding(
                kind="unwaited",
                message=f"a copy has no wait(){side} (semaphore `{name}`{shared})",
                kernel=memory.kernel,
                program=point,
                line=place,
                ref=name,
                owners=(owner,),
            )
        if left.count and not left.pending:
            yield Finding(
                kind="leftover",
                message=_leftover(name, left.count, places),
                kernel=memory.kernel,
                ref=name,
                owners=(owner,),
            )


def _leftover(name: str, count: int, places: Sequence[str]) -> str:
    """That a semaphore is not 0, and why."""
    text = f"semaphore `{name}` is {count} and not 0 when the kernel ends: "
    if not places:
        return text + "it was signalled more often than waited for"
    shown = ", ".join(places[:_KEPT])
    return text + f"a copy that was started at {shown} has no wait(), or one of another size"


def _wait(memory: compat.Memory, operation: compat.Operation) -> Wait:
    owner = _core(memory, operation.device, operation.core)
    if operation.semaphore is None:
        if operation.name == "_barrier":
            return Wait(owner=owner, on="the other devices", line="the start of the kernel")
        return Wait(owner=owner, on="", line="the end of the kernel")
    return Wait(
        owner=owner,
        on=_semaphore(memory, operation.semaphore),
        needed=operation.amount or 0,
        had=memory.value(operation.semaphore, operation.device, operation.core),
        unit="bytes" if operation.name == "dma_wait" else "",
        line=operation.place,
        program=operation.point,
    )


def _semaphore(memory: compat.Memory, number: int) -> str:
    """The kernel's name for a semaphore."""
    return _BARRIER if memory.is_barrier(number) else memory.semaphores.get(number, f"{number}")


def _core(memory: compat.Memory, device: int, core: int) -> Owner:
    return Owner(device=device, core=core if memory.cores_per_device > 1 else None)


def _where(place: str, point: tuple[int, ...]) -> str:
    at = f" in program ({', '.join(map(str, point))})" if point else ""
    return f"{place or 'an unknown line'}{at}"
