"""State of the process that a check changes: detect it, undo it, and report it."""

from __future__ import annotations

import functools
import gc
import inspect
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pallas_sim.errors import explanation_of
from pytest_pallas.backends.ending import noting_interrupts, uncaught
from pytest_pallas.compat.settings import (
    Setting,
    fail_interpreters,
    interpreters_in_use,
    jax_setting_in_force,
    jax_settings,
    reset_interpreters,
    set_jax_setting,
)
from pytest_pallas.errors import LeakError
from pytest_pallas.session import Session

#: Among the names of variables that imports set: they have added warning filters.
FILTERS = "warnings.filters"


@contextmanager
def variables_of_imports() -> Generator[set[str]]:
    """Collect the names of the environment variables that modules set during their import.

    ``os.environ`` calls ``os.putenv`` for each. Seen in Python 3.12 to 3.14. ``FILTERS`` is among
    the names if a module adds warning filters.
    """
    names: set[str] = set()
    put, add, add_simple = os.putenv, warnings.filterwarnings, warnings.simplefilter

    def noted(name: bytes | str, value: bytes | str) -> None:
        if _importing(inspect.currentframe()):
            names.add(os.fsdecode(name))
        put(name, value)

    def noting(function: Any) -> Any:
        @functools.wraps(function)
        def noted_filter(*args: Any, **keywords: Any) -> None:
            if _importing(inspect.currentframe()):
                names.add(FILTERS)
            function(*args, **keywords)

        return noted_filter

    os.putenv = noted
    warnings.filterwarnings, warnings.simplefilter = noting(add), noting(add_simple)
    try:
        yield names
    finally:
        os.putenv = put
        warnings.filterwarnings, warnings.simplefilter = add, add_simple


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


#: Variables that pytest sets for each test.
_OF_PYTEST = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION"})

#: Signals whose handlers are compared: all that have a name, and can have a handler.
_SIGNALS = sorted(set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP})

_MISSING = object()


@dataclass(frozen=True)
class Leak:
    """A change of state.

    Attributes:
      name: the name of the state, for users.
      new: the current value.
      old: the value before.
      undo: restores the old value.
    """

    name: str
    new: Any
    old: Any
    undo: Callable[[], object]

    def __str__(self) -> str:
        """In words."""
        return f"left {self.name} = {_shown(self.new)} (was {_shown(self.old)})"


@dataclass(frozen=True, kw_only=True)
class State:
    """The compared state of a process."""

    jax: Mapping[str, Setting]
    environ: Mapping[str, str]
    folder: str
    numpy: Mapping[str, Any]
    printing: Mapping[str, Any]
    filters: tuple[Any, ...]
    collector: tuple[bool, tuple[int, ...]]
    recursion: int
    handlers: Mapping[int, Any]
    interpreters: tuple[str, ...]


def state() -> State:
    """The current state of the process, as far as it is compared."""
    import jax
    import numpy as np

    del jax  # imported first, so that its import is no change
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        folder = ""
    return State(
        jax=jax_settings(),
        environ={name: value for name, value in os.environ.items() if name not in _OF_PYTEST},
        folder=folder,
        numpy={**np.geterr()},
        printing={**np.get_printoptions()},
        filters=tuple(warnings.filters),
        collector=(gc.isenabled(), gc.get_threshold()),
        recursion=sys.getrecursionlimit(),
        handlers={number: signal.getsignal(number) for number in _SIGNALS},
        interpreters=interpreters_in_use(),
    )


def leaks(before: State, after: State, imported: Set[str] = frozenset()) -> list[Leak]:
    """The changes of state, except for settings that a library defined in between.

    Args:
      before: the earlier state.
      after: the later state.
      imported: environment variables that modules set during their import: the modules need these.
    """
    import numpy as np

    found: list[Leak] = []
    for name, old in before.jax.items():
        new = after.jax.get(name, old)
        if not all(map(_same, old, new)):
            undo = functools.partial(set_jax_setting, name, old)
            in_force = jax_setting_in_force
            found.append(Leak(name, in_force(new), in_force(old), undo))
    for name in sorted({*before.environ, *after.environ}):
        old, new = (each.environ.get(name, _MISSING) for each in (before, after))
        if old != new and name not in imported:
            found.append(Leak(f"os.environ[{name!r}]", new, old, _setter(name, old)))
    if before.folder != after.folder:
        go = before.folder
        found.append(Leak("the working directory", after.folder, go, lambda: os.chdir(go)))
    for name, old in before.numpy.items():
        if after.numpy[name] != old:
            undo = _numpy_setter(np, name, old)
            found.append(Leak(f"numpy.geterr()[{name!r}]", after.numpy[name], old, undo))
    for name, old in before.printing.items():
        if not _same(after.printing.get(name), old):
            undo = functools.partial(np.set_printoptions, **{name: old})
            leak = Leak(f"numpy.get_printoptions()[{name!r}]", after.printing.get(name), old, undo)
            found.append(leak)
    found += _leaks_of_python(before, after, imported)
    for name in after.interpreters:
        if name not in before.interpreters:
            found.append(Leak(f"memory of a kernel in {name}", "some", "none", _end_interpreters))
    return found


