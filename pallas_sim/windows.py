"""Read, write and measure windows: the elements of a reference that an equation accesses.

A window is memory after a list of transforms: indices, reshapes, transposes, bitcasts. As arguments
below, ``array`` is the memory, ``transforms`` lead from the memory to the window, and ``operands``
are those of the equation, which dynamic indices are taken from.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pallas_sim.chips import itemsize
from pallas_sim.dtypes import Array, bit_width, bitcast_axis
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
from pallas_sim.views import MemoryView, packed_axis, view_of, whole_view


def read(array: Array, transforms: Sequence[Transform], operands: Sequence[Any]) -> Array:
    """Return the elements of a window: a view of the memory if numpy can make one, or a copy.

    Raises:
      Outside: an index is beyond the edge.
    """
    for number, transform in enumerate(transforms):
        rest = transforms[number:]
        part = None if _casts(rest) else applied(array, transform, operands)
        if part is None or (len(rest) > 1 and not np.may_share_memory(part, array)):
            view = view_of(array, rest, operands)
            if view is not None:
                return view.values()
        if part is None:
            array, (bitcast, *rest) = _nearer(array, rest, operands)
            return read(applied(array, bitcast, operands), rest, operands)
        array = part
    return array


def _casts(transforms: Sequence[Transform]) -> bool:
    """Return whether transforms begin with a bitcast, which copies, and have others after it."""
    return len(transforms) > 1 and isinstance(transforms[0], Bitcast)


def _nearer(
    array: Array, transforms: Sequence[Transform], operands: Sequence[Any]
) -> tuple[Array, tuple[Transform, ...]]:
    """Return the smallest part of memory that has a window, and transforms from it to the window.

    The transforms are a bitcast and others. Only an index that follows at once makes a part smaller
    than the memory.

    Raises:
      Outside: an index is beyond the edge.
    """
    bitcast, indexed, *rest = transforms
    assert isinstance(bitcast, Bitcast)
    if not isinstance(indexed, Indexed) or indexed.repeated:
        return array, tuple(transforms)
    packed = packed_axis(array.ndim)
    source, target = bit_width(array.dtype), bit_width(np.dtype(bitcast.dtype))
    shape = list(array.shape)
    shape[packed] = shape[packed] * source // target
    near: list[slice] = []
    index: list[Any] = []
    key = numpy_index(indexed, tuple(shape), operands)
    for axis, (along, before) in enumerate(zip(key, indexed.indices, strict=True)):
        if not isinstance(along, int | slice):  # a list of indices
            near.append(slice(None))
            index.append(before)
            continue
        span = slice(along, along + 1, 1) if isinstance(along, int) else along
        step, count = span.step or 1, len(range(*span.indices(shape[axis])))
        # The part begins and ends between elements of both dtypes.
        rows = max(1, source // target) if axis == packed else 1
        first, end = span.start // rows * rows, -(-max(span.stop, span.start) // rows) * rows
        ratio = target / source if axis == packed else 1
        near.append(slice(int(first * ratio), int(end * ratio)))
        start = span.start - first
        index.append(start if isinstance(along, int) else AxisSlice(start, count, step))
        shape[axis] = end - first
    nearer = Indexed(tuple(index), tuple(shape), indexed.joint)
    return array[tuple(near)], (bitcast, nearer, *rest)


def reading(transforms: Sequence[Transform]) -> Callable[[Array, Sequence[Any]], Array]:
    """Return ``read`` for these transforms, as a function of ``array`` and ``operands``.

    It is faster than ``read``: what depends only on the transforms is computed here, once.
    """
    if not transforms:
        return lambda array, operands: array
    last = transforms[-1]
    if len(transforms) > 1 or not isinstance(last, Indexed) or last.repeated:
        return lambda array, operands: read(array, transforms, operands)
    return _reading(last)


def _reading(indexed: Indexed) -> Callable[[Array, Sequence[Any]], Array]:
    """Return ``read`` for one index, with a slice or a number for each axis.

    The starts of slices and the numbers may be operands. For other indices it returns ``read``.
    """
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
            except (Outside, IndexError):  # the size is an operand, or ``read`` raises
                return lambda array, operands: read(array, (indexed,), operands)

    def read_indexed(array: Array, operands: Sequence[Any]) -> Array:
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
            if type(value) is Ref or value.ndim:  # an array of indices, or a reference
                return read(array, (indexed,), operands)
            value = int(value)
            if not 0 <= value < dim:
                raise Outside(axis, value, value, array.shape)
            key[axis] = value
        return array[tuple(key)]

    return read_indexed


def is_view(part: Array, memory: Array) -> bool:
    """Return whether ``part``, a result of ``read``, is a view of ``memory`` and no copy."""
    if part is memory or (part.base is not None and part.base is memory.base):
        return True
    return part.base is memory or np.may_share_memory(part, memory)


def region_of(
    array: Array,
    transforms: Sequence[Transform],
    operands: Sequence[Any],
    part: Array | None = None,
) -> Region:
    """Return the memory that a window covers, so that accesses to it can be compared.

    That is no more than a store to the window changes, except where its elements are parts of a
    byte of the memory: then it is these bytes.

    Args:
      array: the memory.
      transforms: from the memory to the window.
      operands: of the equation.
      part: the result of ``read``, where it is known.
    """
    if part is None and not any(isinstance(transform, Bitcast) for transform in transforms):
        part = read(array, transforms, operands)
    if part is not None and (np.may_share_memory(part, array) or not np.size(part)):
        return part
    view = view_of(array, transforms, operands)
    if view is not None:
        return view.region
    for number, transform in enumerate(transforms):
        rest = transforms[number:]
        if _casts(rest):
            return elements_of(*_nearer(array, rest, operands), operands)
        following = applied(array, transform, operands)
        if not np.may_share_memory(following, array):
            return elements_of(array, rest, operands)
        array = following
    return array


def elements_of(
    array: Array,
    transforms: Sequence[Transform],
    operands: Sequence[Any],
    apply: Callable[[Array, Transform, Sequence[Any]], Array] | None = None,
) -> Elements:
    """Return the elements of memory that a window covers, or the parts of them that it covers.

    Args:
      array: the memory.
      transforms: from the memory to the window.
      operands: of the equation.
      apply: does what ``applied`` does, and gives -1 for an element that is not there.
    """
    casts = [np.dtype(cast.dtype) for cast in transforms if isinstance(cast, Bitcast)]
    narrowest = min(dtype.itemsize for dtype in (array.dtype, *casts))
    units = array[..., None]
    if narrowest < array.itemsize:
        units = units.view(f"u{narrowest}")
    first, key = transforms[0], ...
    if apply is None and isinstance(first, Indexed) and not first.repeated:
        key, transforms = numpy_index(first, array.shape, operands), transforms[1:]
    grid = np.indices(array.shape, sparse=True)
    index = [np.broadcast_to(along, array.shape)[key] for along in grid]
    numbers = np.ravel_multi_index(index, array.shape) * units.shape[-1]
    # For each element of the window the numbers of its parts, the lowest bits first.
    parts: list[Array] = [numbers + part for part in range(units.shape[-1])]
    bits = bit_width(array.dtype)
    for transform in transforms:
        if isinstance(transform, Bitcast):
            before, bits = bits, bit_width(np.dtype(transform.dtype))
            parts = _cast_parts(parts, before, bits)
        else:
            parts = [(apply or applied)(part, transform, operands) for part in parts]
    covered = np.unique(np.concatenate([part.ravel() for part in parts]))
    return Elements(units, np.unravel_index(covered[covered >= 0], units.shape))


def _cast_parts(parts: Sequence[Array], source: int, target: int) -> list[Array]:
    """Return the parts of elements whose rows were put together, or divided, by a bitcast.

    Args:
      parts: for each element, the lowest bits first.
      source: bits of these elements.
      target: bits of those after the cast.
    """
    if target == source:
        return list(parts)
    axis = packed_axis(parts[0].ndim)
    before = (slice(None),) * axis
    if target > source:
        ratio = target // source
        return [part[(*before, slice(n, None, ratio))] for n in range(ratio) for part in parts]
    ratio = source // target
    count = max(len(parts) // ratio, 1)
    shape = list(parts[0].shape)
    shape[axis] *= ratio
    # A part that is no wider than a byte may belong to several rows.
    return [
        np.stack([parts[row * len(parts) // ratio + n] for row in range(ratio)], axis + 1).reshape(
            shape
        )
        for n in range(count)
    ]


def write(
    array: Array,
    transforms: Sequence[Transform],
    operands: Sequence[Any],
    change: Callable[[Array], Any],
) -> None:
    """Replace the elements of a window by ``change`` of them; copies are written back to memory.

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
        part = array[(*key, ...)]  # so that one element is an array, too
        write(part, rest, operands, change)
        if not np.may_share_memory(part, array):
            array[key] = part
        return
    part = None if isinstance(first, Bitcast) else applied(array, first, operands)
    if part is not None and np.may_share_memory(part, array):
        write(part, rest, operands, change)
        return
    view = view_of(array, transforms, operands)
    if view is not None:
        view.put(change(view.values()))
        return
    if _casts(transforms):
        array, (_, *rest) = _nearer(array, transforms, operands)
    part = applied(array, first, operands) if part is None else part
    write(part, rest, operands, change)
    array[...] = undone(part, first, array)


