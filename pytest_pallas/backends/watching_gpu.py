"""For what the threads of a simulated GPU wait."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from pytest_pallas import compat
from pytest_pallas.findings import Finding, Wait


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

    def deadlock(self) -> Finding | None:
        """Who waits for what, if every thread waits and nobody is left to arrive."""
        with self._lock:
            waiting, ended = list(self._waiting.values()), set(self._ended)
            threads = self._threads
        # A warpgroup that is divided into warps waits when all four of them do.
        warps = [wait.thread[:3] for wait in waiting if wait.thread[3] is not None]
        groups = {wait.thread for wait in waiting if wait.thread[3] is None}
        groups |= {(*group, None) for group in warps if warps.count(group) == _WARPS}
        if not groups or not threads or len(groups | ended) < threads:
            return None
        if any(wait.is_over for wait in waiting):
            return None
        return Finding(
            kind="deadlock",
            message="deadlock: every thread is blocked and no arrival is pending",
            waits=tuple(_wait(each) for each in waiting),
        )


#: Warps of a warpgroup.
_WARPS = 4


def _wait(wait: compat.BarrierWait) -> Wait:
    arrived, wanted = wait.arrivals
    return Wait(
        owner=wait.owner,
        on="",  # the interpreter has no names of barriers
        needed=int(wanted),
        had=int(arrived),
        unit="arrivals",
        line=wait.place,
    )
