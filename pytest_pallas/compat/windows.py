"""Private names of JAX: how an equation says which part of a reference it reads or writes."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Operand:
    """A number or array that an equation gets when it is evaluated.

    Attributes:
      position: among the operands of the equation.
    """

    position: int


@dataclass(frozen=True, slots=True)
class Span:
    """A slice of one axis.

    Attributes:
      start: the first index.
      size: how many elements.
      stride: from one to the next.
    """

    start: int | Operand
    size: int | Operand
    stride: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A list of indices in memory, or in a register, that a copy reads.

    Attributes:
      position: of the reference, or the array, among the operands.
      transforms: from the reference to the list.
      ignored: an index that names nothing, or None.
    """

    position: int
    transforms: tuple[Transform, ...] = ()
    ignored: int | None = None


@dataclass(frozen=True, slots=True)
class Indexed:
    """One index for each axis: a slice, a number, or an array of indices.

    Attributes:
      indices: one for each axis.
      shape: of the reference that is indexed.
      joint: the common shape of the arrays of indices.
      repeated: the axes whose slice has stride 0: it is one element, again and again.
    """

    indices: tuple[Span | Operand | Listed | int, ...]
    shape: tuple[int, ...]
    joint: tuple[int | Operand, ...]
    repeated: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Reshaped:
    """The same elements in another shape."""

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Transposed:
    """The axes in another order."""

    permutation: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Bitcast:
    """The same bits as another dtype; the second last axis grows or shrinks."""

    dtype: Any


@dataclass(frozen=True, slots=True)
class Unknown:
    """A transform that is none of the others."""

    name: str


Transform = Indexed | Reshaped | Transposed | Bitcast | Unknown


def transforms_of(tree: Any, first: int, count: int) -> tuple[Transform, ...]:
    """The transforms that a pytree makes of the last operands of an equation.

    Seen in JAX 0.11.2 and 0.12.0.1.

    Args:
      tree: parameter ``tree`` of the equation.
      first: position of the first of these operands.
      count: how many there are.
    """
    util = importlib.import_module("jax.tree_util")
    leaves = [Operand(first + number) for number in range(count)]
    return transforms_in(util.tree_unflatten(tree, leaves))


def transforms_in(transforms: Any) -> tuple[Transform, ...]:
    """JAX's transforms of a reference as ours, without those that change nothing."""
    given: Sequence[Any] = transforms if isinstance(transforms, (tuple, list)) else (transforms,)
    found = (_transform(each) for each in given)
    return tuple(each for each in found if each is not None)


def _transform(transform: Any) -> Transform | None:
    kind = type(transform).__name__
    if kind == "NDIndexer":
        indices = tuple(map(_index, transform.indices))
        return Indexed(
            indices,
            tuple(transform.shape),
            tuple(transform.int_indexer_shape),
            tuple(
                axis
                for axis, index in enumerate(indices)
                if isinstance(index, Span) and index.stride == 0
            ),
        )
    if kind in ("ReshapeTransform", "RefReshaper"):
        return Reshaped(tuple(transform.shape))
    if kind in ("TransposeTransform", "RefTransposer"):
        return Transposed(tuple(transform.permutation))
    if kind in ("BitcastTransform", "RefBitcaster"):
        return Bitcast(transform.dtype)
    if kind in ("MemorySpaceCastTransform", "AccessAssumptionTransform"):
        return None
    return Unknown(kind)


def _index(index: Any) -> Span | Operand | Listed | int:
    if isinstance(index, Operand):
        return index
    if type(index).__name__ == "TransformedRef":
        return Listed(index.ref.position, transforms_in(index.transforms))
    if type(index).__name__ == "Indices":
        listed = _index(index.values)
        transforms = listed.transforms if isinstance(listed, Listed) else ()
        assert isinstance(listed, (Listed, Operand))
        return Listed(listed.position, transforms, index.ignored_value)
    if hasattr(index, "stride") and hasattr(index, "start"):
        return Span(_number(index.start), _number(index.size), int(index.stride))
    return _number(index)


def _number(value: Any) -> Any:
    return value if isinstance(value, Operand) else int(value)
