"""Rules: writing, adding or applying something at an array of positions.

Updates of one element are done one after the other, in the order of the positions, and each is
rounded to the dtype of the array. A window that is not entirely inside is left out, except in mode
``CLIP``, which moves it inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_pallas.simulator.arithmetic.keyed import on_words, words
from pytest_pallas.simulator.arithmetic.lanes import in_lanes
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.memory.gather_windows import GatherWindows
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.thread import Thread

Array = np.ndarray[Any, Any]

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
        lines = starts[0] * weights[0]
        for start, weight in zip(starts[1:], weights[1:], strict=True):
            lines = lines + start * weight
        operation.at(result.reshape(-1), lines, updates.reshape(-1))
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
    windows, tail = _windows(eqn), len(words(eqn))
    if not windows.flat or not windows.axes:
        written = _one_by_one(eqn, lambda _, new: new)
        return on_words(eqn, lambda _, *values: written(*values))
    prepared = _prepared(eqn)
    rank = len(eqn.ins[0].shape)
    window = _window_shape(eqn)
    rest = [axis for axis in range(rank) if axis not in windows.axes]
    order = (*windows.axes, *rest, *range(rank, rank + tail))
    cut = tuple(slice(0, window[axis]) for axis in rest)
    kept = tuple(window[axis] for axis in rest) + words(eqn)

    def evaluate(_: Thread, value: Any, positions: Any, updates: Any) -> Array:
        result, starts, updates = prepared(value, positions, updates)
        # One axis of positions: with more, numpy chooses in which order it writes.
        result.transpose(order)[(*starts, *cut)] = updates.reshape((len(updates), *kept))
        return result

    return on_words(eqn, evaluate)


def _one_by_one(eqn: Equation, operation: Callable[[Any, Any], Any]) -> Evaluate:
    """Do something with one window after the other."""
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
    """Sizes of the windows, one for each axis of the array."""
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
    """A copy of the array, where each window begins on each indexed axis, and the updates of each.

    The windows that are left out are gone. Updates have one axis for the windows, and then those of
    the array.
    """
    windows, window = _windows(eqn), _window_shape(eqn)
    numbers, clip = eqn.params["dimension_numbers"], eqn.params["mode"].name == "CLIP"
    rank = len(eqn.ins[2].shape)
    inside = tuple(numbers.update_window_dims)
    order = [dim for dim in range(rank) if dim not in inside]
    order += [*inside, *range(rank, rank + len(words(eqn)))]
    count = math.prod(windows.shape)
    shape = (count, *window, *words(eqn))

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
