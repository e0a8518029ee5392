"""The function that is the body of a ``plgpu.kernel``."""

from __future__ import annotations

import ast
import functools
import linecache
from typing import Any

from pytest_pallas.compat.source import home_of


def body_of(jaxpr: Any) -> tuple[str, tuple[str, ...]]:
    """The name of the body of a ``plgpu.kernel``, and those of its positional parameters.

    JAX wraps the body in a function of ``*refs``, which runs it in a scope; the scope says where
    its function is defined. ("", ()) if that is not known.
    """
    name, file, line = home_of(jaxpr)
    if not line:
        return name, ()
    try:
        tree = _parsed(file)
    except (OSError, SyntaxError, ValueError):
        return name, ()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
            if line in (first, node.lineno):
                return name, tuple(each.arg for each in (*node.args.posonlyargs, *node.args.args))
    return name, ()


@functools.cache
def _parsed(file: str) -> ast.Module:
    return ast.parse("".join(linecache.getlines(file)))
