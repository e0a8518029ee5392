"""The end of a wait in an interpreter for something that does not come."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from pytest_pallas import compat
from pytest_pallas.errors import DeadlockError
from pytest_pallas.findings import Finding

#: How long a wait must last before it can be one that nobody ends, in seconds: the threads of the
#: other devices may be about to signal.
PATIENCE = 0.5

#: How long devices get to fail together, in seconds.
_LAST = 2.0


class Watching(Protocol):
    """Who knows for what simulated threads wait.

    Attributes:
      progress: a number that changes with everything that happens.
    """

    @property
    def progress(self) -> int:
        """A number that changes with everything that happens."""
        ...

    def deadlock(self) -> Finding | None:
        """Who waits for what, if nobody is left to signal."""
        ...


@contextmanager
def watchdog(timeout: float, *watches: Watching) -> Generator[list[DeadlockError]]:
    """End a simulated device's wait for something that does not come.

    At once where everybody waits and nobody is left to signal; else when the time is over. Yields a
    list that then holds the error.

    Args:
      timeout: in seconds. A kernel that takes as long to be compiled gets them once more.
      watches: who may know that nobody is left.
    """
    stopped: list[DeadlockError] = []
    done = threading.Event()

    def stop(error: DeadlockError) -> bool:
        """Whether anything ran that could be stopped: it may be compiled still."""
        if compat.fail_interpreters(error):
            stopped.append(error)
        return bool(stopped)

    def guard() -> None:
        end, before = time.monotonic() + timeout, [-1]
        while not done.wait(min(PATIENCE, max(end - time.monotonic(), 0.0))):
            now = [watch.progress for watch in watches]
            for found in filter(None, (watch.deadlock() for watch in watches)):
                if now == before and stop(DeadlockError.of(found)):
                    return
            before = now
            if time.monotonic() < end:
                continue
            if stop(_over(timeout)):
                if not done.wait(_LAST):  # devices that failed wait for those that never began
                    compat.release_interpreters()
                return
            end = time.monotonic() + timeout

    thread = threading.Thread(target=guard, name="pallas-watchdog", daemon=True)
    thread.start()
    try:
        yield stopped
    finally:
        done.set()


def _over(timeout: float) -> DeadlockError:
    """The error for a kernel whose time is over."""
    return DeadlockError(
        f"the kernel did not finish within {timeout:g} s and was stopped. Does every wait on a "
        "semaphore, barrier or DMA have its signal, on every device? "
        "If the kernel is only slow, raise the limit with --pallas-timeout."
    )
