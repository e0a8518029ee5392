"""Windows of references as views of memory, where numpy has no view of the window itself.

numpy can neither reshape nor cast all arrays without a copy, and an access to a copy could not be
compared with others. But the elements of memory that a window covers are nearly always a view with
other axes: a window of 16 rows may be 8 pairs of rows, and an element of 32 bits two elements of
16. So a ``MemoryView`` divides each axis of the window into factors. It costs no time that depends
on the size of the memory.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array, bit_width, reinterpret
from pallas_sim.memory import Elements, numpy_index
from pallas_sim.transforms import (
    Bitcast,
    Expanded,
    Indexed,
    Reshaped,
    Transform,
    Transposed,
    Untiled,
)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryView:
    """A window as a view of memory.

    Attributes:
      units: the view. Its elements, of 8 bits or more, are those of the window or parts of them;
        its first axes are factors of the axes of the window, row by row, and its last ones are the
        parts of each element, the highest bits last.
      counts: for each axis of the window, how many factors it has; one of 1 element may have none.
      dtype: of the elements of the window.
    """

    units: Array
    counts: tuple[int, ...]
    dtype: np.dtype[Any]

    @property
    def outer(self) -> int:
        """How many axes of ``units`` are factors of the window's."""
        return sum(self.counts)

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the window."""
        sizes = iter(self.units.shape)
        return tuple(math.prod(itertools.islice(sizes, count)) for count in self.counts)

    @property
    def region(self) -> Array:
        """The memory of the window, as a view with as few axes as possible."""
        return merged(self.units, self.units.ndim)

    def values(self) -> Array:
        """Return the elements of the window: a view of the memory if numpy can make one."""
        units, outer = self.units, self.outer
        if outer < units.ndim:
            units = units.reshape((*units.shape[:outer], math.prod(units.shape[outer:])))
        if units.dtype != self.dtype:
            units = reinterpret(units, self.dtype)
        return units.reshape(self.shape)

    def put(self, values: Any) -> None:
        """Replace the elements of the window."""
        values = np.broadcast_to(np.asarray(values, self.dtype), self.shape)
        if self.units.dtype != self.dtype:
            values = reinterpret(values, self.units.dtype)
        self.units[...] = values.reshape(self.units.shape)

    def at(self, index: Sequence[Array]) -> Elements:
        """Return the memory of some elements, or of rows, each as often as it is named.

        Args:
          index: arrays of one shape, for each of the first axes of the window.
        """
        units, counts = self.units, self.counts
        if 0 in counts:
            sizes = iter(units.shape)
            factors = [list(itertools.islice(sizes, count)) or [1] for count in counts]
            units = units.reshape([*itertools.chain(*factors), *sizes])
        sizes = iter(units.shape)
        key: list[Array] = []
        for along, count in zip(index, counts, strict=False):
            if count < 2:
                next(sizes)
                key.append(along)
            else:
                key += np.unravel_index(along, tuple(itertools.islice(sizes, count)))
        return Elements(units, tuple(key))

    def take(self, index: Sequence[Array]) -> Array:
        """Return the values of some elements, or of rows; see ``at``."""
        return self._copied(self.at(index), index).values()

    def set(self, index: Sequence[Array], values: Array) -> None:
        """Replace some elements, or rows; see ``at``."""
        elements = self.at(index)
        copy = self._copied(elements, index)
        copy.put(values)
        elements.memory[elements.key] = copy.units

    def _copied(self, elements: Elements, index: Sequence[Array]) -> MemoryView:
        ndim = np.ndim(index[0]) if index else 0
        units = np.asarray(elements.memory[elements.key])
        left = (max(count, 1) for count in self.counts[len(index) :])
        return MemoryView(units, (*(1,) * ndim, *left), self.dtype)


def whole_view(array: Array) -> MemoryView:
    """Return the window that is all of an array."""
    return MemoryView(array, (1,) * array.ndim, array.dtype)


def packed_axis(ndim: int) -> int:
    """Return the axis whose narrow elements are packed into wide ones, on a TPU the second last."""
    return max(ndim - 2, 0)


def merged(units: Array, count: int) -> Array:
    """Return a view with as few axes as possible in place of the first ``count``, row by row."""
    shape: list[int] = []
    stride = 0
    for size, step in zip(units.shape[:count], units.strides[:count], strict=True):
        if size == 1:
            continue
        if shape and stride == size * step:
            shape[-1] *= size
        else:
            shape.append(size)
        stride = step
    return units.reshape((*shape, *units.shape[count:]))


def view_of(
    array: Array, transforms: Sequence[Transform], operands: Sequence[Any]
) -> MemoryView | None:
    """Return a window as a view of memory, or None if it is none.

    It is none if arrays of indices name its elements, if its elements are parts of a byte of the
    memory, if a shape or a slice divides a factor, or if it has no element.

    Args:
      array: the memory.
      transforms: from the memory to the window.
      operands: of the equation.

    Raises:
      Outside: an index is beyond the edge.
    """
    view: MemoryView | None = whole_view(array)
    for transform in transforms:
        step = _STEPS.get(type(transform))
        view = step(view, transform, operands) if step is not None and view.units.size else None
        if view is None:
            return None
    return view


def _indexed(view: MemoryView, indexed: Indexed, operands: Sequence[Any]) -> MemoryView | None:
    key = numpy_index(indexed, view.shape, operands)
    if indexed.repeated:
        return None
    near: list[int | slice] = []
    counts: list[int] = []
    sizes = iter(view.units.shape)
    left = view.counts[len(key) :]  # of keys: the axis of their words
    for index, count in zip(key, view.counts, strict=False):
        factors = tuple(itertools.islice(sizes, count))
        if isinstance(index, int):
            near += _unravelled(index, factors)
            continue
        parts = _sliced(index, factors) if isinstance(index, slice) else None
        if parts is None:
            return None
        near += parts
        counts.append(sum(isinstance(part, slice) for part in parts))
    return MemoryView(view.units[(*near, ...)], (*counts, *left), view.dtype)


def _unravelled(index: int, factors: Sequence[int]) -> list[int]:
    """Return the index along each factor of an axis."""
    parts: list[int] = []
    for size in reversed(factors):
        index, part = divmod(index, size)
        parts.append(part)
    return parts[::-1]


def _sliced(span: slice, factors: Sequence[int]) -> Sequence[int | slice] | None:
    """Return the index along each factor of an axis for a slice of it; None if there is none."""
    start, step = span.start, span.step or 1
    count = max(-(-(span.stop - start) // step), 0)
    if len(factors) < 2 or not count:
        return [span for _ in factors] if count else None
    inner = math.prod(factors[1:])
    (first, inside), (last, end) = divmod(start, inner), divmod(start + (count - 1) * step, inner)
    if first == last:
        within = _sliced(slice(inside, end + 1, step), factors[1:])
        return None if within is None else [first, *within]
    if step % inner == 0:
        return [slice(first, last + 1, step // inner), *_unravelled(inside, factors[1:])]
    if inner % step == 0 and inside < step and end + step >= inner:
        within = _sliced(slice(inside, inner, step), factors[1:])
        return None if within is None else [slice(first, last + 1), *within]
    return None


def _reshaped(view: MemoryView, reshaped: Reshaped, _: Any) -> MemoryView | None:
    return _regrouped(view, reshaped.shape)


def _regrouped(view: MemoryView, shape: Sequence[int]) -> MemoryView | None:
    outer = view.outer
    inside = view.units.shape[outer:]
    units = merged(view.units, outer)
    left = list(reversed(units.shape[: units.ndim - len(inside)]))
    sizes: list[int] = []
    counts: list[int] = []
    for dim in shape:
        size, before = dim, len(sizes)
        while size > 1:
            factor = left.pop()
            if size % factor and factor % size:
                return None
            sizes.append(min(size, factor))
            if factor > size:
                left.append(factor // size)
            size //= sizes[-1]
        counts.append(len(sizes) - before)
    return MemoryView(units.reshape((*sizes, *inside)), tuple(counts), view.dtype)


def _transposed(view: MemoryView, transposed: Transposed, _: Any) -> MemoryView:
    return _permuted(view, transposed.permutation)


def _permuted(view: MemoryView, permutation: Sequence[int]) -> MemoryView:
    axes = iter(range(view.units.ndim))
    groups = [tuple(itertools.islice(axes, count)) for count in view.counts]
    order = [axis for number in permutation for axis in groups[number]]
    counts = tuple(view.counts[number] for number in permutation)
    return MemoryView(view.units.transpose((*order, *axes)), counts, view.dtype)


def _untiled(view: MemoryView, untiled: Untiled, _: Any) -> MemoryView:
    count = len(untiled.tiling)
    outer = len(view.counts) - 2 * count
    pairs = [axis for number in range(outer, outer + count) for axis in (number, number + count)]
    moved = _permuted(view, [*range(outer), *pairs])
    together = (
        moved.counts[at] + moved.counts[at + 1] for at in range(outer, outer + 2 * count, 2)
    )
    return replace(moved, counts=(*moved.counts[:outer], *together))


def _expanded(view: MemoryView, expanded: Expanded, _: Any) -> MemoryView | None:
    rows, columns = view.shape
    batch = expanded.batch
    parts = _regrouped(view, (rows, *batch, columns // math.prod(batch)))
    moved = (*range(1, len(batch) + 1), 0, len(batch) + 1)
    return None if parts is None else _permuted(parts, moved)


def _cast(view: MemoryView, bitcast: Bitcast, _: Any) -> MemoryView | None:
    """Cast the elements: of wider ones, factors of the packed axis become parts; of narrower ones,
    parts become factors."""
    dtype = np.dtype(bitcast.dtype)
    source, target = bit_width(view.dtype), bit_width(dtype)
    if source == target:
        return replace(view, dtype=dtype)
    if not view.counts:
        return None
    axis = packed_axis(len(view.counts))
    end = sum(view.counts[: axis + 1])  # behind the last factor of the packed axis
    change = _to_parts if target > source else _to_factors
    ratio = max(source, target) // min(source, target)
    units, count = change(view.units, ratio, end - view.counts[axis], end, view.outer)
    if units is None:
        return None
    counts = (*view.counts[:axis], count, *view.counts[axis + 1 :])
    return MemoryView(units, counts, dtype)


def _divided(units: Array, axis: int, inner: int) -> Array:
    """Return a view with two axes in place of one: the last of them has ``inner`` elements."""
    shape = units.shape
    return units.reshape((*shape[:axis], shape[axis] // inner, inner, *shape[axis + 1 :]))


def _to_parts(
    units: Array, ratio: int, first: int, end: int, outer: int
) -> tuple[Array | None, int]:
    while ratio > 1:
        size = units.shape[end - 1] if end > first else 0
        if not size or (size % ratio and ratio % size):
            return None, 0
        if size > ratio:
            units = np.moveaxis(_divided(units, end - 1, ratio), end, outer)
            break
        units = np.moveaxis(units, end - 1, outer - 1)
        ratio //= size
        end, outer = end - 1, outer - 1
    return units, end - first


def _to_factors(
    units: Array, ratio: int, first: int, end: int, outer: int
) -> tuple[Array | None, int]:
    while ratio > 1:
        if outer == units.ndim:  # there are no parts left: halve the elements of memory
            width = bit_width(units.dtype) // ratio
            if width < 8:
                return None, 0
            units = units[..., None].view(f"u{width // 8}")
        size = units.shape[outer]
        if size % ratio and ratio % size:
            return None, 0
        if size > ratio:
            units, size = _divided(units, outer, size // ratio), ratio
        units = np.moveaxis(units, outer, end)
        ratio //= size
        end, outer = end + 1, outer + 1
    return units, end - first


#: Each gives the view after a transform, or None.
_STEPS: Mapping[type, Callable[[MemoryView, Any, Sequence[Any]], MemoryView | None]] = (
    MappingProxyType(
        {
            Indexed: _indexed,
            Reshaped: _reshaped,
            Transposed: _transposed,
            Bitcast: _cast,
            Untiled: _untiled,
            Expanded: _expanded,
        }
    )
)
