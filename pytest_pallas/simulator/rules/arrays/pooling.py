"""Rules: reductions over windows that slide along an array, and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_pallas.simulator.arithmetic.dtypes import compute_dtype, converter
from pytest_pallas.simulator.arithmetic.lanes import in_lanes
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.rules.arrays.reductions import extremum, identity_of_extremum
from pytest_pallas.simulator.rules.arrays.shapes import padder
from pytest_pallas.simulator.thread import Thread

Array = np.ndarray[Any, Any]


def _slider(
    eqn: Equation, given: tuple[int, ...], out: tuple[int, ...], dtype: np.dtype[Any]
) -> Callable[[Any, Any], Array]:
    """The function that pads an array and gives its windows, as a view.

    The view has the axes of the result and then those of a window.
    """
    config = _padding(eqn)
    rank = len(given)
    pad = padder(given, config, dtype)
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
    """What is added to each axis: before, after, and between its elements."""
    apart = eqn.params.get("base_dilation") or (1,) * len(eqn.params["padding"])
    return [(low, high, n - 1) for (low, high), n in zip(eqn.params["padding"], apart, strict=True)]


@rule("reduce_window_sum")
def _window_sum(eqn: Equation) -> Evaluate:
    return _simple(eqn, 0, lambda windows, axes: np.add.reduce(windows, axes, windows.dtype) + 0)


@rule("reduce_window_max")
def _window_max(eqn: Equation) -> Evaluate:
    identity = identity_of_extremum(np.dtype(eqn.out.dtype), largest=True)
    return _simple(eqn, identity, lambda windows, axes: extremum(windows, axes, largest=True))


@rule("reduce_window_min")
def _window_min(eqn: Equation) -> Evaluate:
    identity = identity_of_extremum(np.dtype(eqn.out.dtype), largest=False)
    return _simple(eqn, identity, lambda windows, axes: extremum(windows, axes, largest=False))


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
    """The places in a window, and in which windows there is an element; None for all of them.

    Where an array is padded, XLA does not reduce anything.
    """
    given = tuple(eqn.ins[0].shape)
    real = _slider(eqn, given, out, np.dtype(bool))(np.ones(given, bool), False)
    masks = [(place, real[(..., *place)]) for place in np.ndindex(*eqn.params["window_dimensions"])]
    return [(place, None if mask.all() else mask) for place, mask in masks]


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
        found: list[Any] = [np.broadcast_to(start, shape) for start in starts]
        for place, real in places:
            after = run(program, thread, [*found, *(each[(..., *place)] for each in windows)])
            if real is not None:
                after = [np.where(real, *pair) for pair in zip(after, found, strict=True)]
            found = after
        return found

    return evaluate


@rule("select_and_gather_add")
def _select_and_gather_add(eqn: Equation) -> Evaluate:
    shape, given = tuple(eqn.out.shape), tuple(eqn.ins[0].shape)
    dtype, key = np.dtype(eqn.out.dtype), np.dtype(eqn.ins[1].dtype)
    wide = compute_dtype(key)
    widen = converter(key, wide)
    tangents_of = _slider(eqn, given, shape, dtype)
    slide = _slider(eqn, given, shape, wide)
    stays, identity = _selection(eqn, key)
    places = _places(eqn, shape)

    def evaluate(tangents: Any, value: Any) -> Array:
        candidates = tangents_of(tangents, 0)
        windows = slide(widen(value), identity)
        best = np.full(shape, identity, wide)
        found = np.zeros(shape, dtype)
        for place, real in places:
            keep = stays(best, windows[(..., *place)])
            if real is not None:
                keep |= ~real
            best = np.where(keep, best, windows[(..., *place)])
            found = np.where(keep, found, candidates[(..., *place)])
        return found

    return evaluate


@rule("select_and_scatter_add")
def _select_and_scatter_add(eqn: Equation) -> Evaluate:
    given, shape = tuple(eqn.ins[1].shape), tuple(eqn.ins[0].shape)
    dtype, key = np.dtype(eqn.out.dtype), np.dtype(eqn.ins[1].dtype)
    wide = compute_dtype(key)
    widen = converter(key, wide)
    slide = _slider(eqn, given, shape, wide)
    stays, identity = _selection(eqn, key)
    places = list(np.ndindex(*eqn.params["window_dimensions"]))
    # Elements of the padded array are numbered, and each window holds the numbers of its own.
    padded = tuple(
        low + size + high for size, (low, high) in zip(given, eqn.params["padding"], strict=True)
    )
    numbers = np.arange(math.prod(padded)).reshape(padded)
    bare = Equation(
        name=eqn.name,
        params={**eqn.params, "padding": ((0, 0),) * len(given)},
        ins=eqn.ins,
        outs=eqn.outs,
    )
    numbered = _slider(bare, padded, shape, numbers.dtype)(numbers, 0)
    inside = tuple(
        slice(low, low + size) for size, (low, _) in zip(given, eqn.params["padding"], strict=True)
    )

    def evaluate(source: Any, value: Any) -> Array:
        windows = slide(widen(value), identity)
        best, where = windows[(..., *places[0])], numbered[(..., *places[0])]
        for place in places[1:]:
            keep = stays(best, windows[(..., *place)])
            best = np.where(keep, best, windows[(..., *place)])
            where = np.where(keep, where, numbered[(..., *place)])
        result = np.zeros(padded, dtype)
        np.add.at(result.reshape(-1), where.reshape(-1), source.reshape(-1))
        return result[inside]

    return evaluate


def _selection(eqn: Equation, dtype: np.dtype[Any]) -> tuple[Any, Any]:
    """Whether the element that is selected stays, and what every other one is better than."""
    largest = eqn.params["select_prim"].name == "ge"
    return (np.greater_equal if largest else np.less_equal), identity_of_extremum(
        dtype, largest=largest
    )
