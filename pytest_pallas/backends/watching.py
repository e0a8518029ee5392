"""What the cores of a simulated TPU leave behind, whom they reach too early, what they wait for."""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from pytest_pallas import compat
from pytest_pallas.errors import RaceError

#: How many of a kind are told one by one.
_SHOWN = 4

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
      leftovers: what kernels left behind: DMAs that nobody waited for, semaphores that are not 0.
      early: devices whose memory was reached before they were known to be in the kernel.
    """

    races: bool = False
    dma: str = "on_wait"
    slow: int | None = None
    forgets: bool = False
    leftovers: list[str] = field(default_factory=list[str])
    early: list[str] = field(default_factory=list[str])
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
            self.leftovers += _told(_by_device(_leftovers(memory, self._started)))

    @property
    def progress(self) -> int:
        """A number that changes with every operation."""
        return self._progress

    @property
    def problems(self) -> list[str]:
        """Everything that no kernel should do, worst first."""
        return [*self.early, *self.leftovers]

    def named(self, error: Exception | None) -> Exception | None:
        """An error about a race with the kernel's names for the buffers."""
        if not isinstance(error, RaceError) or self._memory is None:
            return error
        told = RaceError(_ACCESS.sub(functools.partial(_access, self._memory), str(error)))
        told.__cause__ = error.__cause__
        return told

    def deadlock(self) -> str:
        """Who waits for what, if every core waits and nobody is left to signal; else ""."""
        with self._lock:
            memory, waiting = self._memory, sorted(self._waiting.items())
        if memory is None:
            return ""
        operations = [operation for _, operation in waiting]
        each = memory.cores_per_device
        if sum(each if op.name in _FOR_ALL else 1 for op in operations) < memory.cores:
            return ""
        if not all(memory.is_stuck(operation) for operation in operations):
            return ""
        if all(operation.semaphore is None for operation in operations):
            return ""
        return "\n  ".join(_told(_wait(memory, operation) for operation in operations))

    def missing(self) -> str:
        """Who waits for which devices to begin the kernel; "" if all have."""
        with self._lock:
            memory, waiting = self._memory, list(self._waiting.values())
        begun = {operation.device for operation in waiting}
        if memory is None or not all(operation.name == "_barrier" for operation in waiting):
            return ""
        others = sorted(set(range(memory.cores // memory.cores_per_device)) - begun)
        if not begun or not others:
            return ""
        return (
            f"Devices {_listed(sorted(begun))} wait for devices {_listed(others)} to begin it: "
            "this interpreter begins a kernel on all devices of the mesh together. Do all of them "
            "call it, or is it under jax.lax.cond or switch?"
        )

    def _reaches(self, memory: compat.Memory, operation: compat.Operation) -> None:
        """A DMA to another device, or a signal of its semaphore, before it is in the kernel."""
        target = operation.target
        if target is None or target[0] == operation.device or operation.semaphore is None:
            return
        if operation.name == "semaphore_signal" and memory.is_barrier(operation.semaphore):
            return
        if memory.knows(operation, *target) is False:
            what = "copies to" if operation.name == "dma_start" else "signals a semaphore of"
            text = (
                f"device {operation.device} {what} device {target[0]} at "
                f"{_where(operation.place, operation.point)}, and nothing says that device "
                f"{target[0]} has begun the kernel; let them wait for each other before that, by "
                "pltpu.get_barrier_semaphore()"
            )
            with self._lock:
                if len(self.early) < _SHOWN:
                    self.early.append(text)


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


#: Where all cores of a device wait as one.
_FOR_ALL = frozenset({"_barrier", "_clean_up_shared_memory"})

#: What a core may wait in for ever, and its end.
_WAITS = _FOR_ALL | {"dma_wait", "semaphore_wait", "_core_ended"}


#: An access in the words of the race detector.
_ACCESS = re.compile(
    r"(?P<what>read|write) of \('(?P<space>\w+)', (?P<number>\d+), (?P<device>\d+), \d+\)"
    r"\[(?P<range>.*?)\] from \((?P<who>\d+), (?P<core>\d+)\), (?P<place>.*)"
)
_SLICE = re.compile(r"slice\((?:np\.\w+\()?(\d+)\)?, (?:np\.\w+\()?(\d+)\)?, [^)]*\)")


def _access(memory: compat.Memory, found: re.Match[str]) -> str:
    """``write of buf[0:8] of device 0 at FILE:LINE, program (1,), by a DMA``."""
    buffer = memory.buffers.get(
        (found["space"], int(found["number"])), f"a {found['space']} buffer"
    )
    part = _SLICE.sub(r"\1:\2", found["range"]).strip("(),")
    where = f"[{part}]" if part else ""
    by_dma = int(found["who"]) >= memory.first_dma
    place = found["place"]
    if place.startswith(","):  # JAX does not know the line
        place = f"an unknown line{place}"
    if place == "pallas_call":
        by = ", where pallas_call copies a block"
    else:
        by = f", {place}" + (", by a DMA" if by_dma else "")
    # Of a DMA, the detector does not say which core has started it.
    core = f", core {found['core']}" if memory.cores_per_device > 1 and not by_dma else ""
    return f"{found['what']} of {buffer}{where} of device {found['device']}{core}{by}"


def _by_device(found: Iterator[tuple[str, str]]) -> list[str]:
    """Each text once, with everyone of whom it is true."""
    who: dict[str, list[str]] = {}
    for core, text in found:
        who.setdefault(text, []).append(core)
    return [f"{', '.join(cores)}: {text}" for text, cores in who.items()]


def _leftovers(
    memory: compat.Memory, started: dict[int | None, list[str]]
) -> Iterator[tuple[str, str]]:
    """Who is left with what."""
    for left in memory.left():
        name = memory.semaphores.get(left.semaphore, f"semaphore {left.semaphore}")
        if memory.is_barrier(left.semaphore):
            name = "the barrier semaphore"
        who = f"device {left.device}" + (f", core {left.core}" if left.core else "")
        for place, point, half in left.pending:
            side = f"its {half} side, " if half else ""
            places = started.get(left.semaphore, [])
            shared = ", shared with others" if len(places) > 1 else ""
            yield (
                who,
                f"the DMA of {_where(place, point)} was never waited for ({side}semaphore {name}"
                f"{shared}); every copy that is started needs its wait()",
            )
        if left.count and not left.pending:
            begun = started.get(left.semaphore)
            text = f"{name} is {left.count} and not 0 when the kernel ends"
            if begun:
                places = ", ".join(begun[:_SHOWN])
                text += f": not every DMA of {places} was waited for, or with another size"
            else:
                text += ": it was signalled more often than waited for"
            yield who, text


def _wait(memory: compat.Memory, operation: compat.Operation) -> str:
    who = f"device {operation.device}"
    if operation.core:
        who += f", core {operation.core}"
    if operation.semaphore is None:
        if operation.name == "_barrier":
            return f"{who} waits for the others to begin the kernel"
        return f"{who} is at the end of the kernel"
    value = memory.value(operation.semaphore, operation.device, operation.core)
    name = memory.semaphores.get(operation.semaphore, f"semaphore {operation.semaphore}")
    if memory.is_barrier(operation.semaphore):
        name = "the barrier semaphore"
    unit = " bytes" if operation.name == "dma_wait" else ""
    return (
        f"{who} waits for {name} to be {operation.amount}{unit}, which is {value}, at "
        f"{_where(operation.place, operation.point)}"
    )


def _where(place: str, point: tuple[int, ...]) -> str:
    at = f" in program {point}" if point else ""
    return f"{place or 'an unknown line'}{at}"


def _told(lines: Iterable[str]) -> list[str]:
    """The first few lines, and how many more there are."""
    every = list(lines)
    more = len(every) - _SHOWN
    return [*every[:_SHOWN], f"and {more} more"] if more > 0 else every
