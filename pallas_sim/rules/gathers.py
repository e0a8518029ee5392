"""Rules: windows of an array at an array of positions: gathering them, and scattering into them.

``GatherWindows`` says which windows the positions stand for; the rules move them and put their axes
where the result has them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array, convert
from pallas_sim.evaluation import run
from pallas_sim.generators import elements, key_axes, on_words
from pallas_sim.machine import Thread
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.rules.control import in_lanes


@dataclass(frozen=True, slots=True)
class GatherWindows:
    """Which windows of an array an array of positions stands for.

    Attributes:
      axes: of the array that are indexed, in order; windows hold all of the others.
      sizes: of the windows along these axes.
      limits: largest positions along these axes.
      columns: where in the index vector the position is, for each of these axes; None for a
        batching axis.
      fixed: positions along the batching axes, in the shape of the windows; None elsewhere.
      shape: of the positions, without the index vector.
    """

    axes: tuple[int, ...]
    sizes: tuple[int, ...]
    limits: tuple[int, ...]
    columns: tuple[int | None, ...]
    fixed: tuple[Array | None, ...]
    shape: tuple[int, ...]

    @classmethod
    def of(
        cls,
        array: Sequence[int],
        positions: Sequence[int],
        sizes: Sequence[int],
        index_map: Sequence[int],
        batching: Sequence[tuple[int, int]],
    ) -> GatherWindows:
        """Return the windows of an equation.

        Args:
          array: shape of the array.
          positions: shape of the positions; the last axis is the index vector.
          sizes: of a window, one for each axis of the array.
          index_map: the axis of the array for each entry of the index vector.
          batching: axes of the array that go along with axes of the positions.
        """
        shape = tuple(positions[:-1])
        columns: dict[int, int | None] = {axis: None for axis, _ in batching}
        columns |= {axis: column for column, axis in enumerate(index_map)}
        axes = tuple(sorted(columns))
        fixed: list[Array | None] = []
        along = dict(batching)
        for axis in axes:
            if axis not in along:
                fixed.append(None)
                continue
            ones = [1] * len(shape)
            ones[along[axis]] = shape[along[axis]]
            fixed.append(np.arange(shape[along[axis]]).reshape(ones))
        return cls(
            axes=axes,
            sizes=tuple(sizes[axis] for axis in axes),
            limits=tuple(array[axis] - sizes[axis] for axis in axes),
            columns=tuple(columns[axis] for axis in axes),
            fixed=tuple(fixed),
            shape=shape,
        )

    def starts(self, positions: Array) -> list[Array]:
        """Return where the windows begin, along each axis, before they are limited to the array."""
        if positions.dtype.kind != "i" or positions.itemsize < 4:  # which a place may exceed
            positions = positions.astype(np.int64)
        return [
            fixed if fixed is not None else positions[..., column]
            for column, fixed in zip(self.columns, self.fixed, strict=True)
        ]

    def outside(self, starts: Sequence[Array]) -> Array | None:
        """Return which windows are not entirely inside, or None if all are."""
        outside: Array | None = None
        for start, limit, column in zip(starts, self.limits, self.columns, strict=True):
            if column is None or not start.size:
                continue
            # As an unsigned number, a negative position is larger than any limit.
            if start.view(f"u{start.itemsize}").max() > limit:
                out = (start < 0) | (start > limit)
                outside = out if outside is None else outside | out
        return outside

    def limited(self, starts: Sequence[Array]) -> list[Array]:
        """Return starts that are moved so that the whole window lies inside."""
        return [
            start if column is None else np.minimum(np.maximum(start, 0), limit)
            for start, limit, column in zip(starts, self.limits, self.columns, strict=True)
        ]

    def elements(self, starts: Sequence[Array]) -> tuple[Array, ...]:
        """Return index arrays of the windows' elements: axes of positions, then of windows."""
        if all(size == 1 for size in self.sizes):
            return tuple(starts)
        spread: list[Array] = []
        for number, (start, size) in enumerate(zip(starts, self.sizes, strict=True)):
            ones = [1] * len(self.sizes)
            ones[number] = size
            offsets = np.arange(size).reshape(ones)
            spread.append(start.reshape(start.shape + (1,) * len(ones)) + offsets)
        return tuple(spread)

    @property
    def flat(self) -> bool:
        """Whether each window is one element along all indexed axes."""
        return all(size == 1 for size in self.sizes)


