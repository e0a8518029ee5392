"""Import the function that a command names as ``MODULE:FUNCTION``, and look for its reference.

Modules are found as pytest finds them: the current folder, its ``src`` and the folders of the ini
value ``pythonpath`` are searched, too.
"""

from __future__ import annotations

import difflib
import functools
import importlib
import inspect
import os
import shlex
import subprocess
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pallas_sim.errors import OptionError
from pytest_pallas.compat.testing import configured_paths

#: Names of the reference of a function ``{}``; the first that exists is taken.
REFERENCES = ("{}_ref", "{}_reference", "reference_{}", "ref_{}", "reference")

#: How many functions of a module a message lists.
_LISTED = 12

#: Parts of the names of kernels that the names of their references do not have.
_AFFIXES = ("_pallas", "_kernel", "_tpu", "_gpu", "pallas_")


@dataclass(frozen=True)
class LoadedFunction:
    """A function and where it is.

    Attributes:
      function: the function.
      name: its name in the module, with dots for an attribute of an attribute.
      module: the name of its module.
      reference: the name of its reference in the module, or "".
      reference_function: that function, or None.
    """

    function: Callable[..., Any]
    name: str
    module: str
    reference: str = ""
    reference_function: Callable[..., Any] | None = None

    @property
    def short(self) -> str:
        """The last word of its name."""
        return self.name.rpartition(".")[2]


def load(target: str) -> LoadedFunction:
    """Import the function that ``MODULE:FUNCTION`` names; ``MODULE.FUNCTION`` and a path will do.

    The current folder, its ``src``, and the folders of pytest's ini value ``pythonpath`` are
    searched, too.

    Raises:
      OptionError: there is no such module or function, it cannot be imported, or it is no function.
    """
    name, attribute = _divided(target)
    module = import_module(name, target)
    function: Any = module
    for part in attribute.split("."):
        if not hasattr(function, part):
            raise OptionError(_no_such(function, name, part))
        function = getattr(function, part)
    if not callable(function) or isinstance(function, type):
        kind = (
            "a class"
            if isinstance(function, type)
            else f"a value of type {type(function).__name__}"
        )
        raise OptionError(
            f"{name}:{attribute} is {kind}, not a function; name the function that calls the kernel"
        )
    bases = [attribute, *(attribute.replace(affix, "") for affix in _AFFIXES if affix in attribute)]
    names = [pattern.format(base) for base in bases if base for pattern in REFERENCES]
    for reference in names if "." not in attribute else ():
        value = getattr(module, reference, None)
        if callable(value) and value is not function and not isinstance(value, type):
            return LoadedFunction(function, attribute, name, reference, value)
    return LoadedFunction(function, attribute, name)


def outside_of_pytest(module: str, test: Path) -> list[str]:
    """Return the options without which ``python -m pytest`` does not find a module.

    Args:
      module: its importable name.
      test: the test module that imports it.
    """
    loaded = sys.modules[module.partition(".")[0]]
    file = getattr(loaded, "__file__", None)
    path = Path(file) if file else Path(next(iter(loaded.__path__)))
    path = path.parent if path.name.startswith("__init__.") else path
    folder = path.absolute().parent
    base, configured = configured_paths([str(test)])
    variable = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    known = [Path.cwd(), *(Path(entry).absolute() for entry in variable), *configured]
    if folder in known or folder in map(Path, site_paths()):
        return []
    paths = (os.path.relpath(path, base) for path in (*configured, folder))
    return ["-o", f"pythonpath={shlex.join(paths)}"]


def site_paths() -> list[str]:
    """List the search path of a new interpreter, without ``PYTHONPATH`` and the current folder."""
    command = [sys.executable, "-I", "-c", "import sys; print(*sys.path, sep=chr(10))"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


def _divided(target: str) -> tuple[str, str]:
    """Divide a target into module and function."""
    name, colon, attribute = target.partition(":")
    if not colon and not name.endswith(".py"):
        name, _, attribute = target.rpartition(".")
    name = _module_name(name)
    parts = (*name.split("."), *attribute.split("."))
    if not name or not attribute or not all(part.isidentifier() for part in parts):
        raise OptionError(
            f"{target!r} names no function; write MODULE:FUNCTION, such as "
            "mykernels.softmax:softmax"
        )
    return name, attribute


def _in_search_path(path: Path) -> Path:
    """Return a path relative to a folder of ``sys.path``, which is extended for one elsewhere."""
    if not path.is_absolute() and ".." not in path.parts:
        return path
    path = path.resolve()
    if not path.is_file():
        raise OptionError(f"there is no file {path}")
    root = next(folder for folder in path.parents if not (folder / "__init__.py").exists())
    sys.path.insert(0, str(root))
    return path.relative_to(root)


def _module_name(name: str) -> str:
    """Return the name of a module that may be given by its path, as pytest takes it."""
    if not name.endswith(".py"):
        return name
    return ".".join(_in_search_path(Path(name)).with_suffix("").parts).removeprefix("src.")


def import_module(name: str, target: str) -> types.ModuleType:
    """Import a module by its name or path.

    The current folder, its ``src``, and the folders of pytest's ini value ``pythonpath`` are
    searched, too.

    Raises:
      OptionError: there is no such module, or it cannot be imported.
    """
    name = _module_name(name)
    for folder in (*reversed(configured_paths([])[1]), Path.cwd() / "src", Path.cwd()):
        if folder.is_dir() and str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name != missing and not name.startswith(f"{missing}."):
            raise OptionError(
                f"{name} cannot be imported: it imports {missing}, which is not installed"
            ) from error
        raise OptionError(
            f"there is no module {missing!r} (of {target!r}); {Path.cwd()} and sys.path were "
            "searched. Run this where it can be imported, or set PYTHONPATH"
        ) from None
    except Exception as error:
        raise OptionError(f"importing {name} raised {type(error).__name__}: {error}") from error


def _no_such(holder: Any, module: str, missing: str) -> str:
    """Write the message for a missing name, with the existing ones."""
    functions = {
        name: value
        for name, value in vars(holder).items()
        if callable(value) and not name.startswith("_") and not isinstance(value, type)
    }
    if near := difflib.get_close_matches(missing, functions, 1):
        return f"{module} has no function {missing!r}; did you mean {near[0]}?"
    own = [name for name, value in functions.items() if getattr(value, "__module__", "") == module]
    names = own or [*functions]
    more = ", ..." if len(names) > _LISTED else ""
    listed = ", ".join(names[:_LISTED]) or "none"
    return f"{module} has no function {missing!r}; it has {listed}{more}"


def innermost(function: Callable[..., Any]) -> Any:
    """Find the function that was decorated, jitted or bound by ``functools.partial``."""
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    inner = inspect.unwrap(inner)
    return inspect.unwrap(inner.func) if isinstance(inner, functools.partial) else inner
