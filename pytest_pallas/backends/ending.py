"""Time limit for tracing and simulation in this thread."""

from __future__ import annotations

import signal
import sysconfig
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pytest_pallas.errors import SimulationLimitError
from pytest_pallas.source_lines import SourceLine

#: Folders without user code: this package, the standard library, and installed packages.
_OWN = Path(__file__).parents[1]
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def _line(frame: FrameType | None) -> str:
    """The innermost line of user code, if one is running; "" while the simulator evaluates."""
    while frame is not None:
        file = frame.f_code.co_filename
        if _OWN in Path(file).parents:
            return ""
        if not file.startswith((*_LIBRARIES, "<")):
            return str(SourceLine(file, frame.f_lineno))
        frame = frame.f_back
    return ""


@contextmanager
def ending(seconds: float) -> Generator[None]:
    """Interrupt tracing or simulation that does not end, such as a Python loop in the function.

    Loops of the kernel itself reach the machine's limit of steps, in any thread.

    Raises:
      SimulationLimitError: it took longer than ``seconds``; the traceback has the current line.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return

    def stop(_: int, frame: FrameType | None) -> None:
        error = SimulationLimitError(
            f"still not traced and simulated after {seconds:g} s; the limit is --pallas-timeout"
        )
        error.at(_line(frame), "")
        raise error

    before = signal.signal(signal.SIGALRM, stop)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    started = time.monotonic()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:  # not ours
            spent = time.monotonic() - started
            signal.setitimer(signal.ITIMER_REAL, max(left - spent, 0.001))
