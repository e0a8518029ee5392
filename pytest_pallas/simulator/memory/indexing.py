"""Indices of an equation as numpy has them, and which of them are beyond an edge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_pallas.simulator.memory.references import Ref
from pytest_pallas.transforms import AxisSlice, Indexed, Operand

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Outside(Exception):  # noqa: N818 - never leaves the simulator
    """An index reaches beyond the edge of an axis."""

    axis: int
    first: int
    last: int
    shape: tuple[int, ...]

    @classmethod
    def of(cls, axis: int, indices: Array, shape: tuple[int, ...]) -> Outside:
        """Of listed indices, from the lowest to the highest that is beyond the edge."""
        wrong = indices[(indices < 0) | (indices >= shape[axis])]
        return cls(axis, int(wrong.min()), int(wrong.max()), shape)


def repeated(array: Array, indexed: Indexed, operands: Sequence[Any]) -> Array:
    """The memory in which each axis with stride 0 has its one element as often as it is read."""
    for axis in indexed.repeated:
        span = indexed.indices[axis]
        assert isinstance(span, AxisSlice)
        start, size = (
            int(operands[each.position]) if isinstance(each, Operand) else each
            for each in (span.start, span.size)
        )
        shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])
        array = np.broadcast_to(array[(slice(None),) * axis + (slice(start, start + 1),)], shape)
    return array


def numpy_index(
    indexed: Indexed, shape: tuple[int, ...], operands: Sequence[Any]
) -> tuple[Any, ...]:
    """The index in numpy's form.

    Raises:
      Outside: it is beyond the edge of an axis.
    """
    key: list[Any] = []
    for axis, index in enumerate(indexed.indices):
        dim = shape[axis]
        if type(index) is AxisSlice:
            start: Any = index.start
            if type(start) is Operand:
                start = int(operands[start.position])
            size: Any = index.size
            if type(size) is Operand:
                size = int(operands[size.position])
            end = start + (size - 1) * index.stride + 1
            if size <= 0:
                key.append(slice(0, 0))
                continue
            if start < 0 or end > dim:
                raise Outside(axis, start, end - 1, shape)
            # What is repeated is made as long as the window before: see ``_repeated``.
            key.append(slice(start, end, index.stride) if index.stride else slice(0, size))
            continue
        value: Any = operands[index.position] if type(index) is Operand else index
        if isinstance(value, Ref):
            value = value.data
        if isinstance(value, int) or value.ndim == 0:
            value = int(value)
            if not 0 <= value < dim:
                raise Outside(axis, value, value, shape)
        elif value.size and (value.min() < 0 or value.max() >= dim):
            raise Outside.of(axis, value, shape)
        key.append(value)
    return tuple(key)


def grid_of(indexed: Indexed, operands: Sequence[Any], result: tuple[int, ...]) -> list[Array]:
    """The index of every element of a window along each axis, whether it is inside or not.

    Args:
      indexed: the window.
      operands: of the equation.
      result: shape of the window.
    """
    spans = [i for i, index in enumerate(indexed.indices) if isinstance(index, AxisSlice)]
    others = [i for i in range(len(indexed.indices)) if i not in spans]
    # As in numpy: the arrays' axes stand where the arrays are if those are adjacent, else first.
    joint = len(indexed.joint)
    adjacent = others == list(range(others[0], others[-1] + 1)) if others else True
    first = sum(1 for i in spans if others and i < others[0]) if adjacent else 0
    found: list[Array] = []
    for axis, index in enumerate(indexed.indices):
        shape = [1] * len(result)
        if isinstance(index, AxisSlice):
            place = spans.index(axis)
            place += joint if not adjacent or (others and place >= first) else 0
            start = index.start
            start = int(operands[start.position]) if isinstance(start, Operand) else start
            shape[place] = result[place]
            values = start + np.arange(result[place]) * index.stride
        else:
            given = operands[index.position] if isinstance(index, Operand) else index
            values = np.asarray(given).astype(np.int64)
            if values.ndim:
                shape[first : first + joint] = values.shape
        found.append(np.broadcast_to(values.reshape(shape), result))
    return found
