"""What scripts of failures import to find a function again that cannot be imported by a name."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any


def load(name: str, file: str) -> types.ModuleType:
    """The module ``name``, which only its file tells.

    Raises:
      ImportError: the file is no Python file, or raises when it is imported.
    """
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ImportError(f"{file} is no Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def nested(
    module: types.ModuleType,
    qualname: str,
    number: int = 0,
    *cells: Any,
    defaults: tuple[Any, ...] | None = None,
    keywords: dict[str, Any] | None = None,
) -> Any:
    """The function of a module that has no name there: in another function, or a lambda.

    Args:
      module: the module, whose source has not changed.
      qualname: of the function.
      number: counts those of one qualified name, from 0.
      cells: the values of its free variables.
      defaults: of its positional arguments.
      keywords: defaults of its keyword-only arguments.
    """

    def codes(code: types.CodeType) -> Any:
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                yield inner
                yield from codes(inner)

    file = str(module.__file__)
    whole = compile(Path(file).read_text(encoding="utf-8"), file, "exec", dont_inherit=True)
    code = [code for code in codes(whole) if code.co_qualname == qualname][number]
    closure = tuple(types.CellType(cell) for cell in cells)
    function = types.FunctionType(code, vars(module), code.co_name, defaults, closure)
    function.__kwdefaults__ = keywords
    return function
