"""Decide which tests run in a process of their own, and why.

``reason`` and ``reason_of_others`` decide, by the options, by the ``History`` of earlier sessions,
and by the code of a test: functions that may end the process (``os._exit``, ``ctypes``, signals)
are seen before they run.

Python code can end a process without an exception in a few ways only. Their names are in the code
objects, so that nothing needs to run to see them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import math
import os
import platform
import sys
import sysconfig
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any, TypedDict

import pytest

from pallas_sim.chips import Label
from pallas_sim.errors import OptionError
from pytest_pallas.backends.devices import accelerators
from pytest_pallas.backends.processes import gang
from pytest_pallas.backends.protocol import label
from pytest_pallas.compat.settings import has_opened_an_accelerator
from pytest_pallas.decoding import DataError, decode, parse
from pytest_pallas.draw.meshes import is_drawn
from pytest_pallas.errors import FOLDERS
from pytest_pallas.pytest_session import PytestSession, current

#: Names whose use may end the process: by exit or signal, by a limit of memory or of Python's
#: stack, or in code that is not Python's.
NAMES = frozenset(
    {
        *("_exit", "abort", "kill", "killpg", "raise_signal", "pthread_kill"),
        *("execv", "execve", "execvp", "execvpe", "execl", "execle", "execlp", "execlpe"),
        *("fork", "forkpty", "setrlimit", "prlimit", "setrecursionlimit"),
        *("_sigsegv", "_sigabrt", "_sigfpe", "_read_null", "_fatal_error", "_stack_overflow"),
        *("ctypes", "_ctypes", "cffi"),
    }
)

#: Modules in C or of it: their functions, and what they load, may end the process.
_FOREIGN = frozenset({"ctypes", "_ctypes", "cffi", "_cffi_backend", "_testcapi"})

#: Folders of code that is trusted: Python's, installed packages, this package.
_TRUSTED = tuple(
    {
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        *FOLDERS,
    }
)

#: How deep objects that hold functions are followed: partials, strategies, instances.
_DEPTH = 6


def process_call_of(objects: Iterable[Any]) -> str | None:
    """Return the name by which functions may end their process; None if there is none.

    Functions that they call are followed through globals, closures, modules, partials and
    attributes; those of installed packages are trusted, unless a given function is of the same
    package. The rule is about names: it misses functions that are only reached through data.

    Args:
      objects: functions, or what holds functions, such as strategies.
    """
    values = [*objects]
    package = next(filter(None, (_package(_code_of(value)) for value in values)), "")
    seen: dict[int, Any] = {}
    for value in values:
        for name in _of_object(value, package, seen, _DEPTH):
            return name
    if not package:
        _harmless.update(value for value in seen.values() if isinstance(value, FunctionType))
    return None


#: Functions that were followed, and end nothing: kernels share many.
_harmless: weakref.WeakSet[FunctionType] = weakref.WeakSet()


def _of_object(value: Any, package: str, seen: dict[int, Any], depth: int) -> Iterator[str]:
    if depth < 0 or id(value) in seen:
        return
    seen[id(value)] = value
    if isinstance(value, FunctionType):
        if package or value not in _harmless:
            yield from _of_function(value, package, seen)
    elif isinstance(value, BuiltinFunctionType):
        if value.__name__ in NAMES and not _is_method(value):
            yield value.__name__
    elif isinstance(value, MethodType):
        yield from _of_object(value.__func__, package, seen, depth)
        yield from _of_object(value.__self__, package, seen, depth - 1)
    elif isinstance(value, ModuleType):
        if value.__name__.partition(".")[0] in _FOREIGN:
            yield value.__name__
    elif isinstance(value, type):
        if _is_own(sys.modules.get(getattr(value, "__module__", "")), package):
            for attribute in vars(value).values():
                yield from _of_object(attribute, package, seen, depth - 1)
    elif isinstance(value, functools.partial):
        for inner in (value.func, *value.args, *value.keywords.values()):
            yield from _of_object(inner, package, seen, depth - 1)
    elif isinstance(value, Mapping):
        for inner in [*value.values()][:64]:
            yield from _of_object(inner, package, seen, depth - 1)
    elif isinstance(value, list | tuple | set | frozenset):
        for inner in [*value][:64]:
            yield from _of_object(inner, package, seen, depth - 1)
    elif not isinstance(value, str | bytes | int | float | complex | None):
        yield from _of_object(getattr(value, "__wrapped__", None), package, seen, depth)
        yield from _of_object(type(value), package, seen, depth)
        for inner in [*getattr(value, "__dict__", {}).values()][:64]:
            if callable(inner) or isinstance(inner, list | tuple) or hasattr(inner, "example"):
                yield from _of_object(inner, package, seen, depth - 1)


def _of_function(function: FunctionType, package: str, seen: dict[int, Any]) -> Iterator[str]:
    code = function.__code__
    if _is_trusted(code.co_filename, package):
        return
    names: set[str] = set()
    for inner in _codes(code):
        names.update(inner.co_names)
    for name in sorted(names & NAMES):
        yield name
    known = function.__globals__
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    values = [known[name] for name in names if name in known]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    for value in (*values, *cells, *defaults, getattr(function, "__wrapped__", None)):
        if isinstance(value, ModuleType) and _is_own(value, package):
            for name in names & vars(value).keys():
                yield from _of_object(vars(value)[name], package, seen, _DEPTH)
        yield from _of_object(value, package, seen, _DEPTH)


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _is_method(value: BuiltinFunctionType) -> bool:
    """Return whether a builtin is a method of an object, rather than a function of a module."""
    return not isinstance(value.__self__, ModuleType)


def _code_of(value: Any) -> CodeType | None:
    while isinstance(value, functools.partial):
        value = value.func
    return getattr(getattr(value, "__wrapped__", value), "__code__", None)


def _package(code: CodeType | None) -> str:
    """Return the folder of the installed package of some code; "" if it is not installed."""
    if code is None:
        return ""
    for folder in _TRUSTED:
        if code.co_filename.startswith(f"{folder}/"):
            first, slash, _ = code.co_filename[len(folder) + 1 :].partition("/")
            return f"{folder}/{first}{slash}"
    return ""


def _is_trusted(file: str, package: str) -> bool:
    """Return whether a file is of Python or of an installed package other than ``package``."""
    if package and file.startswith(package):
        return False
    return file.startswith((*_TRUSTED, "<frozen"))


def _is_own(module: ModuleType | None, package: str) -> bool:
    """Return whether a module has a file that is not trusted."""
    file = getattr(module, "__file__", None)
    return file is not None and not _is_trusted(file, package)


# The history of tests in earlier sessions, in pytest's cache.


#: Folders in pytest's cache: tests to isolate, and running tests.
APART, RUNNING = "pallas-isolated", "pallas-running"


class _Kept(TypedDict):
    """What is kept of a test to isolate."""

    test: str
    reason: str


class History:
    """History of tests that need isolation, by key: a node id, or a spec on a backend."""

    def __init__(self, config: pytest.Config) -> None:
        """Create without reading."""
        self._config = config
        self._here: dict[str, str] = {}

    def reason(self, key: str) -> str:
        """Return the reason to isolate, or ""."""
        if key in self._here:
            return self._here[key]
        path = self._path(key)
        reason = ""
        if path is not None and path.name in self._names:
            with contextlib.suppress(OSError, DataError):
                reason = decode(_Kept, parse(path.read_bytes()))["reason"]
        return self._here.setdefault(key, reason)

    def add(self, key: str, reason: str) -> None:
        """Isolate it from now on, in this session and later ones."""
        if self.reason(key) != reason:
            self._here[key] = reason
            self._keep(key, reason)

    def remove(self, key: str) -> None:
        """Remove the reason."""
        if self.reason(key):
            self._here[key] = ""
            path = self._path(key)
            if path is not None:
                path.unlink(missing_ok=True)

    def failed(self, nodeid: str) -> bool:
        """Return whether the last run of a test failed, from the data of ``--lf``."""
        return nodeid in self._failed

    @contextlib.contextmanager
    def running(self, nodeid: str) -> Generator[None]:
        """Record that a test is running, in case the session dies."""
        _write(self._marker, nodeid)
        try:
            yield
        finally:
            _write(self._marker, "")

    def close(self) -> None:
        """Record that the session ended normally."""
        if "_marker" in vars(self) and self._marker is not None:
            with contextlib.suppress(OSError):
                self._marker.unlink(missing_ok=True)

    @cached_property
    def _failed(self) -> frozenset[str]:
        with contextlib.suppress(DataError, AttributeError):  # -p no:cacheprovider
            failed = self._config.cache.get("cache/lastfailed", {})
            return frozenset(decode(dict[str, Any], failed))
        return frozenset()

    @cached_property
    def _names(self) -> frozenset[str]:
        """The files of earlier sessions, including those that died."""
        folder = self._folder(APART)
        if folder is None:
            return frozenset()
        self._bury()
        return frozenset(os.listdir(folder))

    @cached_property
    def _marker(self) -> Path | None:
        folder = self._folder(RUNNING)
        return None if folder is None else folder / f"{os.getpid()}-{platform.node()}"

    def _bury(self) -> None:
        """Add the tests that were running when earlier sessions on this machine died."""
        folder = self._folder(RUNNING)
        for path in [] if folder is None else sorted(folder.iterdir()):
            pid, _, machine = path.name.partition("-")
            if machine != platform.node() or not pid.isdecimal() or _lives(int(pid)):
                continue
            with contextlib.suppress(OSError):  # another process may do the same
                nodeid = path.read_text(encoding="utf-8", errors="replace")
                path.unlink()
                if nodeid:
                    self._keep(nodeid, "an earlier session died while it ran")

    def _keep(self, key: str, reason: str) -> None:
        _write(self._path(key), json.dumps({"test": key, "reason": reason}))

    def _path(self, key: str) -> Path | None:
        folder = self._folder(APART)
        name = hashlib.blake2b(key.encode(), digest_size=16).hexdigest()
        return None if folder is None else folder / f"{name}.json"

    def _folder(self, name: str) -> Path | None:
        try:
            return self._config.cache.mkdir(name)
        except (OSError, AttributeError):  # -p no:cacheprovider
            return None


def _write(path: Path | None, text: str) -> None:
    """Write a file of the cache, if there is a cache that can be written."""
    if path is not None:
        with contextlib.suppress(OSError):
            path.write_text(text, encoding="utf-8")


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):  # no process has, or could have, such a number
        return False
    except OSError:
        return True  # of another user
    return True


# The decision for a test.


#: The fixtures of a test that may use several devices.
_DEVICES = frozenset({"pallas_mesh", "pallas_devices"})


def separable(item: Any) -> bool:
    """Return whether a test can be run in another process.

    A test on hardware cannot where this process has opened the device. Compilers have their own
    workers.
    """
    kind = _kind(item)
    return kind is None or kind in ("simulating", "interpreting")


def simulates(item: Any) -> bool:
    """Return whether all backends of a test are simulators."""
    parts = getattr(item, "parts", None) or (item,)  # a MutantsItem
    return all(_kind(part) == "simulating" for part in parts)


def uses_plugin(item: Any) -> bool:
    """Return whether a test is a check of a spec, or uses the fixtures that run kernels."""
    return hasattr(item, "spec") or "pallas_backend" in getattr(item, "fixturenames", ())


def mode(item: pytest.Item | pytest.Collector) -> str:
    """Return ``--pallas-isolate`` for a test, or ``"never"`` where isolation is not possible.

    It is not possible in a debugger and with ``-s``: a worker has no terminal. A process of
    a program of several must run its tests itself: a worker would be no part of the program.
    """
    if gang() is not None:
        return "never"
    try:
        chosen = current(item.config).options_for(item).isolate
    except OptionError:
        return "never"  # a wrong mark, which the test's set-up reports
    return _possible(item.config, chosen)


def _possible(config: pytest.Config, chosen: str) -> str:
    watched = config.option.usepdb or config.option.trace or config.option.capture == "no"
    return "never" if chosen == "auto" and watched else chosen


def may_use_hardware(session: PytestSession) -> bool:
    """Return whether the options of a session may choose hardware, without opening a device."""
    there = {family.name for family in session.harness.families() if family.kind == "hardware"}
    present = accelerators(os.environ)
    if present is not None:
        there.add(present.platform)
    names = {Label.of(word).name for word in session.options.backend}
    return bool(there) and not names.isdisjoint({*there, "auto", "all"})


def separates_hardware(session: PytestSession) -> bool:
    """Return whether the tests of a session that may use hardware run in a worker.

    They do not if something has opened an accelerator in this process: it may be the only one that
    can.
    """
    if gang() is not None or _possible(session.config, session.options.isolate) == "never":
        return False
    session.opened_early = has_opened_an_accelerator()
    return not session.opened_early


def reason(item: Any, history: History) -> str:
    """Return the reason to run a test in a worker from the start; "" for none."""
    chosen = mode(item)
    if chosen == "never" or not uses_plugin(item) or not separable(item):
        return ""
    if chosen == "always":
        return "--pallas-isolate=always"
    known = history.reason(item.nodeid) or (
        history.reason(key_of(item)) if hasattr(item, "spec") else ""
    )
    return known or _danger(item) or ("" if simulates(item) else _risk(item, history))


def reason_of_others(item: Any, history: History) -> str:
    """Return the reason to move a test to a worker if the simulator cannot run a call."""
    if mode(item) != "auto" or not uses_plugin(item) or not simulates(item):
        return ""
    return _risk(item, history)


def reason_to_learn_apart(parent: pytest.Collector, spec: Any, history: History) -> str:
    """Return the reason to draw and trace a spec in a worker at collection; "" for none."""
    chosen = mode(parent)
    if chosen == "never":
        return ""
    if chosen == "always":
        return "--pallas-isolate=always"
    return history.reason(key_of_spec(spec)) or _process_call(_functions_of(spec))


def _process_call(functions: Iterable[Any]) -> str:
    name = process_call_of(functions)
    return f"its code uses {name}, which may end the process" if name else ""


def _functions_of(spec: Any) -> Sequence[Any]:
    kernels = spec.kernel.values() if isinstance(spec.kernel, Mapping) else (spec.kernel,)
    return [*kernels, spec.reference, *spec.implementations.values(), spec.inputs]


def _danger(item: Any) -> str:
    """Return the reason why the functions of a test may end its process, wherever they run."""
    if hasattr(item, "spec"):
        facts = current(item.config).facts.get((item.spec.file, item.spec.name))
        if facts is not None and not item.spec.meshes:
            return facts.isolated
        return _process_call(_functions_of(item.spec))
    params = getattr(getattr(item, "callspec", None), "params", {})
    values = [value for name, value in params.items() if name != "pallas_backend"]
    return _process_call([getattr(item, "obj", None), *values])


def _risk(item: Any, history: History) -> str:
    """Return the reason why a test may crash on an interpreter; "" if none is known."""
    if current(item.config).options.mutate is not None:
        return "mutants may crash or hang"
    if _devices(item):
        return "it runs on several devices"
    if history.failed(item.nodeid):
        return "it failed before"
    return ""


def key_of_spec(spec: Any) -> str:
    """Return the key of a spec, for its collection."""
    return f"{spec.file}::{spec.name}"


def key_of(item: Any) -> str:
    """Return the key of a spec on a backend, for all checks."""
    return f"{item.spec.file}::{item.spec.name}[{label(item.backend)}]"


def _kind(item: Any) -> str | None:
    """Return the kind of a test's backend; None if it is not known."""
    own = getattr(item, "backend", None)
    if own is None:
        callspec = getattr(item, "callspec", None)
        own = None if callspec is None else callspec.params.get("pallas_backend")
    return getattr(own, "kind", None)  # an overridden fixture may return a name


def _devices(item: Any) -> bool:
    if hasattr(item, "spec"):
        axes = getattr(item, "axes", {})
        return is_drawn(axes) or math.prod(axes.values()) > 1
    if _DEVICES & {*getattr(item, "fixturenames", ())}:
        return True
    mark = item.get_closest_marker("pallas_mesh")
    return mark is not None