def size_in_bytes(ref: Ref, transforms: Sequence[Transform], operands: Sequence[Any]) -> int:
    """Return the number of bytes of a window of ``ref``, also if it reaches beyond the memory."""
    dtype, count = ref.dtype, math.prod(ref.shape)
    for transform in transforms:
        if isinstance(transform, Bitcast):
            before, dtype = dtype, np.dtype(transform.dtype)
            count = count * bit_width(before) // bit_width(dtype)
        if isinstance(transform, Indexed):
            spans = [index.size for index in transform.indices if isinstance(index, AxisSlice)]
            joint = transform.joint
            sizes = [int(operands[s.position]) if isinstance(s, Operand) else s for s in spans]
            sizes += [int(operands[s.position]) if isinstance(s, Operand) else s for s in joint]
            count = math.prod(max(size, 0) for size in sizes)
    return packed_bytes(count, dtype)


def packed_bytes(count: int, dtype: Any) -> int:
    """Return the number of bytes that a TPU has for elements: 4 bits take half a byte each."""
    return math.ceil(count * itemsize(dtype))


def fixed_size(aval: Any, transforms: Sequence[Transform]) -> int | None:
    """Return the number of bytes of a window, or None if it depends on operands.

    ``aval`` is that of the reference. It is None for semaphores and keys, too, which have no numpy
    dtype.
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


def indexed_view(
    array: Array,
    window: Sequence[Transform],
    operands: Sequence[Any],
    shape: tuple[int, ...],
) -> tuple[MemoryView, Indexed]:
    """Return what the last index of a masked access is one of, and that index.

    Raises:
      Outside: an index before the last one is beyond the edge.
    """
    outer = list(window)
    last = outer.pop() if outer and isinstance(outer[-1], Indexed) else Indexed.whole(shape)
    assert isinstance(last, Indexed)
    memory = read(array, outer, operands)
    direct = not outer or np.may_share_memory(memory, array)
    view = whole_view(memory) if direct else view_of(array, outer, operands)
    if view is None:
        raise SimulationError(
            "a masked access to a reference that is indexed by arrays, or divided, before"
        )
    return view, last


def masked(
    array: Array,
    window: Sequence[Transform],
    operands: Sequence[Any],
    shape: tuple[int, ...],
    mask: Any,
) -> tuple[MemoryView, tuple[Array, ...]]:
    """Return a window that has all elements of a masked access, and the index of each of them.

    Masked elements have an index, too; one beyond the edge is moved to the edge.

    Args:
      array: the memory.
      window: transforms from the memory to the window.
      operands: of the equation.
      shape: of the window.
      mask: False for elements that are not accessed, and may be beyond the edge.

    Raises:
      Outside: an element beyond the edge is accessed.
    """
    view, last = indexed_view(array, window, operands, shape)
    axes = grid_of(last, operands, shape)
    accessed = np.broadcast_to(mask, shape)
    key: list[Array] = []
    for number, (axis, dim) in enumerate(zip(axes, view.shape, strict=True)):
        indices = axis[accessed]
        if indices.size and (indices.min() < 0 or indices.max() >= dim):
            raise Outside.of(number, indices, view.shape)
        key.append(np.clip(axis, 0, max(dim - 1, 0)))
    return view, tuple(key)


# Transforms of memory to another shape, order or dtype, as a view if possible, and their inverses.


def applied(array: Array, transform: Transform, operands: Sequence[Any]) -> Array:
    """Apply one transform to memory, and return the result: a view if numpy can make one.

    Raises:
      Outside: an index is beyond the edge.
      SimulationError: the simulator does not know the transform.
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
    """Put the tiles of an array together: the inverse of ``tiled``.

    Its last ``2 * count`` axes are the numbers of tiles, then the sizes of a tile. Returns an array
    with ``count`` axes in place of these, a view if possible.
    """
    outer = array.ndim - 2 * count
    pairs = [axis for number in range(outer, outer + count) for axis in (number, number + count)]
    moved = array.transpose(*range(outer), *pairs)
    return moved.reshape(
        *array.shape[:outer],
        *(array.shape[axis] * array.shape[axis + count] for axis in range(outer, outer + count)),
    )


