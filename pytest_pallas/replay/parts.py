"""Find a function again that has no name in its module. Scripts of failures import this."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def load(name: str, file: str) -> types.ModuleType:
    """Import a module from its file, because its name does not lead there.

    Raises:
      ImportError: the file is no Python file, or raises when it is imported.
    """
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def compiled(file: str, qualname: str) -> list[types.CodeType]:
    """Compile the code of all functions with a qualified name, in the order of the source.

    Raises:
      OSError, SyntaxError, ValueError: the file cannot be read or compiled.
    """

    def nested_in(code: types.CodeType) -> Iterator[types.CodeType]:
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                yield inner
                yield from nested_in(inner)

    whole = compile(Path(file).read_text(encoding="utf-8"), file, "exec", dont_inherit=True)
    return [code for code in nested_in(whole) if code.co_qualname == qualname]


def nested(
    module: types.ModuleType,
    qualname: str,
    number: int = 0,
    *cells: Any,
    defaults: tuple[Any, ...] | None = None,
    keywords: dict[str, Any] | None = None,
) -> Any:
    """Make the function of a module that has no name there: in another function, or a lambda.

    Args:
      module: the module, whose source has not changed.
      qualname: of the function.
      number: counts those of one qualified name, from 0.
      cells: the values of its free variables.
      defaults: of its positional arguments.
      keywords: defaults of its keyword-only arguments.
    """
    code = compiled(str(module.__file__), qualname)[number]
    closure = tuple(types.CellType(cell) for cell in cells)
    function = types.FunctionType(code, vars(module), code.co_name, defaults, closure)
    function.__kwdefaults__ = keywords
    return function
