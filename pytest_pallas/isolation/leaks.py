"""State of the process that a check changes: detect it, undo it, and report it."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Generator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from pytest_pallas.compat.interpreters import (
    fail_interpreters,
    interpreters_in_use,
    reset_interpreters,
)
from pytest_pallas.compat.settings import (
    Setting,
    jax_setting_in_force,
    jax_settings,
    set_jax_setting,
)
from pytest_pallas.errors import LeakError
from pytest_pallas.explanations import explanation_of
from pytest_pallas.session import Session


@contextmanager
def variables_of_imports() -> Generator[set[str]]:
    """Collect the names of the environment variables that modules set during their import.

    ``os.environ`` calls ``os.putenv`` for each. Seen in Python 3.12 to 3.14.
    """
    names: set[str] = set()
    put = os.putenv

    def noted(name: bytes | str, value: bytes | str) -> None:
        if _importing(inspect.currentframe()):
            names.add(os.fsdecode(name))
        put(name, value)

    os.putenv = noted
    try:
        yield names
    finally:
        os.putenv = put


def _importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return True
        frame = frame.f_back
    return False


#: Variables that pytest sets for each test.
_OF_PYTEST = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION"})

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
    undo: Callable[[], None]

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
    interpreters: tuple[str, ...]


def state() -> State:
    """The current state: settings and contexts of JAX and numpy, environment, interpreters."""
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
    for name in after.interpreters:
        if name not in before.interpreters:
            found.append(Leak(f"memory of a kernel in {name}", "some", "none", _end_interpreters))
    return found


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
def guarded(session: Session, headline: str) -> Generator[None]:
    """Undo the leaks of the body, and raise for them unless the body raises.

    Args:
      session: is ``stained`` if a leak cannot be undone.
      headline: the start of the message.

    Raises:
      LeakError: the body changed state of the process.
    """
    __tracebackhide__ = True
    before = state()
    with variables_of_imports() as imported:
        try:
            yield
        except BaseException:
            _settle(session, before, imported)
            raise
    found, stuck = _settle(session, before, imported)
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
