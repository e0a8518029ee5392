"""Rules: reductions over whole axes, and over everything up to each element of one."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from pytest_pallas.simulator.arithmetic.dtypes import compute_dtype, converter, is_complex, is_float
from pytest_pallas.simulator.arithmetic.lanes import in_lanes
from pytest_pallas.simulator.evaluation import run
from pytest_pallas.simulator.registry import Equation, Evaluate, rule
from pytest_pallas.simulator.thread import Thread

Array = np.ndarray[Any, Any]


@rule("reduce_sum", "mosaic_gpu_reduce_sum")
def _reduce_sum(eqn: Equation) -> Evaluate:
    # From +0.0, as XLA does: a sum of nothing but -0.0 is +0.0.
    return _from_identity(eqn, np.add, 0)


@rule("reduce_prod", "mosaic_gpu_reduce_prod")
def _reduce_prod(eqn: Equation) -> Evaluate:
    return _from_identity(eqn, np.multiply, 1)


@rule("reduce_and")
def _reduce_and(eqn: Equation) -> Evaluate:
    dtype = np.dtype(eqn.out.dtype)
    ones = dtype.kind == "b" or ~np.zeros((), dtype)
    return _from_identity(eqn, np.bitwise_and, ones)


@rule("reduce_or")
def _reduce_or(eqn: Equation) -> Evaluate:
    return _from_identity(eqn, np.bitwise_or, 0)


@rule("reduce_xor")
def _reduce_xor(eqn: Equation) -> Evaluate:
    return _from_identity(eqn, np.bitwise_xor, 0)


def _from_identity(eqn: Equation, operation: np.ufunc, identity: Any) -> Evaluate:
    """Reduce from a value that changes nothing, which is also the result of no elements."""
    axes = tuple(eqn.params["axes"])
    if not axes:
        return lambda value: value
    dtype = np.dtype(eqn.out.dtype)
    wide = compute_dtype(dtype)
    start = wide.type(identity)
    reduce: Any = operation.reduce
    if wide == dtype:
        return lambda value: reduce(value, axes, wide, None, False, start)
    widen, narrow = converter(dtype, wide), converter(wide, dtype)
    return lambda value: narrow(reduce(widen(value), axes, wide, None, False, start))


@rule("reduce_max", "mosaic_gpu_reduce_max")
def _reduce_max(eqn: Equation) -> Evaluate:
    return _extremum(eqn, largest=True)


@rule("reduce_min", "mosaic_gpu_reduce_min")
def _reduce_min(eqn: Equation) -> Evaluate:
    return _extremum(eqn, largest=False)


def _extremum(eqn: Equation, *, largest: bool) -> Evaluate:
    axes = tuple(eqn.params["axes"])
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
    """The maximum along axes, or the minimum; NaN if there is one, and -0.0 is less than 0.0."""
    reduce: Any = np.maximum.reduce if largest else np.minimum.reduce
    found = reduce(value, axes)
    if value.dtype.kind != "f" or found.all():
        return found
    # For numpy, zeros are equal, and it takes either.
    negative = np.signbit(value)
    negative = negative.all(axes) if largest else negative.any(axes)
    return np.where(
        found == 0,
        np.copysign(found, np.where(negative, found.dtype.type(-1), found.dtype.type(1))),
        found,
    )


def identity_of_extremum(dtype: np.dtype[Any], *, largest: bool) -> Any:
    """The maximum of no elements, or their minimum."""
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
    given, shape = tuple(eqn.ins[0].shape), tuple(eqn.outs[0].shape)
    rest = tuple(axis for axis in range(len(given)) if axis not in axes)
    order = (*axes, *rest)
    program = in_lanes(eqn.params["jaxpr"], shape)
    total = math.prod(given[axis] for axis in axes)

    def evaluate(thread: Thread, *values: Any) -> list[Any]:
        parts = [each.transpose(order).reshape((total, *shape)) for each in values[:count]]
        found: list[Any] = [np.broadcast_to(each, shape) for each in values[count:]]
        # One after the other, as XLA does on the CPU: the computation may be anything.
        for each in zip(*parts, strict=True):
            found = run(program, thread, [*found, *each])
        return found

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
        found = operation.accumulate(value, axis, wide)
        if from_zero:
            found += 0
        elif zeros is not None and not found.all():
            found = np.where(found == 0, zeros(value), found)
        return narrow(found[back] if backwards else found)

    return evaluate


def _signs(operation: Any, dtype: np.dtype[Any], axis: int) -> Any:
    """The function that gives the zero that an extremum is where it is zero; None for others."""
    joined: Any = {np.maximum: np.logical_and, np.minimum: np.logical_or}.get(operation)
    if joined is None:
        return None
    negative, positive = dtype.type(-0.0), dtype.type(0.0)
    return lambda value: np.where(joined.accumulate(np.signbit(value), axis), negative, positive)
