"""Import the function that ``MODULE:FUNCTION`` names, and look for its reference beside it."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from pallas_sim.errors import OptionError

#: How a reference is called, where the function is called ``{}``; the first that exists is it.
REFERENCES = ("{}_ref", "{}_reference", "reference_{}", "ref_{}", "reference")

#: How many functions of a module a message lists.
_LISTED = 12

#: What the names of kernels have besides the name of what they compute.
_AFFIXES = ("_pallas", "_kernel", "_tpu", "_gpu", "pallas_")


@dataclass(frozen=True)
class Loaded:
    """A function and where it is.

    Attributes:
      function: the function.
      name: its name in the module, with dots for an attribute of an attribute.
      module: the name of its module.
      reference: the name of its reference in the module, or "".
      reference_function: that function, or None.
      unlisted: whether only the current folder, which ``pytest`` does not search, has the module.
    """

    function: Callable[..., Any]
    name: str
    module: str
    reference: str = ""
    reference_function: Callable[..., Any] | None = None
    unlisted: bool = False

    @property
    def short(self) -> str:
        """The last word of its name."""
        return self.name.rpartition(".")[2]


def load(target: str) -> Loaded:
    """The function that ``MODULE:FUNCTION`` names; ``MODULE.FUNCTION`` and a path will do.

    Raises:
      OptionError: there is no such module or function, it cannot be imported, or it is no function.
    """
    name, attribute = _divided(target)
    unlisted = _make_importable()
    module = _imported(name, target)
    function: Any = module
    for word in attribute.split("."):
        if not hasattr(function, word):
            raise OptionError(_no_such(function, name, word))
        function = getattr(function, word)
    if not callable(function) or isinstance(function, type):
        raise OptionError(
            f"{name}:{attribute} is {_kind(function)}, not a function; name the function that "
            "calls the kernel"
        )
    found = next(_references(module, attribute, function), "")
    return Loaded(
        function=function,
        name=attribute,
        module=name,
        reference=found,
        reference_function=getattr(module, found) if found else None,
        unlisted=unlisted and _is_below(module, Path.cwd()),
    )


def _divided(target: str) -> tuple[str, str]:
    """Module and function of a target."""
    name, colon, attribute = target.partition(":")
    if not colon:
        name, _, attribute = target.rpartition(".")
    if name.endswith(".py"):  # a path, as pytest takes them
        name = name.removesuffix(".py").removeprefix("./").replace("/", ".").replace(os.sep, ".")
        name = name.removeprefix("src.")
    words = (*name.split("."), *attribute.split("."))
    if not name or not attribute or not all(word.isidentifier() for word in words):
        raise OptionError(
            f"{target!r} names no function; write MODULE:FUNCTION, such as "
            "mykernels.softmax:softmax"
        )
    return name, attribute


def _make_importable() -> bool:
    """Let the current folder and its ``src`` be searched; returns whether the folder was not."""
    here = str(Path.cwd())
    known = {str(Path(entry).resolve()) for entry in sys.path if entry}
    listed = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for folder in (f"{here}/src", here):
        if Path(folder).is_dir() and folder not in known:
            sys.path.insert(0, folder)
    return here not in {str(Path(entry).resolve()) for entry in listed if entry}


def _imported(name: str, target: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name != missing and not name.startswith(f"{missing}."):
            raise OptionError(
                f"{name} cannot be imported: it imports {missing}, which is not installed"
            ) from error
        where = f"; {Path.cwd()} and sys.path were searched"
        raise OptionError(
            f"there is no module {missing!r} (of {target!r}){where}. Run this where it can be "
            "imported, or set PYTHONPATH"
        ) from None
    except Exception as error:
        raise OptionError(f"importing {name} raised {type(error).__name__}: {error}") from error


def _no_such(holder: Any, module: str, word: str) -> str:
    """The message for a name that is not there, with those that are."""
    import difflib

    names = [
        name
        for name, value in vars(holder).items()
        if callable(value) and not name.startswith("_") and not isinstance(value, type)
    ]
    own = [name for name in names if getattr(vars(holder)[name], "__module__", "") == module]
    near = difflib.get_close_matches(word, names, 1)
    if near:
        return f"{module} has no function {word!r}; did you mean {near[0]}?"
    listed = (own or names)[:_LISTED]
    more = ", ..." if len(own or names) > _LISTED else ""
    return f"{module} has no function {word!r}; it has {', '.join(listed) or 'none'}{more}"


def _kind(value: Any) -> str:
    return "a class" if isinstance(value, type) else f"a value of type {type(value).__name__}"


def _references(module: ModuleType, attribute: str, function: Any) -> Iterator[str]:
    """The names that a reference may have and that the module has."""
    if "." in attribute:
        return
    bases = [attribute, *(attribute.replace(affix, "") for affix in _AFFIXES if affix in attribute)]
    for base in filter(None, bases):
        for pattern in REFERENCES:
            name = pattern.format(base)
            found = getattr(module, name, None)
            if callable(found) and found is not function and not isinstance(found, type):
                yield name


def _is_below(module: ModuleType, folder: Path) -> bool:
    """Whether the file of a module is in a folder, and not in an environment there."""
    file = getattr(module, "__file__", None)
    with suppress(ValueError):
        if file is not None:
            inside = Path(file).resolve().relative_to(folder.resolve())
            return "site-packages" not in inside.parts
    return False