def _leaks_of_python(before: State, after: State, imported: Set[str]) -> Iterator[Leak]:
    """The changes of what Python itself holds."""
    if before.filters != after.filters and FILTERS not in imported:
        text = f"{len(after.filters)} filters", f"{len(before.filters)} filters"
        yield Leak("warnings.filters", *text, functools.partial(_set_filters, before.filters))
    if before.collector != after.collector:
        (old, old_limits), (new, new_limits) = before.collector, after.collector
        if old != new:
            yield Leak("gc.isenabled()", new, old, gc.enable if old else gc.disable)
        if old_limits != new_limits:
            undo = functools.partial(gc.set_threshold, *old_limits)
            yield Leak("gc.get_threshold()", new_limits, old_limits, undo)
    if before.recursion != after.recursion:
        undo = functools.partial(sys.setrecursionlimit, before.recursion)
        yield Leak("sys.getrecursionlimit()", after.recursion, before.recursion, undo)
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread can set handlers
    for number, old in before.handlers.items():
        new = after.handlers.get(number)
        if new is not old and new != old and old is not None:  # None is a handler of C
            undo = functools.partial(signal.signal, number, old)
            yield Leak(f"the handler of {signal.Signals(number).name}", new, old, undo)


def _set_filters(filters: Sequence[Any]) -> None:
    warnings.resetwarnings()  # which also tells Python's compiled half
    warnings.filters[:] = filters  # pyright: ignore[reportIndexIssue]


def undone(found: list[Leak]) -> list[Leak]:
    """Undo leaks; returns those that could not be undone."""
    stuck: list[Leak] = []
    for leak in reversed(found):
        try:
            leak.undo()
        except Exception:  # JAX cannot restore some settings
            stuck.append(leak)
    return stuck


@contextmanager
def guarded(session: Session, headline: str, kernel: str = "") -> Generator[None]:
    """Undo the leaks of the body, and raise for them unless the body raises.

    Args:
      session: is ``stained`` if a leak cannot be undone.
      headline: the start of the message.
      kernel: a name of the kernel; of one with a name, each leak fails its first test only.

    Raises:
      LeakError: the body changed state of the process.
    """
    __tracebackhide__ = True
    before = state()
    with variables_of_imports() as imported:
        try:
            with noting_interrupts(), uncaught():
                yield
        except BaseException:
            session.untold = []
            _settle(session, before, imported)
            raise
    found, stuck = _settle(session, before, imported)
    untold, session.untold = session.untold, []
    found, stuck = [*untold, *found], [*untold, *stuck]
    if kernel:
        told = session.leaked.setdefault(kernel, set())
        found = [leak for leak in found if leak.name not in told or leak in stuck]
        told.update(leak.name for leak in found)
    if found:
        lines = "\n  ".join(map(str, found))
        rest = "The plugin undid it."
        if stuck:
            names = ", ".join(leak.name for leak in stuck)
            rest = f"The plugin could not undo {names}, so later tests may fail."
        text = (
            f"{lines}\n  {rest} A kernel must not change the state of the process, because that "
            "changes later tests."
        )
        raise LeakError.explained(explanation_of(text), headline)


@contextmanager
def leaving_nothing(session: Session, *, tells: bool = False) -> Generator[None]:
    """Undo the leaks of the body, where a test that runs the same functions tells them.

    Args:
      session: is ``stained`` if a leak cannot be undone.
      tells: whether the next check, which could not see such a leak, is of the same functions.
    """
    import jax

    with suppress(RuntimeError):  # there need not be a CPU
        jax.devices("cpu")  # starting JAX changes settings
    before = state()
    with variables_of_imports() as imported:
        try:
            with noting_interrupts(), uncaught():
                yield
        finally:
            found, stuck = _settle(session, before, imported)
            if tells:
                session.untold += stuck
            if found:
                jax.clear_caches()  # JAX would not run the functions again


def _settle(session: Session, before: State, imported: Set[str]) -> tuple[list[Leak], list[Leak]]:
    found = leaks(before, state(), imported)
    stuck = undone(found) if found else []
    if found and not stuck:
        stuck = leaks(before, state(), imported)
    if stuck:
        session.stained = True
    return found, stuck


def _setter(name: str, value: Any) -> Callable[[], None]:
    def undo() -> None:
        if value is _MISSING:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value

    return undo


def _end_interpreters() -> None:
    """Clear a kernel that still runs, and stop its threads, which would join the next one."""
    fail_interpreters(RuntimeError("the check that started this kernel has ended"))
    reset_interpreters()


def _numpy_setter(np: Any, name: str, value: Any) -> Callable[[], None]:
    return lambda: np.seterr(**{name: value})


def _same(a: Any, b: Any) -> bool:
    try:
        return a is b or (type(a) is type(b) and bool(a == b))
    except Exception:  # equality of anything may raise
        return False


def _shown(value: Any) -> str:
    text = "unset" if value is _MISSING else repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
