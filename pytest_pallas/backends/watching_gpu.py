"""For what the threads of a simulated GPU wait."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from pytest_pallas import compat

#: How many waits are told one by one.
_SHOWN = 4


@dataclass
class ThreadWatch:
    """Told by the GPU interpreter which threads wait at barriers; see ``compat.ThreadWatch``."""

    _waiting: dict[tuple[int, int, int, int | None], compat.BarrierWait] = field(
        default_factory=dict
    )
    _ended: set[tuple[int, int, int, int | None]] = field(default_factory=set)
    _threads: int = 0
    _progress: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def waits(self, wait: compat.BarrierWait) -> None:
        """A thread is about to wait."""
        with self._lock:
            self._progress += 1
            self._waiting[wait.thread] = wait

    def goes_on(self, wait: compat.BarrierWait) -> None:
        """It does not wait any more."""
        with self._lock:
            self._progress += 1
            self._waiting.pop(wait.thread, None)

    def ends(self, thread: tuple[int, int, int, int | None], threads: int) -> None:
        """A warpgroup is through with the kernel."""
        with self._lock:
            self._progress += 1
            self._threads = threads
            self._ended.add(thread)

    def begins(self, threads: int) -> None:
        """A cluster begins."""
        with self._lock:
            self._progress += 1
            self._threads = threads
            self._waiting.clear()
            self._ended.clear()

    @property
    def progress(self) -> int:
        """A number that changes with every wait."""
        return self._progress

    def deadlock(self) -> str:
        """Who waits for what, if every thread waits and nobody is left to arrive; else ""."""
        with self._lock:
            waiting, ended = list(self._waiting.values()), set(self._ended)
            threads = self._threads
        # A warpgroup that is divided into warps waits when all four of them do.
        warps = [wait.thread[:3] for wait in waiting if wait.thread[3] is not None]
        groups = {wait.thread for wait in waiting if wait.thread[3] is None}
        groups |= {(*group, None) for group in warps if warps.count(group) == _WARPS}
        if not groups or not threads or len(groups | ended) < threads:
            return ""
        if any(wait.is_over for wait in waiting):
            return ""
        lines = [_told(wait) for wait in waiting]
        more = len(lines) - _SHOWN
        return "\n  ".join(lines[:_SHOWN] + ([f"and {more} more"] if more > 0 else []))

    def missing(self) -> str:
        """Nobody: several devices are no matter of this watch."""
        return ""


#: Warps of a warpgroup.
_WARPS = 4


def _told(wait: compat.BarrierWait) -> str:
    device, block, group, warp = wait.thread
    who = f"device {device}, block {block}, warpgroup {group}"
    if warp is not None:
        who += f", warp {warp}"
    arrived, wanted = wait.arrivals
    return (
        f"{who} waits at a barrier at which {arrived} of {wanted} have arrived, at "
        f"{wait.place or 'an unknown line'}"
    )
