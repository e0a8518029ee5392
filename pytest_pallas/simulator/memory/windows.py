"""Windows: which elements of a reference an equation reads or writes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pytest_pallas.devices.capacities import itemsize
from pytest_pallas.errors import SimulationError
from pytest_pallas.simulator.arithmetic.dtypes import bitcast_axis
from pytest_pallas.simulator.memory.references import Elements, Ref, Region
from pytest_pallas.transforms import (
    Aliased,
    Bitcast,
    Expanded,
    Indexed,
    Listed,
    Operand,
    Reshaped,
    Span,
    Transform,
    Transposed,
    Untiled,
)

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, slots=True)
class Outside(Exception):  # noqa: N818 - never leaves the simulator
    """An index reaches beyond the edge of an axis."""

    axis: int
    first: int
    last: int
    shape: tuple[int, ...]


def read(array: Array, transforms: Sequence[Transform], operands: Sequence[Any]) -> Array:
    """The elements of a window: a view where that is possible.

    Args:
      array: the memory.
      transforms: from the memory to the window.
      operands: of the equation, which dynamic indices are taken from.

    Raises:
      Outside: an index is beyond the edge.
    """
    for transform in transforms:
        array = _applied(array, transform, operands)
    return array


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
        elif isinstance(index, Span) and isinstance(index.start, Operand):
            if isinstance(index.size, Operand) or index.size <= 0:
                return lambda array, operands: read(array, (indexed,), operands)
            reach = (index.size - 1) * index.stride + 1
            spans.append((axis, index.start.position, reach, index.stride, dim))
        else:
            try:
                alone = Indexed((index,), (dim,), ())
                (template[axis],) = _key(alone, (dim,), ())
            except (Outside, IndexError):  # the size is an operand, or the run will refuse it
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
    last = transforms[-1] if transforms else None
    if not isinstance(last, Indexed):
        return part
    memory = read(array, transforms[:-1], operands)
    if not np.ndim(part):
        return memory[(*_key(last, memory.shape, operands), ...)]
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
        key = _key(first, array.shape, operands)
        if not rest:
            array[key] = change(array[key])
            return
        part = array[key]
        write(part, rest, operands, change)
        if not np.may_share_memory(part, array):
            array[key] = part
        return
    part = _applied(array, first, operands)
    if not np.may_share_memory(part, array):
        write(part, rest, operands, change)
        array[...] = _undone(part, first, array)
        return
    write(part, rest, operands, change)


def _applied(array: Array, transform: Transform, operands: Sequence[Any]) -> Array:
    if isinstance(transform, Indexed):
        key = _key(transform, array.shape, operands)
        return array[key] if not transform.repeated else _repeated(array, transform, operands)[key]
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
    """The tiles of the last ``count`` axes put together: a view where memory was made for it."""
    outer = array.ndim - 2 * count
    pairs = [axis for number in range(outer, outer + count) for axis in (number, number + count)]
    moved = array.transpose(*range(outer), *pairs)
    return moved.reshape(
        *array.shape[:outer],
        *(array.shape[axis] * array.shape[axis + count] for axis in range(outer, outer + count)),
    )


def tiled(array: Array, tiling: Sequence[int]) -> Array:
    """A view of an array with its last axes in tiles; ``untiled`` of it is a view of it, too."""
    outer = array.ndim - len(tiling)
    pairs = [(size // t, t) for size, t in zip(array.shape[outer:], tiling, strict=True)]
    apart = array.reshape(*array.shape[:outer], *(size for pair in pairs for size in pair))
    moved = [*range(outer, apart.ndim, 2), *range(outer + 1, apart.ndim, 2)]
    return apart.transpose(*range(outer), *moved)


def _aliased(array: Array, part: Aliased) -> Array:
    """A part of a union of references.

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


def _repeated(array: Array, indexed: Indexed, operands: Sequence[Any]) -> Array:
    """The memory in which each axis with stride 0 has its one element as often as it is read."""
    for axis in indexed.repeated:
        span = indexed.indices[axis]
        assert isinstance(span, Span)
        start, size = (
            int(operands[each.position]) if isinstance(each, Operand) else each
            for each in (span.start, span.size)
        )
        shape = (*array.shape[:axis], size, *array.shape[axis + 1 :])
        array = np.broadcast_to(array[(slice(None),) * axis + (slice(start, start + 1),)], shape)
    return array


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
            spans = [each.size for each in transform.indices if isinstance(each, Span)]
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
    sizes = [span.size for each in indexed for span in each.indices if isinstance(span, Span)]
    joint = [size for each in indexed for size in each.joint]
    if any(isinstance(size, Operand) for size in (*sizes, *joint)):
        return None
    if not isinstance(aval.dtype, np.dtype):
        return None
    memory = np.broadcast_to(np.zeros((), aval.dtype), aval.shape)
    return size_in_bytes(Ref(memory), transforms, ())


def _undone(part: Array, transform: Transform, array: Array) -> Array:
    """The memory that a changed window belongs to."""
    if isinstance(transform, Bitcast):
        return bitcast_rows(part, array.dtype)
    if isinstance(transform, Transposed):
        return part.transpose(np.argsort(transform.permutation))
    if isinstance(transform, Untiled):
        return tiled(part, transform.tiling)
    assert isinstance(transform, Reshaped)
    return part.reshape(array.shape)


def bitcast_rows(array: Array, dtype: Any) -> Array:
    """The same bits as another dtype, as a TPU has them.

    Narrow elements are packed along the second last axis: rows 2i and 2i + 1 of a 16-bit array are
    row i of a 32-bit one, the first in the low bits (``pltpu.bitcast``).
    """
    return bitcast_axis(array, np.dtype(dtype), max(array.ndim - 2, 0))


def _key(indexed: Indexed, shape: tuple[int, ...], operands: Sequence[Any]) -> tuple[Any, ...]:
    """The index in numpy's form.

    Raises:
      Outside: it is beyond the edge of an axis.
    """
    key: list[Any] = []
    for axis, index in enumerate(indexed.indices):
        dim = shape[axis]
        if type(index) is Span:
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
        elif value.size:
            low, high = int(value.min()), int(value.max())
            if low < 0 or high >= dim:
                raise Outside(axis, low, high, shape)
        key.append(value)
    return tuple(key)


def grid_of(indexed: Indexed, operands: Sequence[Any], result: tuple[int, ...]) -> list[Array]:
    """The index of every element of a window along each axis, whether it is inside or not.

    Args:
      indexed: the window.
      operands: of the equation.
      result: shape of the window.
    """
    spans = [i for i, index in enumerate(indexed.indices) if isinstance(index, Span)]
    others = [i for i in range(len(indexed.indices)) if i not in spans]
    # As in numpy: the arrays' axes stand where the arrays are if those are adjacent, else first.
    joint = len(indexed.joint)
    adjacent = others == list(range(others[0], others[-1] + 1)) if others else True
    first = sum(1 for i in spans if others and i < others[0]) if adjacent else 0
    found: list[Array] = []
    for axis, index in enumerate(indexed.indices):
        shape = [1] * len(result)
        if isinstance(index, Span):
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
    whole = Indexed(tuple(Span(0, size, 1) for size in array.shape), array.shape, ())
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
            raise Outside(number, int(used.min()), int(used.max()), memory.shape)
        key.append(np.clip(axis, 0, max(dim - 1, 0)))
    return memory, tuple(key)
