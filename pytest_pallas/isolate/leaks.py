"""State of the process that a check changes: detect it, undo it, and report it.

``guarded`` does so for the body of a ``with``, ``leaving_nothing`` without a report. What is
compared is the table of ``_kinds``.
"""

from __future__ import annotations

import functools
import gc
import inspect
import os
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pallas_sim.errors import explanation_of
from pytest_pallas.backends.ending import uncaught_with_interrupts
from pytest_pallas.compat.settings import (
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

    def noting(function: Any, name_of: Callable[..., str]) -> Any:
        @functools.wraps(function)
        def noted(*args: Any, **keywords: Any) -> None:
            if _importing(inspect.currentframe()):
                names.add(name_of(*args))
            function(*args, **keywords)

        return noted

    os.putenv = noting(put, lambda name, _: os.fsdecode(name))
    warnings.filterwarnings = noting(add, lambda *_: FILTERS)
    warnings.simplefilter = noting(add_simple, lambda *_: FILTERS)
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
        """Describe it."""
        return f"left {self.name} = {_shown(self.new)} (was {_shown(self.old)})"


@dataclass(frozen=True)
class _Kind:
    """One kind of state of the process.

    Attributes:
      name: in messages, with a place for the key.
      read: gives all values, by key.
      restore: sets the value of a key again.
      shown: what a message shows of a value.
      same: whether two values are no change.
      absent: stands for a key that is not there; None to look at keys of the earlier state only.
    """

    name: str
    read: Callable[[], Mapping[Any, Any]]
    restore: Callable[[Any, Any], object]
    shown: Callable[[Any], Any] = lambda value: value
    same: Callable[[Any, Any], bool] = lambda old, new: _same(old, new)
    absent: Any = None


def _kinds() -> Sequence[_Kind]:
    import numpy as np

    return (
        _Kind(
            "{}",
            jax_settings,
            lambda name, old: set_jax_setting(name, old),
            shown=jax_setting_in_force,
            same=lambda old, new: all(map(_same, old, new)),
        ),
        _Kind("os.environ[{!r}]", _variables, _set_variable, absent=_MISSING),
        _Kind("the working directory", _one(_folder), lambda _, old: os.chdir(old)),
        _Kind("numpy.geterr()[{!r}]", np.geterr, lambda name, old: np.seterr(**{name: old})),
        _Kind(
            "numpy.get_printoptions()[{!r}]",
            np.get_printoptions,
            lambda name, old: np.set_printoptions(**{name: old}),
        ),
        _Kind(
            FILTERS,
            _one(lambda: tuple(warnings.filters)),
            _set_filters,
            shown=lambda filters: f"{len(filters)} filters",
        ),
        _Kind("gc.isenabled()", _one(gc.isenabled), lambda _, old: (gc.disable, gc.enable)[old]()),
        _Kind("gc.get_threshold()", _one(gc.get_threshold), lambda _, old: gc.set_threshold(*old)),
        _Kind("sys.getrecursionlimit()", _one(sys.getrecursionlimit), _set_recursion_limit),
        _Kind(
            "the handler of {.name}",
            lambda: {number: signal.getsignal(number) for number in _SIGNALS},
            signal.signal,
            # None is a handler of C, and only the main thread can set handlers
            same=lambda old, new: old is None or _same(old, new) or not _is_main(),
        ),
        _Kind(
            "memory of a kernel in {}",
            lambda: dict.fromkeys(interpreters_in_use(), "some"),
            lambda *_: _end_interpreters(),
            same=lambda old, new: new in (old, "none"),
            absent="none",
        ),
    )


#: The values of each kind of state, by key.
type State = Sequence[Mapping[Any, Any]]


def state() -> State:
    """Read the state of the process, as far as it is compared."""
    import jax

    del jax  # imported first, so that its import is no change
    return [dict(kind.read()) for kind in _kinds()]


def leaks(before: State, after: State, imported: Set[str] = frozenset()) -> list[Leak]:
    """List the changes of state, except for settings that a library defined in between.

    Args:
      before: the earlier state.
      after: the later state.
      imported: environment variables that modules set during their import, and ``FILTERS`` if they
        added warning filters: the modules need these.
    """
    changes: list[Leak] = []
    for kind, old_values, new_values in zip(_kinds(), before, after, strict=True):
        keys = [*old_values]
        if kind.absent is not None:
            keys = sorted({*old_values, *new_values})
        for key in keys:
            old = old_values.get(key, kind.absent)
            new = new_values.get(key, old if kind.absent is None else kind.absent)
            name = kind.name.format(key)
            if kind.same(old, new) or imported & {key, name}:
                continue
            undo = functools.partial(kind.restore, key, old)
            changes.append(Leak(name, kind.shown(new), kind.shown(old), undo))
    return changes


def _variables() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name not in _OF_PYTEST}


def _set_variable(name: str, value: Any) -> None:
    if value is _MISSING:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _one(read: Callable[[], Any]) -> Callable[[], Mapping[Any, Any]]:
    """Make a function that reads a kind of state with one value."""
    return lambda: {"": read()}


def _folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def _set_recursion_limit(_: str, limit: int) -> None:
    sys.setrecursionlimit(limit)


def _set_filters(key: str, filters: Sequence[Any]) -> None:
    del key
    warnings.resetwarnings()  # which also tells Python's compiled half
    warnings.filters[:] = filters  # pyright: ignore[reportIndexIssue]


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def undone(changes: Sequence[Leak]) -> list[Leak]:
    """Undo leaks; returns those that could not be undone."""
    stuck: list[Leak] = []
    for leak in reversed(changes):
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
            with uncaught_with_interrupts():
                yield
        except BaseException:
            session.untold = []
            _undo_changes(session, before, imported)
            raise
    changes, stuck = _undo_changes(session, before, imported)
    untold, session.untold = session.untold, []
    changes, stuck = [*untold, *changes], [*untold, *stuck]
    if kernel:
        reported = session.leaked.setdefault(kernel, set())
        changes = [leak for leak in changes if leak.name not in reported or leak in stuck]
        reported.update(leak.name for leak in changes)
    if changes:
        lines = "\n  ".join(map(str, changes))
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
            with uncaught_with_interrupts():
                yield
        finally:
            changes, stuck = _undo_changes(session, before, imported)
            if tells:
                session.untold += stuck
            if changes:
                jax.clear_caches()  # JAX would not run the functions again


def _undo_changes(
    session: Session, before: State, imported: Set[str]
) -> tuple[list[Leak], list[Leak]]:
    """Undo the changes since ``before``; returns them, and those that could not be undone."""
    changes = leaks(before, state(), imported)
    stuck = undone(changes)
    if changes and not stuck:
        stuck = leaks(before, state(), imported)
    if stuck:
        session.stained = True
    return changes, stuck


def _end_interpreters() -> None:
    """Clear a kernel that still runs, and stop its threads, which would join the next one."""
    fail_interpreters(RuntimeError("the check that started this kernel has ended"))
    reset_interpreters()


def _same(a: Any, b: Any) -> bool:
    try:
        return a is b or (type(a) is type(b) and bool(a == b))
    except Exception:  # equality of anything may raise
        return False


def _shown(value: Any) -> str:
    text = "unset" if value is _MISSING else repr(value)
    return text if len(text) <= 80 else text[:80] + "..."
