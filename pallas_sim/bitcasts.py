"""Windows of references with another dtype than their memory (``Bitcast``): find that memory.

These functions index the memory before its bits are cast, for two reasons. A cast of all of the
memory would copy it at each access, and an access to a copy could not be compared with others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array, bit_width
from pallas_sim.memory import Elements, Region, numpy_index
from pallas_sim.transforms import Bitcast, Indexed, Transform


def packed_axis(array: Array) -> int:
    """Return the axis whose narrow elements are packed into wide ones; see ``bitcast_rows``."""
    return max(array.ndim - 2, 0)


def bitcast_shape(array: Array, dtype: Any) -> tuple[int, ...]:
    """Return the shape that memory has when its bits are cast to another dtype."""
    axis, shape = packed_axis(array), list(array.shape)
    if shape:
        shape[axis] = shape[axis] * bit_width(array.dtype) // bit_width(np.dtype(dtype))
    return tuple(shape)


def window_of(
    array: Array, bitcast: Bitcast, indexed: Indexed, operands: Sequence[Any]
) -> tuple[Array, tuple[Any, ...]]:
    """Find the smallest part of the memory that contains a window of another dtype.

    Args:
      array: the memory.
      bitcast: the cast to the other dtype.
      indexed: the window, as an index after the cast; no axis of it is repeated.
      operands: of the equation.

    Returns:
      A view of the memory, and an index: ``bitcast_rows(view, dtype)[index]`` is the window.

    Raises:
      Outside: an index is beyond the edge.
    """
    key = numpy_index(indexed, bitcast_shape(array, bitcast.dtype), operands)
    packed = packed_axis(array)
    near: list[Any] = []  # the index before the cast
    rest: list[Any] = []  # the index after the cast
    for axis, index in enumerate(key):
        if isinstance(index, int):
            index, remaining = slice(index, index + 1), 0
        elif isinstance(index, slice):
            remaining = slice(None)
        else:  # an array of indices, which only applies after the cast
            near.append(slice(None))
            rest.append(index)
            continue
        if axis == packed:
            index, inside = _whole_rows(index, array, bitcast.dtype)
            remaining = inside if isinstance(remaining, slice) else inside.start
        near.append(index)
        rest.append(remaining)
    return array[tuple(near)], tuple(rest)


def _whole_rows(index: slice, array: Array, dtype: Any) -> tuple[slice, slice]:
    """Return the rows of memory that contain these rows of another dtype.

    Returns:
      The slice of the memory, and the slice of its cast that has exactly the rows of ``index``.
    """
    memory_bits, cast_bits = bit_width(array.dtype), bit_width(np.dtype(dtype))
    # Extend the slice until it begins and ends between rows of the memory, too.
    start, stop = index.start, max(index.stop, index.start)
    step = max(1, memory_bits // cast_bits)
    first = start // step * step
    last = -(-stop // step) * step
    near = slice(first * cast_bits // memory_bits, last * cast_bits // memory_bits)
    return near, slice(start - first, stop - first, index.step)


def memory_under(
    view: Array, bitcast: Bitcast, rest: Sequence[Transform], operands: Sequence[Any]
) -> Region | None:
    """Return the memory of a window of another dtype, no more and no less.

    Args:
      view: a view of the memory.
      bitcast: the cast to the other dtype.
      rest: the transforms from the cast to the window.
      operands: of the equation.

    Returns:
      A view of the memory, or elements of it. None if the window has a part of an element, or this
      function does not support its transforms.

    Raises:
      Outside: an index is beyond the edge.
    """
    memory = _memory_and_shape(view, bitcast, rest, operands)
    return None if memory is None else memory[0]


def whole_rows(
    array: Array, transforms: Sequence[Transform], operands: Sequence[Any]
) -> tuple[Array, np.dtype[Any]] | None:
    """Return the memory of a window of a wider dtype, if the window is ``bitcast_rows`` of it.

    Args:
      array: the memory.
      transforms: from the memory to the window.
      operands: of the equation.

    Returns:
      The view of the memory, and the dtype of the window; None for other windows.

    Raises:
      Outside: an index is beyond the edge.
    """
    cast = next((n for n, step in enumerate(transforms) if isinstance(step, Bitcast)), None)
    if cast is None or any(not isinstance(transform, Indexed) for transform in transforms[:cast]):
        return None
    for indexed in transforms[:cast]:
        assert isinstance(indexed, Indexed)
        if indexed.repeated:
            return None
        array = array[numpy_index(indexed, array.shape, operands)]
    bitcast = transforms[cast]
    assert isinstance(bitcast, Bitcast)
    dtype = np.dtype(bitcast.dtype)
    rest = transforms[cast + 1 :]
    if bit_width(dtype) <= bit_width(array.dtype):
        return None
    if any(not isinstance(transform, Indexed) for transform in rest):
        return None
    result = _memory_and_shape(array, bitcast, rest, operands)
    if result is None:
        return None
    memory, shape = result
    if isinstance(memory, Elements) or bitcast_shape(memory, dtype) != shape:
        return None
    return memory, dtype


def _memory_and_shape(
    view: Array, bitcast: Bitcast, rest: Sequence[Transform], operands: Sequence[Any]
) -> tuple[Region, tuple[int, ...]] | None:
    """Return the region of ``memory_under``, and the window's shape before a reshape.

    The shape is () for ``Elements``, where no caller uses it.
    """
    shape, packed = list(bitcast_shape(view, bitcast.dtype)), packed_axis(view)
    axes = list(range(view.ndim))  # of the view, for each axis of the window
    indices = [transform for transform in rest if isinstance(transform, Indexed)]
    if any(not isinstance(transform, Indexed) for transform in rest[: len(indices)]):
        return None  # indices after a reshape
    memory_bits, cast_bits = bit_width(view.dtype), bit_width(np.dtype(bitcast.dtype))
    for number, indexed in enumerate(indices):
        if indexed.repeated:
            return None
        key = numpy_index(indexed, tuple(shape), operands)
        near: list[Any] = [slice(None)] * view.ndim
        remaining: list[tuple[int, int]] = []  # axis of the view, and size in the window
        rows: Array | None = None
        for axis, index in enumerate(key):
            if not isinstance(index, int | slice):
                # An array of indices is supported on the first axis, in the last transform.
                if axis or axes[axis] or number + 1 < len(indices):
                    return None
                rows = np.asarray(index).ravel()
                continue
            span = slice(index, index + 1, 1) if isinstance(index, int) else index
            if axes[axis] == packed:
                if span.step not in (1, None) or any(
                    edge * cast_bits % memory_bits for edge in (span.start, span.stop)
                ):
                    return None
                near[packed] = slice(
                    span.start * cast_bits // memory_bits, span.stop * cast_bits // memory_bits
                )
            else:
                near[axes[axis]] = index
            if not isinstance(index, int):
                remaining.append((axes[axis], len(range(*span.indices(shape[axis])))))
        if rows is not None:
            # Each index of a wide row stands for this many rows of memory.
            factor = cast_bits // memory_bits if packed == 0 else 1
            if not factor or len(remaining) + 1 < view.ndim:
                return None
            rows = (rows[:, None] * factor + np.arange(factor)).ravel()
            return Elements(view[tuple(near)], (rows,)), ()
        view = view[tuple(near)]
        # An integer removes its axis from the view, except for the packed axis, which is sliced.
        removed = [axis for axis, index in enumerate(near) if isinstance(index, int)]
        axes = [axis - sum(gone < axis for gone in removed) for axis, _ in remaining]
        shape = [size for _, size in remaining]
        packed -= sum(gone < packed for gone in removed)
    return view, tuple(shape)
