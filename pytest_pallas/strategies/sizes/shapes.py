"""The shape language: ``"m k, k n"`` are two matrices that share ``k``.

Grammar, where a name is an ASCII identifier and an integer is positive::

    shapes = array {"," array} [";" constraint {("," | ";") constraint}]
    array  = {dim} | "()"          (without dims it is a scalar)
    dim    = name | integer

A ``;`` ends the arrays. After it come constraints (see ``constraints``), which may have names of
their own: in ``"b h q d, b g k d; h = g*r, q <= k"`` there is a size ``r`` that no array has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from pytest_pallas.errors import ShapeLanguageError
from pytest_pallas.strategies.sizes.constraints import Constraint, parse_constraint

#: Reserved words of a recipe, which cannot be dims.
RESERVED = frozenset({"dtype", "values", "seed"})

_TOKEN = re.compile(r"\(\)|,|[^\s,()]+|[()]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)
_INTEGER = re.compile(r"[0-9]+", re.ASCII)


@dataclass(frozen=True)
class ShapeSpec:
    """Shapes of some arrays with named sizes.

    Attributes:
      text: its source text.
      arrays: per array its dims, each a name or a size; ``()`` for a scalar.
      constraints: what must hold between the sizes.
    """

    text: str
    arrays: tuple[tuple[str | int, ...], ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the dims, each once, in order of appearance."""
        found = (dim for array in self.arrays for dim in array if isinstance(dim, str))
        return tuple(dict.fromkeys(found))

    @property
    def variables(self) -> tuple[str, ...]:
        """``names``, and after them the names that only constraints have."""
        more = (name for constraint in self.constraints for name in constraint.names)
        return tuple(dict.fromkeys((*self.names, *more)))


def parse(text: str) -> ShapeSpec:
    """Parse shapes such as ``"b q d, b k d; q <= k"``, ``"m 128, "`` or ``"()"``.

    Example::

        parse("m k, k n, ()").arrays == (("m", "k"), ("k", "n"), ())

    Raises:
      ShapeLanguageError: the text is wrong; the message has a caret under the position.
    """
    if not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ShapeLanguageError(
            f"shapes must be a string such as 'm k, k n', not {type(text).__name__} {text!r}"
        )
    arrays: list[tuple[str | int, ...]] = []
    dims: list[str | int] = []
    scalar_at: int | None = None
    end = text.find(";") if ";" in text else len(text)
    for match in _TOKEN.finditer(text, 0, end):
        token, position = match.group(), match.start()
        if token == ",":
            arrays.append(tuple(dims))
            dims, scalar_at = [], None
        elif token == "()":
            if dims or scalar_at is not None:
                raise _error(
                    text, position, ("'()' is a scalar and must stand alone; put a comma here")
                )
            scalar_at = position
        elif scalar_at is not None:
            raise _error(text, position, "a dim after '()', which is a scalar; put a comma here")
        else:
            dims.append(_dim(text, token, position))
    arrays.append(tuple(dims))
    return ShapeSpec(text, tuple(arrays), tuple(_constraints(text, end)))


def concrete(shapes: ShapeSpec, sizes: Mapping[str, int]) -> tuple[tuple[int, ...], ...]:
    """The shape of every array, given the size of every name in ``shapes.names``."""
    return tuple(
        tuple(sizes[dim] if isinstance(dim, str) else dim for dim in array)
        for array in shapes.arrays
    )


def _dim(text: str, token: str, position: int) -> str | int:
    """The dim that ``token`` stands for."""
    if _INTEGER.fullmatch(token):
        if int(token) == 0:
            problem = "a size must be at least 1; for empty arrays name the dim and pass min_dim=0"
            raise _error(text, position, problem)
        return int(token)
    if not _NAME.fullmatch(token):
        problem = f"{token!r} is not a dim; a dim is a name or a positive integer"
        raise _error(text, position, problem)
    if token in RESERVED:
        raise _error(text, position, f"{token!r} is a reserved word of the recipe; rename the dim")
    return token


def _constraints(text: str, end: int) -> Iterator[Constraint]:
    """The constraints that follow the arrays, which end at ``end``."""
    for match in re.finditer(r"[,;]([^,;]*)", text[end:]):
        part = match[1]
        position = end + match.start(1) + len(part) - len(part.lstrip())
        try:
            constraint = parse_constraint(part)
        except ValueError as error:
            raise _error(text, position, str(error)) from None
        for name in constraint.names:
            if not _NAME.fullmatch(name) or name in RESERVED:
                raise _error(text, position, f"{name!r} cannot be the name of a dim; rename it")
        yield constraint


def _error(text: str, position: int, problem: str) -> ShapeLanguageError:
    """An error that shows ``text`` on one line with a caret at ``position``."""
    line = re.sub(r"\s", " ", text)
    return ShapeLanguageError(f"shapes: {problem}\n    {line}\n    {' ' * position}^")
