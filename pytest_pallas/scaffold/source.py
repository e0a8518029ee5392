"""What the source of a function says of its parameters: names of axes, and keys of pytrees."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

#: Attributes of arrays and dicts: a parameter that has only these is no pytree of its own.
_OF_ARRAYS = frozenset(
    {*("shape", "dtype", "ndim", "size", "nbytes", "T", "mT", "at", "real", "imag", "itemsize")}
    | {*("astype", "reshape", "transpose", "sum", "max", "min", "mean", "ravel", "flatten", "copy")}
    | {*("items", "keys", "values", "get", "swapaxes", "view", "squeeze", "sharding", "weak_type")}
)


@dataclass
class Reading:
    """What the source says.

    Attributes:
      axes: names of the axes of a parameter, as in ``m, k = x.shape``; "" where it names none.
      keys: keys with which a parameter is indexed, as in ``params["w"]``.
      attributes: attributes that are read of it, as in ``params.w``, and that arrays lack.
      items: how many items it is divided into, as in ``q, k, v = qkv``.
    """

    axes: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    keys: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    attributes: dict[str, list[str]] = field(default_factory=dict[str, list[str]])
    items: dict[str, int] = field(default_factory=dict[str, int])


def innermost(function: Callable[..., Any]) -> Any:
    """The function that was decorated, jitted or bound by ``functools.partial``."""
    found: Any = function
    while isinstance(found, functools.partial):
        found = found.func
    found = inspect.unwrap(found)
    return inspect.unwrap(found.func) if isinstance(found, functools.partial) else found


def read(function: Callable[..., Any]) -> Reading:
    """What the source of a function says; nothing if there is none."""
    try:
        text = textwrap.dedent(inspect.getsource(innermost(function)))
        tree = ast.parse(text)
    except (OSError, TypeError, SyntaxError, IndentationError):
        return Reading()
    found = Reading()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for names, value in _pairs(target, node.value):
                    _assignment(found, names, value)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            key = node.slice
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                _append(found.keys, node.value.id, key.value)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.value, ast.Name)
            and node.attr not in _OF_ARRAYS
        ):
            _append(found.attributes, node.value.id, node.attr)
    return found


def _pairs(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    """The single assignments of ``(m, k), (_, n) = x.shape, y.shape``."""
    if (
        isinstance(target, ast.Tuple)
        and isinstance(value, ast.Tuple)
        and len(target.elts) == len(value.elts)
    ):
        for one, other in zip(target.elts, value.elts, strict=True):
            yield from _pairs(one, other)
    else:
        yield target, value


def _assignment(found: Reading, target: ast.expr, value: ast.expr) -> None:
    """Note what ``m, k = x.shape`` or ``q, k, v = qkv`` says."""
    if not isinstance(target, (ast.Tuple, ast.List)):
        return
    if any(isinstance(each, ast.Starred) for each in target.elts):
        return
    if isinstance(value, ast.Name):
        found.items.setdefault(value.id, len(target.elts))
        return
    if not isinstance(value, ast.Attribute) or value.attr != "shape":
        return
    if isinstance(value.value, ast.Name):
        names = [each.id if isinstance(each, ast.Name) else "" for each in target.elts]
        found.axes.setdefault(value.value.id, tuple(name.strip("_") for name in names))


def _append(found: dict[str, list[str]], name: str, word: str) -> None:
    words = found.setdefault(name, [])
    if word not in words:
        words.append(word)