@rule("gather")
def _gather(eqn: Equation) -> Evaluate:
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"].name
    sizes = tuple(eqn.params["slice_sizes"])
    array, positions = tuple(eqn.ins[0].shape), tuple(eqn.ins[1].shape)
    batching = tuple(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    windows = GatherWindows.of(array, positions, sizes, numbers.start_index_map, batching)
    take = _taker(eqn, windows)
    if mode != "FILL_OR_DROP":

        def clamped(value: Any, positions: Any) -> Array:
            return take(value, windows.limited(windows.starts(positions)))

        return on_words(eqn, clamped)
    fill = convert(np.asarray(eqn.params["fill_value"]), elements(eqn))
    tail = (1,) * len(key_axes(eqn))
    offset = numbers.offset_dims
    kept = [1 if dim in offset else size for dim, size in enumerate(eqn.out.shape)]

    def filled(value: Any, positions: Any) -> Array:
        starts = windows.starts(positions)
        outside = windows.outside(starts)
        if outside is None:
            return take(value, starts)
        taken = take(value, windows.limited(starts))
        outside = np.broadcast_to(outside, windows.shape).reshape((*kept, *tail))
        return np.where(outside, fill, taken)

    return on_words(eqn, filled)


def _taker(eqn: Equation, windows: GatherWindows) -> Callable[[Any, Sequence[Array]], Array]:
    """Return the function that gathers windows, which are inside, into the shape of the result."""
    numbers = eqn.params["dimension_numbers"]
    sizes = tuple(eqn.params["slice_sizes"])
    tail = key_axes(eqn)
    source, shape = tuple(eqn.ins[0].shape), tuple(eqn.out.shape)
    rest = tuple(axis for axis in range(len(source)) if axis not in windows.axes)
    # The first elements along the axes that are not indexed: positions there are always 0.
    cut = tuple(
        slice(None) if axis in windows.axes else slice(0, sizes[axis])
        for axis in range(len(source))
    )
    whole = all(sizes[axis] == source[axis] for axis in rest)
    order = [*windows.axes, *rest, *range(len(source), len(source) + len(tail))]
    in_order = order == sorted(order)
    # What is taken has the axes of the positions, of the windows, and the rest.
    dropped = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    taken = windows.shape + (() if windows.flat else windows.sizes)
    taken += tuple(sizes[axis] for axis in rest) + tail
    kept_axes = tuple(axis for axis in (*windows.axes, *rest) if axis not in dropped)
    middle = windows.shape + tuple(sizes[axis] for axis in kept_axes) + tail
    places = [dim for dim in range(len(shape)) if dim not in numbers.offset_dims]
    offset = dict(zip(sorted(kept_axes), numbers.offset_dims, strict=True))
    places += [offset[axis] for axis in kept_axes]
    places += range(len(shape), len(shape) + len(tail))
    back, straight = np.argsort(places).tolist(), places == sorted(places)
    extents = tuple(source[axis] for axis in windows.axes)
    merged = (math.prod(extents), *(source[axis] for axis in rest), *tail)
    weights = [math.prod(extents[number + 1 :]) for number in range(len(extents))]

    def take(value: Any, starts: Sequence[Array]) -> Array:
        value = np.asarray(value)
        if not whole:
            value = value[cut]
        if not in_order:
            value = value.transpose(order)
        if not starts:
            result = value
        elif windows.flat and value.flags.c_contiguous:
            # This gives what indexing with arrays gives, in a fraction of the time.
            result = value.reshape(merged).take(_lines(starts, weights), 0, None, "clip")
        else:
            result = value[windows.elements(starts)]
        if result.shape != middle:
            result = np.broadcast_to(result, taken).reshape(middle)
        return result if straight else result.transpose(back)

    return take


def _lines(starts: Sequence[Array], weights: Sequence[int]) -> Array:
    """Return positions along one axis that stands for several, which have these weights."""
    pairs = zip(starts, weights, strict=True)
    return functools.reduce(np.add, [s if weight == 1 else s * weight for s, weight in pairs])


# Scatters: writing, adding or applying something at an array of positions.
#
# Updates of one element are done one after the other, in the order of the positions, and each is
# rounded to the dtype of the array. A window that is not entirely inside is left out, except in
# mode ``CLIP``, which moves it inside.


_OPERATIONS: dict[str, np.ufunc] = {
    "scatter-add": np.add,
    "scatter-sub": np.subtract,
    "scatter-mul": np.multiply,
    "scatter-min": np.minimum,
    "scatter-max": np.maximum,
}


@rule(*_OPERATIONS)
def _scatter_operation(eqn: Equation) -> Evaluate:
    operation, windows = _OPERATIONS[eqn.name], _windows(eqn)
    if math.prod(_window_shape(eqn)) != 1 or not windows.axes:
        return _one_by_one(eqn, operation)
    prepared = _prepared(eqn)
    shape = tuple(eqn.ins[0].shape)
    weights = [math.prod(shape[axis + 1 :]) for axis in windows.axes]

    def evaluate(value: Any, positions: Any, updates: Any) -> Array:
        result, starts, updates = prepared(value, positions, updates)
        operation.at(result.reshape(-1), _lines(starts, weights), updates.reshape(-1))
        return result

    return evaluate


@rule("scatter", threaded=True)
def _scatter(eqn: Equation) -> Evaluate:
    jaxpr = eqn.params["update_jaxpr"]
    if jaxpr is not None:
        program = in_lanes(jaxpr, _window_shape(eqn))

        def applied(thread: Thread, value: Any, positions: Any, updates: Any) -> Array:
            def apply(old: Array, new: Array) -> Any:
                return run(program, thread, [old, new])[0]

            return _one_by_one(eqn, apply)(value, positions, updates)

        return applied
    windows, tail = _windows(eqn), len(key_axes(eqn))
    if not windows.flat or not windows.axes:
        written = _one_by_one(eqn, lambda _, new: new)
        return on_words(eqn, lambda _, *values: written(*values))
    prepared = _prepared(eqn)
    rank = len(eqn.ins[0].shape)
    window = _window_shape(eqn)
    rest = [axis for axis in range(rank) if axis not in windows.axes]
    order = (*windows.axes, *rest, *range(rank, rank + tail))
    cut = tuple(slice(0, window[axis]) for axis in rest)
    kept = tuple(window[axis] for axis in rest) + key_axes(eqn)

    def evaluate(_: Thread, value: Any, positions: Any, updates: Any) -> Array:
        result, starts, updates = prepared(value, positions, updates)
        # One axis of positions: with more, numpy chooses in which order it writes.
        result.transpose(order)[(*starts, *cut)] = updates.reshape((len(updates), *kept))
        return result

    return on_words(eqn, evaluate)


def _one_by_one(eqn: Equation, operation: Callable[[Any, Any], Any]) -> Evaluate:
    """Return the function that changes one window after the other by an operation."""
    windows, prepared = _windows(eqn), _prepared(eqn)
    base = [slice(0, size) for size in _window_shape(eqn)]

    def evaluate(value: Any, positions: Any, updates: Any) -> Array:
        result, starts, updates = prepared(value, positions, updates)
        lines = zip(*(start.tolist() for start in starts), strict=True) if starts else None
        for update, line in zip(updates, lines or ((),) * len(updates), strict=True):
            index = base.copy()
            for axis, size, start in zip(windows.axes, windows.sizes, line, strict=True):
                index[axis] = slice(start, start + size)
            where = tuple(index)
            result[where] = operation(result[where], update)
        return result

    return evaluate


def _window_shape(eqn: Equation) -> tuple[int, ...]:
    """Return sizes of the windows, one for each axis of the array."""
    numbers = eqn.params["dimension_numbers"]
    single = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    sizes = iter(eqn.ins[2].shape[dim] for dim in numbers.update_window_dims)
    return tuple(1 if axis in single else next(sizes) for axis in range(len(eqn.ins[0].shape)))


def _windows(eqn: Equation) -> GatherWindows:
    numbers = eqn.params["dimension_numbers"]
    batching = tuple(
        zip(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims, strict=True)
    )
    return GatherWindows.of(
        eqn.ins[0].shape,
        eqn.ins[1].shape,
        _window_shape(eqn),
        numbers.scatter_dims_to_operand_dims,
        batching,
    )


def _prepared(eqn: Equation) -> Callable[[Any, Any, Any], tuple[Array, list[Array], Array]]:
    """Return the function that gives a copy of the array, the starts of windows, and their updates.

    The windows that are left out are gone. Updates have one axis for the windows, and then those of
    the array.
    """
    windows, window = _windows(eqn), _window_shape(eqn)
    numbers, clip = eqn.params["dimension_numbers"], eqn.params["mode"].name == "CLIP"
    rank = len(eqn.ins[2].shape)
    inside = tuple(numbers.update_window_dims)
    order = [dim for dim in range(rank) if dim not in inside]
    order += [*inside, *range(rank, rank + len(key_axes(eqn)))]
    count = math.prod(windows.shape)
    shape = (count, *window, *key_axes(eqn))

    def prepare(value: Any, positions: Any, updates: Any) -> tuple[Array, list[Array], Array]:
        result = np.array(value, order="C")
        starts = windows.starts(positions)
        updates = updates.transpose(order).reshape(shape)
        outside = None
        if clip:
            starts = windows.limited(starts)
        else:
            outside = windows.outside(starts)
        starts = [np.broadcast_to(start, windows.shape).reshape(-1) for start in starts]
        if outside is not None:
            inside = ~np.broadcast_to(outside, windows.shape).reshape(-1)
            starts = [start[inside] for start in starts]
            updates = updates[inside]
        return result, starts, updates

    return prepare
