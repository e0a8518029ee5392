"""Windows of references to memory as another dtype: which memory they lie in.

A window is found in memory before bits are cast, for two reasons. Casting all of the memory would
copy it for each access, and an access to a copy could not be compared with other accesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array, bit_width
from pallas_sim.memory import Elements, Region, numpy_index
from pallas_sim.transforms import Bitcast, Indexed, Transform


def packed_axis(array: Array) -> int:
    """Return the axis along which narrow elements make a wide one; see ``bitcast_rows``."""
    return max(array.ndim - 2, 0)


def bitcast_shape(array: Array, dtype: Any) -> tuple[int, ...]:
    """Return the shape of memory as another dtype."""
    axis, shape = packed_axis(array), list(array.shape)
    if shape:
        shape[axis] = shape[axis] * bit_width(array.dtype) // bit_width(np.dtype(dtype))
    return tuple(shape)


def window_of(
    array: Array, bitcast: Bitcast, indexed: Indexed, operands: Sequence[Any]
) -> tuple[Array, tuple[Any, ...]]:
    """Return a window of memory as another dtype.

    Args:
      array: the memory.
      bitcast: makes it memory of the other dtype.
      indexed: the window; nothing is repeated in it.
      operands: of the equation.

    Returns:
      A view of the memory, and the index of the window in ``bitcast_rows`` of it.

    Raises:
      Outside: an index is beyond the edge.
    """
    key = numpy_index(indexed, bitcast_shape(array, bitcast.dtype), operands)
    rows = packed_axis(array)
    near: list[Any] = []
    rest: list[Any] = []
    for axis, index in enumerate(key):
        if isinstance(index, int):
            index, after = slice(index, index + 1), 0
        elif isinstance(index, slice):
            after = slice(None)
        else:  # of an array of indices
            near.append(slice(None))
            rest.append(index)
            continue
        if axis == rows:
            index, inside = _rows(index, array, bitcast.dtype)
            after = inside if isinstance(after, slice) else inside.start
        near.append(index)
        rest.append(after)
    return array[tuple(near)], tuple(rest)


def _rows(index: slice, array: Array, dtype: Any) -> tuple[slice, slice]:
    """Return rows of memory as another dtype: the rows of memory, and where they are in those."""
    before, after = bit_width(array.dtype), bit_width(np.dtype(dtype))
    # As whole rows of both.
    start, stop = index.start, max(index.stop, index.start)
    step = max(1, before // after)
    first = start // step * step
    last = -(-stop // step) * step
    near = slice(first * after // before, last * after // before)
    return near, slice(start - first, stop - first, index.step)


def memory_under(
    view: Array, bitcast: Bitcast, rest: Sequence[Transform], operands: Sequence[Any]
) -> Region | None:
    """Return the memory that a window of memory as another dtype lies in.

    Args:
      view: of the memory.
      bitcast: makes it memory of the other dtype.
      rest: from there to the window.
      operands: of the equation.

    Returns:
      A view of the memory, or elements of it; None if the window is no whole elements of it, or
      too complicated.

    Raises:
      Outside: an index is beyond the edge.
    """
    followed = _followed(view, bitcast, rest, operands)
    return None if followed is None else followed[0]


def whole_rows(
    array: Array, transforms: Sequence[Transform], operands: Sequence[Any]
) -> tuple[Array, np.dtype[Any]] | None:
    """Return the memory of a window of a wider dtype: ``bitcast_rows`` makes the window of it.

    Args:
      array: the memory.
      transforms: from the memory to the window.
      operands: of the equation.

    Returns:
      The view and the dtype of the window; None for other windows.

    Raises:
      Outside: an index is beyond the edge.
    """
    at = next((n for n, transform in enumerate(transforms) if isinstance(transform, Bitcast)), None)
    if at is None or any(not isinstance(transform, Indexed) for transform in transforms[:at]):
        return None
    for indexed in transforms[:at]:
        assert isinstance(indexed, Indexed)
        if indexed.repeated:
            return None
        array = array[numpy_index(indexed, array.shape, operands)]
    bitcast = transforms[at]
    assert isinstance(bitcast, Bitcast)
    dtype = np.dtype(bitcast.dtype)
    rest = transforms[at + 1 :]
    if bit_width(dtype) <= bit_width(array.dtype):
        return None
    if any(not isinstance(transform, Indexed) for transform in rest):
        return None
    followed = _followed(array, bitcast, rest, operands)
    if followed is None:
        return None
    memory, shape = followed
    if isinstance(memory, Elements) or bitcast_shape(memory, dtype) != shape:
        return None
    return memory, dtype


def _followed(
    view: Array, bitcast: Bitcast, rest: Sequence[Transform], operands: Sequence[Any]
) -> tuple[Region, tuple[int, ...]] | None:
    """Return what ``memory_under`` does, with the window's shape before it is reshaped."""
    shape, packed = list(bitcast_shape(view, bitcast.dtype)), packed_axis(view)
    axes = list(range(view.ndim))  # of the view, for each axis of the window
    indices = [transform for transform in rest if isinstance(transform, Indexed)]
    if any(not isinstance(transform, Indexed) for transform in rest[: len(indices)]):
        return None  # indices after a reshape
    before, after = bit_width(view.dtype), bit_width(np.dtype(bitcast.dtype))
    for number, indexed in enumerate(indices):
        if indexed.repeated:
            return None
        key = numpy_index(indexed, tuple(shape), operands)
        near: list[Any] = [slice(None)] * view.ndim
        left: list[tuple[int, int]] = []
        rows: Array | None = None
        for axis, index in enumerate(key):
            if not isinstance(index, int | slice):
                if axis or axes[axis] or number + 1 < len(indices):
                    return None
                rows = np.asarray(index).ravel()
                continue
            span = slice(index, index + 1, 1) if isinstance(index, int) else index
            if axes[axis] == packed:
                if span.step not in (1, None) or any(
                    edge * after % before for edge in (span.start, span.stop)
                ):
                    return None
                near[packed] = slice(span.start * after // before, span.stop * after // before)
            else:
                near[axes[axis]] = index
            if not isinstance(index, int):
                left.append((axes[axis], len(range(*span.indices(shape[axis])))))
        if rows is not None:
            factor = after // before if packed == 0 else 1
            if not factor or len(left) + 1 < view.ndim:
                return None
            rows = (rows[:, None] * factor + np.arange(factor)).ravel()
            return Elements(view[tuple(near)], (rows,)), ()
        view = view[tuple(near)]
        gone = [axis for axis, index in enumerate(near) if isinstance(index, int)]
        axes = [axis - sum(removed < axis for removed in gone) for axis, _ in left]
        shape = [size for _, size in left]
        packed -= sum(removed < packed for removed in gone)
    return view, tuple(shape)
