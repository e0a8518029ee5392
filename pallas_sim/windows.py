"""Windows: which elements of a reference an equation reads or writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pallas_sim.bitcasts import memory_under, window_of
from pallas_sim.chips import itemsize
from pallas_sim.dtypes import Array, bitcast_axis
from pallas_sim.errors import SimulationError
from pallas_sim.memory import Elements, Outside, Ref, Region, grid_of, numpy_index, repeated
from pallas_sim.transforms import (
    Aliased,
    AxisSlice,
    Bitcast,
    Expanded,
    Indexed,
    Listed,
    Operand,
    Reshaped,
    Transform,
    Transposed,
    Untiled,
)


def read(array: Array, transforms: Sequence[Transform], operands: Sequence[Any]) -> Array:
    """Return the elements of a window: a view where that is possible.

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
    """Return a bitcast and the index that follows it, which needs a part of memory only."""
    match transforms:
        case [Bitcast() as bitcast, Indexed() as indexed, *_] if not indexed.repeated:
            return bitcast, indexed
        case _:
            return None


def reading(transforms: Sequence[Transform]) -> Callable[[Array, Sequence[Any]], Array]:
    """Return ``read`` for these transforms, with what is known of them decided once.

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
    """Return ``read`` for one index: a slice or number for each axis, some of them operands."""
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
    """Return whether what ``read`` gave is memory itself, and no copy."""
    if part is memory or (part.base is not None and part.base is memory.base):
        return True
    return part.base is memory or np.may_share_memory(part, memory)


def region_of(
    part: Array, array: Array, transforms: Sequence[Transform], operands: Sequence[Any]
) -> Region:
    """Return the memory of a window that ``read`` gave: what it gave, unless that is a copy.

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
    """Return bytes of a window, which may reach beyond the memory.

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
            spans = [index.size for index in transform.indices if isinstance(index, AxisSlice)]
            joint = transform.joint
            sizes = [int(operands[s.position]) if isinstance(s, Operand) else s for s in spans]
            sizes += [int(operands[s.position]) if isinstance(s, Operand) else s for s in joint]
            total = width * math.prod(max(size, 0) for size in sizes)
    return total


def fixed_size(aval: Any, transforms: Sequence[Transform]) -> int | None:
    """Return the bytes of a window of a reference, or None if only its evaluation tells them.

    Args:
      aval: of the reference.
      transforms: from the memory to the window.
    """
    indexed = [transform for transform in transforms if isinstance(transform, Indexed)]
    sizes = [
        span.size
        for transform in indexed
        for span in transform.indices
        if isinstance(span, AxisSlice)
    ]
    joint = [size for transform in indexed for size in transform.joint]
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
    """Return the memory of a masked access, and the index of each element, also of masked ones.

    Args:
      array: the memory.
      window: of it; it may reach beyond the edge where it is masked.
      operands: of the equation.
      shape: of the window.
      mask: of the window.

    Raises:
      Outside: an element beyond the edge is not left out.
    """
    *outer, last = window or (Indexed.whole(array.shape),)
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


# Memory in another shape, order or dtype, as a view where that is possible, and the way back.


def applied(array: Array, transform: Transform, operands: Sequence[Any]) -> Array:
    """Return what a transform makes of memory: a view where that is possible.

    Raises:
      Outside: an index is beyond the edge.
      SimulationError: the transform is not known.
    """
    if isinstance(transform, Indexed):
        key = numpy_index(transform, array.shape, operands)
        return array[key] if not transform.repeated else repeated(array, transform, operands)[key]
    if isinstance(transform, Reshaped):
        return array.reshape(transform.shape)
    if isinstance(transform, Transposed):
        return array.transpose(transform.permutation)
    if isinstance(transform, Bitcast):
        return bitcast_rows(array, transform.dtype)
    if isinstance(transform, Untiled):
        return untiled(array, len(transform.tiling))
    if isinstance(transform, Expanded):
        rows, columns = array.shape[0], array.shape[1] // math.prod(transform.batch)
        parts = array.reshape(rows, *transform.batch, columns)
        return np.moveaxis(parts, 0, -2)
    if isinstance(transform, Aliased):
        return _aliased(array, transform)
    name = getattr(transform, "name", type(transform).__name__)
    raise SimulationError(f"the simulator does not know the transform {name}")


def untiled(array: Array, count: int) -> Array:
    """Return the tiles of the last ``count`` axes put together, a view where memory allows it."""
    outer = array.ndim - 2 * count
    pairs = [axis for number in range(outer, outer + count) for axis in (number, number + count)]
    moved = array.transpose(*range(outer), *pairs)
    return moved.reshape(
        *array.shape[:outer],
        *(array.shape[axis] * array.shape[axis + count] for axis in range(outer, outer + count)),
    )


def tiled(array: Array, tiling: Sequence[int]) -> Array:
    """Return a view of an array with its last axes in tiles; ``untiled`` of it is a view, too."""
    outer = array.ndim - len(tiling)
    pairs = [(size // t, t) for size, t in zip(array.shape[outer:], tiling, strict=True)]
    apart = array.reshape(*array.shape[:outer], *(size for pair in pairs for size in pair))
    moved = [*range(outer, apart.ndim, 2), *range(outer + 1, apart.ndim, 2)]
    return apart.transpose(*range(outer), *moved)


def _aliased(array: Array, part: Aliased) -> Array:
    """Return a part of a union of references.

    A byte of the union is an element of ``array``: of several bytes, where a part has elements of 4
    or 2 bits, of which each takes one. Wider elements of other parts are so far apart that they
    begin where those of 4 bits do with which they share memory.
    """
    dtype, count = np.dtype(part.dtype), len(part.tiling)
    number, step = math.prod(part.shape), int(itemsize(part.dtype) * array.itemsize)
    if part.offset * array.itemsize + number * step > array.nbytes:
        raise SimulationError(
            f"a part of a union of references of {dtype}{list(part.shape)} needs "
            f"{number * step // array.itemsize} bytes from byte {part.offset} on, and the union "
            f"has {array.size}"
        )
    memory = np.ndarray((number,), dtype, array, part.offset * array.itemsize, (step,))
    if not count:
        return memory.reshape(part.shape)
    outer = part.shape[: -2 * count]
    whole = [n * t for n, t in zip(part.shape[-2 * count : -count], part.tiling, strict=True)]
    return tiled(memory.reshape(*outer, *whole), part.tiling)


def undone(part: Array, transform: Transform, array: Array) -> Array:
    """Return the memory that a changed window belongs to."""
    if isinstance(transform, Bitcast):
        return bitcast_rows(part, array.dtype)
    if isinstance(transform, Transposed):
        return part.transpose(np.argsort(transform.permutation))
    if isinstance(transform, Untiled):
        return tiled(part, transform.tiling)
    assert isinstance(transform, Reshaped)
    return part.reshape(array.shape)


def bitcast_rows(array: Array, dtype: Any) -> Array:
    """Return the same bits as another dtype, as a TPU has them.

    Narrow elements are packed along the second last axis: rows 2i and 2i + 1 of a 16-bit array are
    row i of a 32-bit one, the first in the low bits (``pltpu.bitcast``).
    """
    return bitcast_axis(array, np.dtype(dtype), max(array.ndim - 2, 0))
