"""Windows: which elements of a reference an equation reads or writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.memory.bitcasts import memory_under, window_of
from pytest_pallas.simulator.memory.indexing import Outside, grid_of, numpy_index
from pytest_pallas.simulator.memory.references import Elements, Ref, Region
from pytest_pallas.simulator.memory.reshaping import applied, bitcast_rows, undone
from pytest_pallas.transforms import (
    AxisSlice,
    Bitcast,
    Indexed,
    Listed,
    Operand,
    Transform,
)

Array = np.ndarray[Any, Any]


def read(array: Array, transforms: Sequence[Transform], operands: Sequence[Any]) -> Array:
    """The elements of a window: a view where that is possible.

    Args:
      array: the memory.
      transforms: from the memory to the window.
      operands: of the equation, which dynamic indices are taken from.

    Raises:
      Outside: an index is beyond the edge.
    """
    todo = iter(enumerate(transforms))
    for number, transform in todo:
        pair = _indexed_bitcast(transforms[number : number + 2])
        if pair is not None:
            next(todo)
            array, key = window_of(array, *pair, operands)
            array = bitcast_rows(array, pair[0].dtype)[key]
        else:
            array = applied(array, transform, operands)
    return array


def _indexed_bitcast(transforms: Sequence[Transform]) -> tuple[Bitcast, Indexed] | None:
    """A bitcast and the index that follows it, which needs a part of memory only."""
    match transforms:
        case [Bitcast() as bitcast, Indexed() as indexed, *_] if not indexed.repeated:
            return bitcast, indexed
        case _:
            return None


def reading(transforms: Sequence[Transform]) -> Callable[[Array, Sequence[Any]], Array]:
    """``read`` for these transforms, with what is known of them decided once.

    Args:
      transforms: from the memory to the window.
    """
    if not transforms:
        return lambda array, operands: array
    last = transforms[-1]
    if len(transforms) > 1 or not isinstance(last, Indexed) or last.repeated:
        return lambda array, operands: read(array, transforms, operands)
    return _reading(last)


def _reading(indexed: Indexed) -> Callable[[Array, Sequence[Any]], Array]:
    """``read`` for one index: a slice or a number for each axis, of which some are operands."""
    template: list[Any] = [None] * len(indexed.indices)
    spans: list[tuple[int, int, int, int, int]] = []
    scalars: list[tuple[int, int, int]] = []
    for axis, (index, dim) in enumerate(zip(indexed.indices, indexed.shape, strict=False)):
        if isinstance(index, Operand):
            scalars.append((axis, index.position, dim))
        elif isinstance(index, Listed):
            return lambda array, operands: read(array, (indexed,), operands)
        elif isinstance(index, AxisSlice) and isinstance(index.start, Operand):
            if isinstance(index.size, Operand) or index.size <= 0:
                return lambda array, operands: read(array, (indexed,), operands)
            reach = (index.size - 1) * index.stride + 1
            spans.append((axis, index.start.position, reach, index.stride, dim))
        else:
            try:
                alone = Indexed((index,), (dim,), ())
                (template[axis],) = numpy_index(alone, (dim,), ())
            except (Outside, IndexError):  # the size is an operand, or the run will reject it
                return lambda array, operands: read(array, (indexed,), operands)

    def read_it(array: Array, operands: Sequence[Any]) -> Array:
        if array.shape != indexed.shape:
            return read(array, (indexed,), operands)
        key = template.copy()
        for axis, position, reach, stride, dim in spans:
            start = int(operands[position])
            if start < 0 or start + reach > dim:
                raise Outside(axis, start, start + reach - 1, array.shape)
            key[axis] = slice(start, start + reach, stride)
        for axis, position, dim in scalars:
            value = operands[position]
            if type(value) is Ref or value.ndim:  # an array of indices, or memory that has it
                return read(array, (indexed,), operands)
            value = int(value)
            if not 0 <= value < dim:
                raise Outside(axis, value, value, array.shape)
            key[axis] = value
        return array[tuple(key)]

    return read_it


def is_view(part: Array, memory: Array) -> bool:
    """Whether what ``read`` gave is memory itself, and no copy."""
    if part is memory or (part.base is not None and part.base is memory.base):
        return True
    return part.base is memory or np.may_share_memory(part, memory)


def region_of(
    part: Array, array: Array, transforms: Sequence[Transform], operands: Sequence[Any]
) -> Region:
    """The memory of a window that ``read`` gave: what it gave, unless that is a copy.

    Args:
      part: what ``read`` gave.
      array: the memory.
      transforms: from the memory to the window.
      operands: of the equation.
    """
    if np.may_share_memory(part, array):
        return part
    for number, transform in enumerate(transforms):
        if isinstance(transform, Bitcast):
            memory = read(array, transforms[:number], operands)
            under = memory_under(memory, transform, transforms[number + 1 :], operands)
            return part if under is None else under
    while transforms and not isinstance(transforms[-1], Indexed):
        transforms = transforms[:-1]  # the same elements in another shape
        part = read(array, transforms, operands)
        if np.may_share_memory(part, array):
            return part
    last = transforms[-1] if transforms else None
    if not isinstance(last, Indexed):
        return part
    memory = read(array, transforms[:-1], operands)
    if not np.ndim(part):
        return memory[(*numpy_index(last, memory.shape, operands), ...)]
    axes = grid_of(last, operands, part.shape)
    return Elements(memory, tuple(axis.ravel() for axis in axes))


def write(
    array: Array,
    transforms: Sequence[Transform],
    operands: Sequence[Any],
    change: Callable[[Array], Any],
) -> None:
    """Change the elements of a window.

    Args:
      array: the memory.
      transforms: from the memory to the window.
      operands: of the equation.
      change: gives the new elements of the window for the old ones.

    Raises:
      Outside: an index is beyond the edge.
    """
    if not transforms:
        array[...] = change(array)
        return
    first, rest = transforms[0], transforms[1:]
    if isinstance(first, Indexed) and first.repeated:
        raise SimulationError("a store with stride 0 writes one element several times")
    if isinstance(first, Indexed):
        key = numpy_index(first, array.shape, operands)
        if not rest:
            array[key] = change(array[key])
            return
        part = array[key]
        write(part, rest, operands, change)
        if not np.may_share_memory(part, array):
            array[key] = part
        return
    pair = _indexed_bitcast(transforms)
    if pair is not None:
        near, key = window_of(array, *pair, operands)
        wide = bitcast_rows(near, pair[0].dtype)
        part = wide[key]
        if len(rest) == 1:
            wide[key] = change(part)
        else:
            write(part, rest[1:], operands, change)
            if not np.may_share_memory(part, wide):
                wide[key] = part
        if not np.may_share_memory(wide, near):
            near[...] = bitcast_rows(wide, near.dtype)
        return
    part = applied(array, first, operands)
    if not np.may_share_memory(part, array):
        write(part, rest, operands, change)
        array[...] = undone(part, first, array)
        return
    write(part, rest, operands, change)


def size_in_bytes(ref: Ref, transforms: Sequence[Transform], operands: Sequence[Any]) -> int:
    """Bytes of a window, which may reach beyond the memory.

    Args:
      ref: the memory.
      transforms: from the memory to the window.
      operands: of the equation.
    """
    width = ref.dtype.itemsize
    total = math.prod(ref.shape) * width
    for transform in transforms:
        if isinstance(transform, Bitcast):
            width = np.dtype(transform.dtype).itemsize
        if isinstance(transform, Indexed):
            spans = [each.size for each in transform.indices if isinstance(each, AxisSlice)]
            joint = transform.joint
            sizes = [int(operands[s.position]) if isinstance(s, Operand) else s for s in spans]
            sizes += [int(operands[s.position]) if isinstance(s, Operand) else s for s in joint]
            total = width * math.prod(max(size, 0) for size in sizes)
    return total


def fixed_size(aval: Any, transforms: Sequence[Transform]) -> int | None:
    """Bytes of a window of a reference, or None where they are known only when it is evaluated.

    Args:
      aval: of the reference.
      transforms: from the memory to the window.
    """
    indexed = [each for each in transforms if isinstance(each, Indexed)]
    sizes = [span.size for each in indexed for span in each.indices if isinstance(span, AxisSlice)]
    joint = [size for each in indexed for size in each.joint]
    if any(isinstance(size, Operand) for size in (*sizes, *joint)):
        return None
    if not isinstance(aval.dtype, np.dtype):
        return None
    memory = np.broadcast_to(np.zeros((), aval.dtype), aval.shape)
    return size_in_bytes(Ref(memory), transforms, ())


def masked(
    array: Array,
    window: Sequence[Transform],
    operands: Sequence[Any],
    shape: tuple[int, ...],
    mask: Any,
) -> tuple[Array, tuple[Array, ...]]:
    """The memory of a masked access, and the index of each element, which the mask may leave out.

    Args:
      array: the memory.
      window: of it; it may reach beyond the edge where it is masked.
      operands: of the equation.
      shape: of the window.
      mask: of the window.

    Raises:
      Outside: an element beyond the edge is not left out.
    """
    whole = Indexed(tuple(AxisSlice(0, size, 1) for size in array.shape), array.shape, ())
    *outer, last = window or (whole,)
    if not isinstance(last, Indexed):
        raise SimulationError("a masked access to a reshaped reference cannot be simulated")
    memory = read(array, outer, operands)
    if outer and not np.may_share_memory(memory, array):
        raise SimulationError("a masked access to a reference that is indexed twice by arrays")
    axes = grid_of(last, operands, shape)
    chosen = np.broadcast_to(mask, shape)
    key: list[Array] = []
    for number, (axis, dim) in enumerate(zip(axes, memory.shape, strict=True)):
        used = axis[chosen]
        if used.size and (used.min() < 0 or used.max() >= dim):
            raise Outside.of(number, used, memory.shape)
        key.append(np.clip(axis, 0, max(dim - 1, 0)))
    return memory, tuple(key)
