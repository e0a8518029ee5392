"""The end of a wait in an interpreter for something that does not come."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

from pytest_pallas.compat.interpreters import fail_interpreters, release_interpreters
from pytest_pallas.errors import DeadlockError

#: How long devices get to fail together, in seconds.
_LAST = 2.0


@contextmanager
def watchdog(timeout: float) -> Generator[list[DeadlockError]]:
    """End a simulated device's wait for something that does not come.

    When the time is over. Yields a list that then holds the error.

    Args:
      timeout: in seconds. A kernel that takes as long to be compiled gets them once more.
    """
    stopped: list[DeadlockError] = []
    done = threading.Event()

    def guard() -> None:
        while not done.wait(timeout):
            error = _over(timeout)
            if not fail_interpreters(error):
                continue  # it may be compiled still
            stopped.append(error)
            if not done.wait(_LAST):  # devices that failed wait for those that never began
                release_interpreters()
            return

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
