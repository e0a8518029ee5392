"""Time limits for functions that run in this thread, and exceptions that would end the process."""

from __future__ import annotations

import gc
import signal
import sysconfig
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from pallas_sim.errors import SimulationLimitError
from pallas_sim.findings import SourceLine
from pytest_pallas.errors import is_own

#: Time limit for everything but a kernel, in seconds at least, and as a multiple of
#: --pallas-timeout: set-up, drawing, the reference in float64, teardown.
LEAST, MULTIPLE = 60.0, 5.0

#: Seconds between two attempts to end code that catches the first one.
_AGAIN = 1.0

#: Folders without user code: the standard library, and installed packages.
_LIBRARIES = tuple({sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")})


def _line(frame: FrameType | None) -> str:
    """Return the innermost running line of user code; "" while the simulator evaluates."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_own(file):
            return ""
        if not file.startswith((*_LIBRARIES, "<")):
            return str(SourceLine(file, frame.f_lineno))
        frame = frame.f_back
    return ""


#: Seconds until the next attempt where an exception would be lost, and how often it is put off.
#: That is counted, because signals come late while memory is collected.
_SOON, _MOST_PUT_OFF = 0.005, 200


def _loses_exceptions(frame: FrameType | None) -> bool:
    """Return whether Python ignores what is raised here: in finalizers and callbacks of the gc."""
    callbacks = {getattr(callback, "__code__", None) for callback in gc.callbacks}
    while frame is not None:
        code = frame.f_code
        if code in callbacks or code.co_name == "__del__" or code.co_filename == weakref.__file__:
            return True
        frame = frame.f_back
    return False


def limit_of(timeout: float) -> float:
    """Seconds after which a kernel counts as hanging in the interpreter or compiler.

    This is more than ``timeout``, which stops an interpreter that only waits.
    """
    return timeout + min(max(timeout / 2, 1.0), 10.0)


def longest(timeout: float) -> float:
    """Return the time limit of any step, in seconds."""
    return max(LEAST, MULTIPLE * limit_of(timeout))


def _timed_out(text: str, line: str) -> SimulationLimitError:
    error = SimulationLimitError(text)
    error.timed_out = True
    error.at(line, "")
    return error


#: What did not end, where a function is traced only.
NOT_TRACED = "still not traced after {:g} s; the limit is --pallas-timeout"


class OverdueError(BaseException):
    """The time limit of a whole step is over.

    Not an ``Exception``, because functions that try several calls handle the errors of each.

    Attributes:
      line: the line of user code that was running; "" if none was.
    """

    def __init__(self, line: str) -> None:
        """With the line that was running."""
        super().__init__(line)
        self.line = line

    def error(self, seconds: float) -> SimulationLimitError:
        """Return the error of a function that was not traced within some seconds."""
        return _timed_out(NOT_TRACED.format(seconds), self.line)


@contextmanager
def ending(
    seconds: float,
    message: str = "still not traced and simulated after {:g} s; the limit is --pallas-timeout",
) -> Generator[None]:
    """Interrupt tracing or simulation that does not end, such as a Python loop in the function.

    Loops of the kernel itself reach the machine's limit of steps, in any thread.

    Args:
      seconds: the limit.
      message: what did not end, with a place for the seconds.

    Raises:
      SimulationLimitError: it took longer than ``seconds``; the traceback has the current line.
    """
    with _alarmed(seconds, lambda line: _timed_out(message.format(seconds), line)):
        yield


@contextmanager
def ending_whole(
    seconds: float, waiting: Callable[[], None] | None = None, patience: float = 0.0
) -> Generator[None]:
    """Interrupt a step of several calls, each of which may have a limit of its own.

    Args:
      seconds: the limit.
      waiting: called once, after ``patience`` seconds, if the step still runs.
      patience: see ``waiting``.

    Raises:
      OverdueError: it took longer than ``seconds``.
    """
    with _alarmed(seconds, OverdueError, waiting, patience):
        yield


@contextmanager
def _alarmed(
    seconds: float,
    late: Callable[[str], BaseException],
    waiting: Callable[[], None] | None = None,
    patience: float = 0.0,
) -> Generator[None]:
    """Raise ``late(line)`` in this thread after some seconds, and again if that is caught.

    The alarm of an enclosing context stays in force if it comes first.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(
        signal, "setitimer"
    ):
        yield
        return
    started = time.monotonic()
    outer, interval = signal.getitimer(signal.ITIMER_REAL)
    if outer and outer <= seconds:
        yield
        return
    over = False
    put_off = 0
    patient = waiting is not None and patience < seconds

    def stop(_: int, frame: FrameType | None) -> None:
        nonlocal patient, put_off
        if over:
            return
        if patient and waiting is not None:
            patient = False
            rest = max(seconds - (time.monotonic() - started), 0.001)
            signal.setitimer(signal.ITIMER_REAL, rest, _AGAIN)
            waiting()
            return
        if put_off < _MOST_PUT_OFF and _loses_exceptions(frame):
            put_off += 1
            signal.setitimer(signal.ITIMER_REAL, _SOON, _AGAIN)
            return
        raise late(_line(frame))

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, patience if patient else seconds, _AGAIN)
    try:
        yield
    finally:
        over = True
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if outer:  # not ours
            spent = time.monotonic() - started
            signal.setitimer(signal.ITIMER_REAL, max(outer - spent, 0.001), interval)


class UncaughtError(Exception):
    """A function raised what is no ``Exception``, such as SystemExit, which would end the process.

    Attributes:
      raised: what it raised.
    """

    def __init__(self, raised: BaseException) -> None:
        """With what it raised."""
        super().__init__(str(raised))
        self.raised = raised


#: Packages whose exceptions guide a test, and are no ``Exception`` either.
_FRAMEWORKS = frozenset({"_pytest", "pytest", "hypothesis", "pytest_pallas", "pallas_sim", "bdb"})

#: How often the terminal has interrupted this process, within ``noting_interrupts``.
_interrupts = 0


@contextmanager
def noting_interrupts() -> Generator[None]:
    """Let ``uncaught`` tell a KeyboardInterrupt of a function from one of the terminal."""
    before: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield
        return

    def noted(number: int, frame: FrameType | None) -> Any:
        global _interrupts
        _interrupts += 1
        return before(number, frame)

    noted.pallas_notes = True  # pyright: ignore[reportFunctionMemberAccess]
    signal.signal(signal.SIGINT, noted)
    try:
        yield
    finally:
        if signal.getsignal(signal.SIGINT) is noted:  # otherwise the guard tells who changed it
            signal.signal(signal.SIGINT, before)


@contextmanager
def uncaught() -> Generator[None]:
    """Make an ``Exception`` of what a function raises to end its process.

    What pytest, Hypothesis and this package raise to guide a test stays, and so does a
    KeyboardInterrupt, unless it is known that nobody pressed the key (``noting_interrupts``).

    Raises:
      UncaughtError: the function raised it.
    """
    count = _interrupts
    try:
        yield
    except (Exception, GeneratorExit):
        raise
    except BaseException as raised:
        packages = {kind.__module__.partition(".")[0] for kind in type(raised).__mro__}
        if packages & _FRAMEWORKS:
            raise
        if isinstance(raised, KeyboardInterrupt) and (_interrupts != count or not _is_noted()):
            raise
        raise UncaughtError(raised) from raised


@contextmanager
def uncaught_with_interrupts() -> Generator[None]:
    """Apply ``uncaught``, and tell interrupts of the terminal from those of a function."""
    with noting_interrupts(), uncaught():
        yield


def _is_noted() -> bool:
    """Return whether an interrupt of the terminal would be counted, or cannot come.

    A shell ignores interrupts of what it runs in the background, without job control.
    """
    handler = signal.getsignal(signal.SIGINT)
    noted = handler is signal.SIG_IGN or hasattr(handler, "pallas_notes")
    return noted and threading.current_thread() is threading.main_thread()


def raised_words(error: BaseException) -> tuple[str, str]:
    """Return the type and the text of what a function raised, for messages."""
    raised = error.raised if isinstance(error, UncaughtError) else error
    return type(raised).__name__, str(raised)
