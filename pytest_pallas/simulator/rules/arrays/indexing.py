"""Rules: gathering elements or windows of an array by an array of positions."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from pytest_pallas.simulator.arithmetic.dtypes import convert
from pytest_pallas.simulator.arithmetic.keyed import elements, on_words, words
from pytest_pallas.simulator.memory.gather_windows import GatherWindows
from pytest_pallas.simulator.registry import Equation, Evaluate, rule

Array = np.ndarray[Any, Any]


@rule("gather")
def _gather(eqn: Equation) -> Evaluate:
    numbers, mode = eqn.params["dimension_numbers"], eqn.params["mode"].name
    sizes = tuple(eqn.params["slice_sizes"])
    given, positions = tuple(eqn.ins[0].shape), tuple(eqn.ins[1].shape)
    batching = tuple(
        zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
    )
    windows = GatherWindows.of(given, positions, sizes, numbers.start_index_map, batching)
    take = _taker(eqn, windows)
    if mode != "FILL_OR_DROP":

        def clamped(value: Any, positions: Any) -> Array:
            return take(value, windows.limited(windows.starts(positions)))

        return on_words(eqn, clamped)
    fill = convert(np.asarray(eqn.params["fill_value"]), elements(eqn))
    tail = (1,) * len(words(eqn))
    offset = numbers.offset_dims
    kept = [1 if dim in offset else size for dim, size in enumerate(eqn.out.shape)]

    def filled(value: Any, positions: Any) -> Array:
        starts = windows.starts(positions)
        outside = windows.outside(starts)
        if outside is None:
            return take(value, starts)
        found = take(value, windows.limited(starts))
        outside = np.broadcast_to(outside, windows.shape).reshape((*kept, *tail))
        return np.where(outside, fill, found)

    return on_words(eqn, filled)


def _taker(eqn: Equation, windows: GatherWindows) -> Callable[[Any, Sequence[Array]], Array]:
    """The function that takes windows, all inside of the array, into the shape of the result."""
    numbers = eqn.params["dimension_numbers"]
    sizes = tuple(eqn.params["slice_sizes"])
    tail = words(eqn)
    given, shape = tuple(eqn.ins[0].shape), tuple(eqn.out.shape)
    rest = tuple(axis for axis in range(len(given)) if axis not in windows.axes)
    # The first elements along the axes that are not indexed: positions there are always 0.
    cut = tuple(
        slice(None) if axis in windows.axes else slice(0, sizes[axis]) for axis in range(len(given))
    )
    whole = all(sizes[axis] == given[axis] for axis in rest)
    order = (*windows.axes, *rest, *range(len(given), len(given) + len(tail)))
    in_order = order == tuple(range(len(order)))
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
    back = tuple(int(n) for n in np.argsort(places))
    straight = back == tuple(range(len(back)))
    extents = tuple(given[axis] for axis in windows.axes)
    merged = (math.prod(extents), *(given[axis] for axis in rest), *tail)
    weights = [math.prod(extents[number + 1 :]) for number in range(len(extents))]

    def take(value: Any, starts: Sequence[Array]) -> Array:
        value = np.asarray(value)
        if not whole:
            value = value[cut]
        if not in_order:
            value = value.transpose(order)
        if not starts:
            found = value
        elif windows.flat and value.flags.c_contiguous:
            # This gives what indexing with arrays gives, in a fraction of the time.
            lines = starts[0] if weights[0] == 1 else starts[0] * weights[0]
            for start, weight in zip(starts[1:], weights[1:], strict=True):
                lines = lines + (start if weight == 1 else start * weight)
            found = value.reshape(merged).take(lines, 0, None, "clip")
        else:
            found = value[windows.elements(starts)]
        if found.shape != middle:
            found = np.broadcast_to(found, taken).reshape(middle)
        return found if straight else found.transpose(back)

    return take