def tiled(array: Array, tiling: Sequence[int]) -> Array:
    """Divide the last axes of an array into tiles, and return a view of it.

    It ends with the axes of the numbers of tiles, then those of a tile. ``untiled`` of it is a
    view, too.
    """
    outer = array.ndim - len(tiling)
    pairs = [(size // t, t) for size, t in zip(array.shape[outer:], tiling, strict=True)]
    apart = array.reshape(*array.shape[:outer], *(size for pair in pairs for size in pair))
    moved = [*range(outer, apart.ndim, 2), *range(outer + 1, apart.ndim, 2)]
    return apart.transpose(*range(outer), *moved)


def _aliased(array: Array, part: Aliased) -> Array:
    """Return the view of a union that is one of its references.

    An element of ``array`` stands for one byte of the union. It is wider than one byte if some part
    has elements of 4 or 2 bits, because numpy stores each of those in a byte of its own. Then the
    elements of other parts lie further apart: each begins at the same place as the narrow elements
    that it shares memory with.
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
    """Return ``part`` with ``transform`` undone: the new elements of ``array``."""
    if isinstance(transform, Bitcast):
        return bitcast_rows(part, array.dtype)
    if isinstance(transform, Transposed):
        return part.transpose(np.argsort(transform.permutation))
    if isinstance(transform, Untiled):
        return tiled(part, transform.tiling)
    assert isinstance(transform, Reshaped)
    return part.reshape(array.shape)


def bitcast_rows(array: Array, dtype: Any) -> Array:
    """Return the same bits as another dtype, in the layout of a TPU (``pltpu.bitcast``).

    The second last axis is packed: rows 2i and 2i + 1 of a 16-bit array become row i of a 32-bit
    array, and row 2i has the low bits.
    """
    return bitcast_axis(array, np.dtype(dtype), packed_axis(array.ndim))
