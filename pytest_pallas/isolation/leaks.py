"""Who sets a variable of the environment."""

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
    """Collect the names of the variables that are set while a module is being imported.

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
    """Something that is not as it was.

    Attributes:
      name: of it, as its user knows it.
      new: what it is.
      old: what it was.
      undo: makes it what it was.
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
    """What of a process is looked at."""

    jax: Mapping[str, Setting]
    environ: Mapping[str, str]
    folder: str
    numpy: Mapping[str, Any]
    interpreters: tuple[str, ...]


def state() -> State:
    """How things are: JAX's settings and contexts, numpy's, the environment, the interpreters."""
    import jax
    import numpy as np

    del jax  # imported, so that what importing it sets is no difference
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
    """What is not as it was, but for settings that a library defined in between.

    Args:
      before: how things were.
      after: how they are.
      imported: variables of the environment that modules set when they were imported: those are
        needed as long as the modules are there.
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
    """Undo leaks; those that could not be."""
    stuck: list[Leak] = []
    for leak in reversed(found):
        try:
            leak.undo()
        except Exception:  # JAX refuses to change some things back
            stuck.append(leak)
    return stuck


@contextmanager
def guarded(session: Session, headline: str) -> Generator[None]:
    """Undo what is left behind inside, and fail for it unless there is another failure.

    Args:
      session: is ``stained`` if something cannot be undone.
      headline: of the message.

    Raises:
      LeakError: something was left behind.
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
        rest = "It was undone."
        if stuck:
            names = ", ".join(leak.name for leak in stuck)
            rest = f"{names} could not be undone: what runs after it may fail for it."
        text = (
            f"{lines}\n  {rest} Later tests in this process would have seen it: a kernel should "
            "leave the process as it was."
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
    """Forget a kernel that was left running, and end its threads: it would join the next one."""
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
