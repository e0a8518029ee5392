"""Memory in another shape, order or dtype, as a view where that is possible, and the way back."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_pallas.devices.capacities import itemsize
from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.arithmetic.dtypes import bitcast_axis
from pytest_pallas.simulator.memory.indexing import numpy_index, repeated
from pytest_pallas.transforms import (
    Aliased,
    Bitcast,
    Expanded,
    Indexed,
    Reshaped,
    Transform,
    Transposed,
    Untiled,
)

Array = np.ndarray[Any, Any]


def applied(array: Array, transform: Transform, operands: Sequence[Any]) -> Array:
    """What a transform makes of memory: a view where that is possible.

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


def undone(part: Array, transform: Transform, array: Array) -> Array:
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
