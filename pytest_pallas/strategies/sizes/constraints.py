"""Constraints between dims: ``"h = g*r"``, ``"q < k <= 2*q"``, ``"k % 8 = 0"``.

They are comparisons of integers, dims and their sums, differences, products, quotients (``//``)
and remainders (``%``), in Python's own syntax, except that ``=`` may stand for ``==``.
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

_ARITHMETIC: dict[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[int, int], bool]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}

# A single "=" that is no part of another comparison.
_EQUALS = re.compile(r"(?<![<>=!])=(?!=)")


@dataclass(frozen=True)
class Constraint:
    """A comparison between dims.

    Attributes:
      text: its source text.
      names: the dims in it, each once, in order of appearance.
      defines: the dim that stands alone left of the only ``=``, and nowhere right of it.
      comparison: its syntax tree.
    """

    text: str
    names: tuple[str, ...]
    defines: str | None
    comparison: ast.Compare = field(repr=False, compare=False)


def parse_constraint(text: str) -> Constraint:
    """Parse one constraint.

    Raises:
      ValueError: it is not a constraint; the message has the reason.
    """
    try:
        parsed = ast.parse(_EQUALS.sub("==", text.strip()), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        parsed = None
    if not isinstance(parsed, ast.Compare):
        raise ValueError(
            f"{text.strip()!r} is not a constraint; a constraint compares dims, such as "
            "'h = g*r', 'q < k' or 'k % 8 = 0'"
        )
    for side in _sides(parsed):
        for node in ast.walk(side):
            _check(node)
    for comparison in parsed.ops:
        _check(comparison)
    names = [name for side in _sides(parsed) for name in _names(side)]
    left, right = parsed.left, parsed.comparators[0]
    alone = len(parsed.ops) == 1 and isinstance(parsed.ops[0], ast.Eq)
    defines = None
    if alone and isinstance(left, ast.Name) and left.id not in _names(right):
        defines = left.id
    return Constraint(text.strip(), tuple(dict.fromkeys(names)), defines, parsed)


def holds(constraint: Constraint, sizes: Mapping[str, int]) -> bool:
    """Whether ``sizes``, with a size for each of its names, satisfy a constraint.

    One that divides by zero is not satisfied.
    """
    try:
        values = [_value(side, sizes) for side in _sides(constraint.comparison)]
    except ZeroDivisionError:
        return False
    pairs = zip(constraint.comparison.ops, values[:-1], values[1:], strict=True)
    return all(_COMPARISONS[type(op)](left, right) for op, left, right in pairs)


def defined(constraint: Constraint, sizes: Mapping[str, int]) -> int | None:
    """The size that a constraint gives to the dim that it defines, or None if it divides by 0."""
    try:
        return _value(constraint.comparison.comparators[0], sizes)
    except ZeroDivisionError:
        return None


def definitions(
    constraints: Iterable[Constraint], known: Iterable[str]
) -> tuple[Sequence[Constraint], Sequence[Constraint]]:
    """Split constraints into those that define dims, in order of evaluation, and the rest.

    A dim is defined at most once, not if it is in ``known``, and not by way of itself.
    """
    defining: dict[str, Constraint] = {}
    rest: list[Constraint] = []
    for constraint in constraints:
        name = constraint.defines
        if name is None or name in known or name in defining or _leads(constraint, name, defining):
            rest.append(constraint)
        else:
            defining[name] = constraint
    ordered: list[Constraint] = []
    while len(ordered) < len(defining):
        waiting = [name for name, c in defining.items() if c not in ordered]
        ordered += [
            defining[name]
            for name in waiting
            if not any(other in waiting for other in defining[name].names if other != name)
        ]
    return ordered, rest


def _leads(constraint: Constraint, goal: str, defining: Mapping[str, Constraint]) -> bool:
    """Whether what a constraint computes with is itself computed with ``goal``."""
    used = [name for name in constraint.names if name in defining]
    return any(
        goal in defining[name].names or _leads(defining[name], goal, _without(defining, name))
        for name in used
    )


def _without(defining: Mapping[str, Constraint], name: str) -> Mapping[str, Constraint]:
    return {other: constraint for other, constraint in defining.items() if other != name}


def _check(node: ast.AST) -> None:
    """Raise a ValueError if a part of a comparison is not in the language."""
    allowed = (ast.BinOp, ast.Name, ast.Load, *_ARITHMETIC, *_COMPARISONS)
    if isinstance(node, allowed):
        return
    if isinstance(node, ast.Constant) and type(node.value) is int:
        return
    if isinstance(node, ast.Div):
        raise ValueError("'/' is not allowed for sizes; write '//'")
    raise ValueError(
        "a constraint may have dims, integers, + - * // % and comparisons, but not "
        f"{type(node).__name__.lower()}"
    )


def _names(node: ast.AST) -> list[str]:
    return [part.id for part in ast.walk(node) if isinstance(part, ast.Name)]


def _sides(comparison: ast.Compare) -> list[ast.expr]:
    return [comparison.left, *comparison.comparators]


def _value(node: Any, sizes: Mapping[str, int]) -> int:
    if isinstance(node, ast.Name):
        return sizes[node.id]
    if isinstance(node, ast.Constant):
        return cast("int", node.value)
    return _ARITHMETIC[type(node.op)](_value(node.left, sizes), _value(node.right, sizes))
