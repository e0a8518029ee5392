"""Find functions whose code may end its process, before it runs: ``os._exit``, ``ctypes``, signals.

Python code can end a process without an exception in a few ways only. Their names are in the code
objects, so that nothing needs to run to see them.
"""

from __future__ import annotations

import functools
import sys
import sysconfig
import weakref
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from pytest_pallas.own_code import FOLDERS

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
    """The name by which some functions may end their process; None if there is none.

    Functions that they call are followed through globals, closures, modules, partials and
    attributes; those of installed packages are trusted, unless a given function is of the same
    package. It is a rule about names: it misses what is only reached through data.

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
        _harmless.update(each for each in seen.values() if isinstance(each, FunctionType))
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
        if _is_own(getattr(value, "__module__", ""), package):
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
    if _is_trusted(code, package):
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
        if isinstance(value, ModuleType) and _is_own(value.__name__, package, value):
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
    """Whether a builtin is a method of an object, rather than a function of a module."""
    return not isinstance(value.__self__, ModuleType)


def _code_of(value: Any) -> CodeType | None:
    while isinstance(value, functools.partial):
        value = value.func
    return getattr(getattr(value, "__wrapped__", value), "__code__", None)


def _package(code: CodeType | None) -> str:
    """The folder of the installed package of some code; "" if it is not installed."""
    if code is None:
        return ""
    for folder in _TRUSTED:
        if code.co_filename.startswith(f"{folder}/"):
            first, slash, _ = code.co_filename[len(folder) + 1 :].partition("/")
            return f"{folder}/{first}{slash}"
    return ""


def _is_trusted(code: CodeType, package: str) -> bool:
    file = code.co_filename
    if package and file.startswith(package):
        return False
    return file.startswith((*_TRUSTED, "<frozen"))


def _is_own(name: str, package: str, module: ModuleType | None = None) -> bool:
    """Whether a module is neither of Python nor of an installed package."""
    module = module or sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if file is None:
        return False
    return bool(package and file.startswith(package)) or not file.startswith(_TRUSTED)
