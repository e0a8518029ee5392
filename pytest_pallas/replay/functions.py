"""Where a function is to be found again: by a name that can be imported, or by its source."""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: Public modules whose names are looked up, for what lives in a private one (``jax.nn.silu``).
_PUBLIC = (
    "pytest_pallas",
    "pallas_sim",
    "jax.numpy",
    "jax.nn",
    "jax.lax",
    "jax.scipy.special",
    "jax.scipy.linalg",
    "jax.random",
    "jax.experimental.pallas",
    "jax.experimental.pallas.tpu",
    "jax.experimental.pallas.mosaic_gpu",
    "jax",
    "numpy",
    "math",
    "operator",
    "builtins",
)


#: Where what is found there was defined.
_HOMES = (
    *("", "jax", "numpy", "math", "builtins", "_operator", "jaxlib", "ml_dtypes"),
    "pytest_pallas",
    "pallas_sim",
)


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where a function is.

    Attributes:
      module: name of its module.
      folder: from which that can be imported; "" if it must be loaded from its file.
      file: of the module.
      attribute: dotted name in the module, or of a method; "" for a nested function.
      qualname: of a nested function.
      number: which of those with this qualified name, in the order of the source.
      cells: values of its free variables.
      owner: the object of a bound method.
      wrapped: what to use in its place.
    """

    module: str = ""
    folder: str = ""
    file: str = ""
    attribute: str = ""
    qualname: str = ""
    number: int = 0
    cells: tuple[Any, ...] = ()
    owner: Any = None
    wrapped: Any = None


def public_name(value: Any) -> str:
    """The name of something public of JAX, numpy, Python or this package; else ""."""
    home = str(getattr(value, "__module__", None) or "").partition(".")[0]
    if home not in _HOMES:
        return ""
    for name in _PUBLIC:
        module = sys.modules.get(name)
        own = getattr(value, "__name__", "")
        if module is not None and own and getattr(module, own, None) is value:
            return f"{name}.{own}"
    return ""


def find(value: Any) -> Place | None:
    """Where a function, class or object of a module is; None if it cannot be found again."""
    if isinstance(value, types.MethodType):
        return Place(owner=value.__self__, attribute=value.__name__)
    module = sys.modules.get(str(getattr(value, "__module__", None)))
    file = getattr(module, "__file__", None)
    if module is None or file is None or Path(file).suffix != ".py":
        return None
    name, folder = module.__name__, folder_of(module.__name__, Path(file))
    attribute = _attribute(module, value)
    if attribute:
        return Place(module=name, folder=folder, file=file, attribute=attribute)
    if hasattr(value, "lower") and hasattr(value, "__wrapped__"):
        return Place(wrapped=value.__wrapped__)  # jax.jit
    if not isinstance(value, types.FunctionType):
        return None
    return _nested(value, name, folder, file)


def folder_of(module: str, file: Path) -> str:
    """The folder from which a module is imported by its name, or "" if there is none."""
    path = file.parent if file.name == "__init__.py" else file.with_suffix("")
    names = module.split(".")
    if list(path.parts[-len(names) :]) != names or module == "__main__":
        return ""
    return str(path.parents[len(names) - 1])


def variable(module: str) -> str:
    """What a script calls a module."""
    return re.sub(r"\W", "_", module) + "_module"


def describe(value: Any) -> str:
    """A value in a few words, and where it was defined."""
    code: Any = getattr(value, "__code__", None)
    name = getattr(value, "__qualname__", None) or f"{value!r:.80}"
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code is not None else name


def _attribute(module: types.ModuleType, value: Any) -> str:
    """The name that a module has for something: its own, or a global that holds it."""
    found: Any = module
    qualname = str(getattr(value, "__qualname__", ""))
    for name in qualname.split("."):
        found = getattr(found, name, None)
    if found is value and qualname:
        return qualname
    return next((n for n, each in vars(module).items() if each is value and n.isidentifier()), "")


def _nested(function: types.FunctionType, name: str, folder: str, file: str) -> Place | None:
    """A function that its module has no name for, by its code in the compiled source."""
    try:
        cells = tuple(cell.cell_contents for cell in function.__closure__ or ())
        whole = compile(Path(file).read_text(encoding="utf-8"), file, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return None
    code = function.__code__
    same = [each for each in _codes(whole) if each.co_qualname == code.co_qualname]
    fits = [
        number
        for number, each in enumerate(same)
        if each.co_firstlineno == code.co_firstlineno
        and each.co_freevars == code.co_freevars
        and each.co_varnames[: each.co_argcount] == code.co_varnames[: code.co_argcount]
    ]
    if len(fits) > 1:
        content = (code.co_code, code.co_consts, code.co_names)
        fits = [
            n for n in fits if content == (same[n].co_code, same[n].co_consts, same[n].co_names)
        ]
    if not fits or inspect.unwrap(function) is not function:
        return None
    return Place(
        module=name,
        folder=folder,
        file=file,
        qualname=code.co_qualname,
        number=fits[0],
        cells=cells,
    )


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield inner
            yield from _codes(inner)
