"""Private names of JAX: a part of a reference, as an equation names it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pytest_pallas.compat.windows import Operand, Transform, transforms_in


@dataclass(frozen=True, slots=True)
class Place:
    """A part of a reference, as an equation names it.

    Attributes:
      position: of the reference among the operands.
      transforms: from the reference to the part.
      choices: the parts of references that an index chooses among, in place of all this, or ().
      chosen: that index.
    """

    position: int
    transforms: tuple[Transform, ...] = ()
    choices: tuple[Place, ...] = ()
    chosen: Operand | int = 0


def place_in(given: Any) -> Place:
    """A reference with its transforms, whose leaves are ``Operand``s."""
    if isinstance(given, Operand):
        return Place(given.position, ())
    if isinstance(given.ref, tuple):
        (select,) = given.transforms
        choices: tuple[Any, ...] = given.ref
        index = select.idx if isinstance(select.idx, Operand) else int(select.idx)
        return Place(-1, (), tuple(map(place_in, choices)), index)
    return Place(given.ref.position, transforms_in(given.transforms))
