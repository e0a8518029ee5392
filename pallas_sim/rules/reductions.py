"""Rules: reductions: over whole axes, up to each element of one, and over sliding windows.

They reduce in the dtype that is computed in, from the value that XLA begins with, and round once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from pallas_sim.dtypes import Array, compute_dtype, converter, is_complex, is_float
from pallas_sim.evaluation import run
from pallas_sim.machine import Thread
from pallas_sim.registry import Equation, Evaluate, rule
from pallas_sim.rules.control import in_lanes
from pallas_sim.rules.shapes import padder

#: From +0.0, as XLA does: a sum of nothing but -0.0 is +0.0.
_REDUCTIONS: dict[str, np.ufunc] = {
    "reduce_sum": np.add,
    "mosaic_gpu_reduce_sum": np.add,
    "reduce_prod": np.multiply,
    "mosaic_gpu_reduce_prod": np.multiply,
    "reduce_and": np.bitwise_and,
    "reduce_or": np.bitwise_or,
    "reduce_xor": np.bitwise_xor,
}


@rule(*_REDUCTIONS)
def _from_identity(eqn: Equation) -> Evaluate:
    """Reduce from a value that changes nothing, which is also the result of no elements."""
    axes, operation = tuple(eqn.params["axes"]), _REDUCTIONS[eqn.name]
    if not axes:
        return lambda value: value
    dtype = np.dtype(eqn.out.dtype)
    wide = compute_dtype(dtype)
    identity = ~np.zeros((), dtype) if operation is np.bitwise_and else operation.identity
    start = wide.type(identity)
    reduce: Any = operation.reduce
    if wide == dtype:
        return lambda value: reduce(value, axes, wide, None, False, start)
    widen, narrow = converter(dtype, wide), converter(wide, dtype)
    return lambda value: narrow(reduce(widen(value), axes, wide, None, False, start))


@rule("reduce_max", "mosaic_gpu_reduce_max", "reduce_min", "mosaic_gpu_reduce_min")
def _extremum(eqn: Equation) -> Evaluate:
    axes, largest = tuple(eqn.params["axes"]), eqn.name.endswith("max")
    if not axes:
        return lambda value: value
    dtype, shape = np.dtype(eqn.out.dtype), tuple(eqn.out.shape)
    if any(eqn.ins[0].shape[axis] == 0 for axis in axes):
        nothing = np.full(shape, identity_of_extremum(dtype, largest=largest))
        return lambda _: nothing
    wide = compute_dtype(dtype)
    widen, narrow = converter(dtype, wide), converter(wide, dtype)
    return lambda value: narrow(extremum(widen(value), axes, largest=largest))


def extremum(value: Array, axes: tuple[int, ...], *, largest: bool) -> Any:
    """Return the extremum along axes; NaN if there is one. -0.0 is less than 0.0."""
    reduce: Any = np.maximum.reduce if largest else np.minimum.reduce
    result = reduce(value, axes)
    if value.dtype.kind != "f" or result.all():
        return result
    # For numpy, zeros are equal, and it takes either.
    negative = np.signbit(value)
    negative = negative.all(axes) if largest else negative.any(axes)
    return np.where(
        result == 0,
        np.copysign(result, np.where(negative, result.dtype.type(-1), result.dtype.type(1))),
        result,
    )


def identity_of_extremum(dtype: np.dtype[Any], *, largest: bool) -> Any:
    """Return the maximum of no elements, or their minimum."""
    if dtype.kind == "b":
        return dtype.type(not largest)
    if is_complex(dtype):
        return dtype.type(-np.inf if largest else np.inf)
    if not is_float(dtype):
        limits = ml_dtypes.iinfo(dtype)
        return np.array(int(limits.min if largest else limits.max)).astype(dtype)
    endless = np.array(-np.inf if largest else np.inf, np.float32).astype(dtype)
    if np.isinf(endless.astype(np.float32)):
        return endless
    limits = ml_dtypes.finfo(dtype)
    return np.array(limits.min if largest else limits.max, dtype)


@rule("reduce", threaded=True)
def _reduce(eqn: Equation) -> Evaluate:
    axes, count = tuple(eqn.params["dimensions"]), len(eqn.outs)
    source, shape = tuple(eqn.ins[0].shape), tuple(eqn.outs[0].shape)
    rest = tuple(axis for axis in range(len(source)) if axis not in axes)
    order = (*axes, *rest)
    program = in_lanes(eqn.params["jaxpr"], shape)
    total = math.prod(source[axis] for axis in axes)

    def evaluate(thread: Thread, *values: Any) -> list[Any]:
        parts = [value.transpose(order).reshape((total, *shape)) for value in values[:count]]
        totals: list[Any] = [np.broadcast_to(start, shape) for start in values[count:]]
        # One after the other, as XLA does on the CPU: the computation may be anything.
        for elements in zip(*parts, strict=True):
            totals = run(program, thread, [*totals, *elements])
        return totals

    return evaluate


_OPERATIONS: dict[str, np.ufunc] = {
    "cumsum": np.add,
    "cumprod": np.multiply,
    "cummax": np.maximum,
    "cummin": np.minimum,
    "cumlogsumexp": np.logaddexp,
}


@rule(*_OPERATIONS)
def _cumulative(eqn: Equation) -> Evaluate:
    operation: Any = _OPERATIONS[eqn.name]
    axis, backwards = eqn.params["axis"], eqn.params["reverse"]
    dtype = np.dtype(eqn.out.dtype)
    wide = compute_dtype(dtype)
    widen, narrow = converter(dtype, wide), converter(wide, dtype)
    back = (*(slice(None),) * axis, slice(None, None, -1))
    # JAX starts from 0.0, if there is anything to add: a sum of nothing but -0.0 is 0.0.
    from_zero = operation is np.add and wide.kind in "fc" and eqn.out.shape[axis] > 1
    # Of -0.0 and 0.0, numpy takes either.
    zeros = _signs(operation, wide, axis) if is_float(dtype) else None

    def evaluate(value: Any) -> Array:
        value = widen(value)
        if backwards:
            value = value[back]
        result = operation.accumulate(value, axis, wide)
        if from_zero:
            result += 0
        elif zeros is not None and not result.all():
            result = np.where(result == 0, zeros(value), result)
        return narrow(result[back] if backwards else result)

    return evaluate


def _signs(operation: Any, dtype: np.dtype[Any], axis: int) -> Any:
    """Return the function that gives the zeros of an extremum; None for other operations."""
    joined: Any = {np.maximum: np.logical_and, np.minimum: np.logical_or}.get(operation)
    if joined is None:
        return None
    negative, positive = dtype.type(-0.0), dtype.type(0.0)
    return lambda value: np.where(joined.accumulate(np.signbit(value), axis), negative, positive)


# Reductions over windows that slide along an array, and their derivatives.


def _slider(
    eqn: Equation, shape: tuple[int, ...], out: tuple[int, ...], dtype: np.dtype[Any]
) -> Callable[[Any, Any], Array]:
    """Return the function that pads an array and gives its windows, as a view.

    The view has the axes of the result and then those of a window.
    """
    config = _padding(eqn)
    rank = len(shape)
    pad = padder(shape, config, dtype)
    window = tuple(eqn.params["window_dimensions"])
    strides, dilation = eqn.params["window_strides"], eqn.params.get("window_dilation")
    dilation = dilation or (1,) * rank

    def slide(value: Any, padding: Any) -> Array:
        padded = np.ascontiguousarray(pad(value, padding))
        steps = padded.strides
        outer = tuple(step * stride for step, stride in zip(steps, strides, strict=True))
        inner = tuple(step * apart for step, apart in zip(steps, dilation, strict=True))
        if 0 in out:
            return np.empty((*out, *window), dtype)
        return np.ndarray((*out, *window), dtype, padded, 0, (*outer, *inner))

    return slide


def _padding(eqn: Equation) -> list[tuple[int, int, int]]:
    """Return what is added to each axis: before, after, and between its elements."""
    apart = eqn.params.get("base_dilation") or (1,) * len(eqn.params["padding"])
    return [(low, high, n - 1) for (low, high), n in zip(eqn.params["padding"], apart, strict=True)]


@rule("reduce_window_sum")
def _window_sum(eqn: Equation) -> Evaluate:
    return _simple(eqn, 0, lambda windows, axes: np.add.reduce(windows, axes, windows.dtype) + 0)


@rule("reduce_window_max", "reduce_window_min")
def _window_extremum(eqn: Equation) -> Evaluate:
    largest = eqn.name.endswith("max")
    identity = identity_of_extremum(np.dtype(eqn.out.dtype), largest=largest)
    return _simple(eqn, identity, lambda windows, axes: extremum(windows, axes, largest=largest))


def _simple(
    eqn: Equation, identity: Any, reduce: Callable[[Array, tuple[int, ...]], Any]
) -> Evaluate:
    dtype, shape = np.dtype(eqn.out.dtype), tuple(eqn.out.shape)
    wide = compute_dtype(dtype)
    widen, narrow = converter(dtype, wide), converter(wide, dtype)
    slide = _slider(eqn, tuple(eqn.ins[0].shape), shape, wide)
    axes = tuple(range(len(shape), 2 * len(shape)))
    return lambda value: narrow(reduce(slide(widen(value), identity), axes))


def _places(eqn: Equation, out: tuple[int, ...]) -> list[tuple[tuple[int, ...], Array | None]]:
    """Return the places in a window, with the windows that have an element there, or None for all.

    Where an array is padded, XLA does not reduce anything.
    """
    shape = tuple(eqn.ins[0].shape)
    real = _slider(eqn, shape, out, np.dtype(bool))(np.ones(shape, bool), False)
    masks = [
        (offset, real[(..., *offset)]) for offset in np.ndindex(*eqn.params["window_dimensions"])
    ]
    return [(offset, None if mask.all() else mask) for offset, mask in masks]


@rule("reduce_window", threaded=True)
def _reduce_window(eqn: Equation) -> Evaluate:
    shape, count = tuple(eqn.outs[0].shape), len(eqn.outs)
    program = in_lanes(eqn.params["jaxpr"], shape)
    sliders = [
        _slider(eqn, tuple(aval.shape), shape, np.dtype(aval.dtype)) for aval in eqn.ins[:count]
    ]
    places = _places(eqn, shape)

    def evaluate(thread: Thread, *values: Any) -> list[Any]:
        starts = values[count:]
        windows = [
            slide(value, start)
            for slide, value, start in zip(sliders, values[:count], starts, strict=True)
        ]
        totals: list[Any] = [np.broadcast_to(start, shape) for start in starts]
        for offset, real in places:
            after = run(program, thread, [*totals, *(window[(..., *offset)] for window in windows)])
            if real is not None:
                after = [np.where(real, *pair) for pair in zip(after, totals, strict=True)]
            totals = after
        return totals

    return evaluate


@rule("select_and_gather_add")
def _select_and_gather_add(eqn: Equation) -> Evaluate:
    shape, source = tuple(eqn.out.shape), tuple(eqn.ins[0].shape)
    dtype, key = np.dtype(eqn.out.dtype), np.dtype(eqn.ins[1].dtype)
    wide = compute_dtype(key)
    widen = converter(key, wide)
    tangents_of = _slider(eqn, source, shape, dtype)
    slide = _slider(eqn, source, shape, wide)
    stays, identity = _selection(eqn, key)
    places = _places(eqn, shape)

    def evaluate(tangents: Any, value: Any) -> Array:
        candidates = tangents_of(tangents, 0)
        windows = slide(widen(value), identity)
        best = np.full(shape, identity, wide)
        result = np.zeros(shape, dtype)
        for offset, real in places:
            keep = stays(best, windows[(..., *offset)])
            if real is not None:
                keep |= ~real
            best = np.where(keep, best, windows[(..., *offset)])
            result = np.where(keep, result, candidates[(..., *offset)])
        return result

    return evaluate


@rule("select_and_scatter_add")
def _select_and_scatter_add(eqn: Equation) -> Evaluate:
    source, shape = tuple(eqn.ins[1].shape), tuple(eqn.ins[0].shape)
    dtype, key = np.dtype(eqn.out.dtype), np.dtype(eqn.ins[1].dtype)
    wide = compute_dtype(key)
    widen = converter(key, wide)
    slide = _slider(eqn, source, shape, wide)
    stays, identity = _selection(eqn, key)
    places = list(np.ndindex(*eqn.params["window_dimensions"]))
    # Elements of the padded array are numbered, and each window holds the numbers of its own.
    padded = tuple(
        low + size + high for size, (low, high) in zip(source, eqn.params["padding"], strict=True)
    )
    numbers = np.arange(math.prod(padded)).reshape(padded)
    bare = replace(eqn, params={**eqn.params, "padding": ((0, 0),) * len(source)})
    numbered = _slider(bare, padded, shape, numbers.dtype)(numbers, 0)
    inside = tuple(
        slice(low, low + size) for size, (low, _) in zip(source, eqn.params["padding"], strict=True)
    )

    def evaluate(source: Any, value: Any) -> Array:
        windows = slide(widen(value), identity)
        best, where = windows[(..., *places[0])], numbered[(..., *places[0])]
        for offset in places[1:]:
            keep = stays(best, windows[(..., *offset)])
            best = np.where(keep, best, windows[(..., *offset)])
            where = np.where(keep, where, numbered[(..., *offset)])
        result = np.zeros(padded, dtype)
        np.add.at(result.reshape(-1), where.reshape(-1), source.reshape(-1))
        return result[inside]

    return evaluate


def _selection(eqn: Equation, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Return whether the selected element stays, and what every other element is better than."""
    largest = eqn.params["select_prim"].name == "ge"
    return (np.greater_equal if largest else np.less_equal), identity_of_extremum(
        dtype, largest=largest
    )
