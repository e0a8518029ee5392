"""Rules: sorting, the largest elements, and where the extrema are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from pytest_pallas.simulator.arithmetic.dtypes import (
    compute_dtype,
    converter,
    is_complex,
    is_float,
    widen,
)
from pytest_pallas.simulator.registry import Equation, Evaluate, rule

Array = np.ndarray[Any, Any]


@rule("sort")
def _sort(eqn: Equation) -> Evaluate:
    # 0.0 and -0.0 are equal here, and all NaNs come last, whatever their sign: as numpy sorts. A
    # sort that need not be stable is stable, too.
    axis, keys = eqn.params["dimension"], eqn.params["num_keys"]
    dtype = np.dtype(eqn.outs[0].dtype)
    if len(eqn.ins) == 1 and not is_complex(dtype):
        wide = compute_dtype(dtype)
        narrow = converter(wide, dtype)
        kind = "stable" if is_float(dtype) else "quicksort"
        return lambda value: [narrow(np.sort(widen(value), axis, kind))]

    def evaluate(*values: Any) -> list[Array]:
        parts: list[Array] = []
        for key in map(widen, values[:keys]):
            # Complex numbers by their real parts, then by their imaginary parts.
            parts += [key.real, key.imag] if key.dtype.kind == "c" else [key]
        if len(parts) == 1:
            order = parts[0].argsort(axis, "stable")
        else:
            order = np.lexsort(parts[::-1], axis)
        return _picked(values, order, axis)

    return evaluate


def _picked(values: Any, order: Array, axis: int) -> list[Array]:
    """The elements of each array at these positions along an axis."""
    if order.ndim == 1:
        return [value[order] for value in values]
    return [np.take_along_axis(value, order, axis) for value in values]


@rule("top_k")
def _top_k(eqn: Equation) -> Evaluate:
    axis, count = eqn.params["axis"], eqn.params["k"]
    falling = _falling(np.dtype(eqn.outs[0].dtype))
    first = (*(slice(None),) * axis, slice(0, count))
    dtype = np.dtype(eqn.outs[1].dtype)

    def evaluate(value: Any) -> list[Array]:
        order = falling(value).argsort(axis, "stable")[first]
        return [*_picked([value], order, axis), order.astype(dtype)]

    return evaluate


def _falling(dtype: np.dtype[Any]) -> Callable[[Any], Array]:
    """The function that gives integers which rise as the numbers of a dtype fall.

    Floats are in their total order: -NaN, -inf, ..., -0.0, 0.0, ..., inf, NaN.
    """
    if not is_float(dtype):
        return lambda value: ~widen(value)
    width = compute_dtype(dtype).itemsize
    signed = np.dtype(f"i{width}")
    rest = signed.type(np.iinfo(signed).max)

    def falling(value: Any) -> Array:
        bits = np.asarray(widen(value)).view(signed)
        return ~np.where(bits < 0, bits ^ rest, bits)

    return falling


@rule("approx_top_k")
def _approx_top_k(eqn: Equation) -> Evaluate:
    # Exact, as JAX is everywhere but on a TPU. Where NaN goes is not specified.
    axis = eqn.params["reduction_dimension"] % len(eqn.ins[0].shape)
    largest, dtype = eqn.params["is_max_k"], np.dtype(eqn.outs[1].dtype)
    last = eqn.ins[0].shape[axis] - 1
    back = (*(slice(None),) * axis, slice(None, None, -1))
    first = (*(slice(None),) * axis, slice(0, eqn.outs[0].shape[axis]))

    def evaluate(value: Any) -> list[Array]:
        key = widen(value)
        if largest:
            order = last - key[back].argsort(axis, "stable")[back]
        else:
            order = key.argsort(axis, "stable")
        order = order[first]
        return [*_picked([value], order, axis), order.astype(dtype)]

    return evaluate


@rule("argmax")
def _argmax(eqn: Equation) -> Evaluate:
    (axis,), dtype = eqn.params["axes"], np.dtype(eqn.out.dtype)
    return lambda value: widen(value).argmax(axis).astype(dtype)


@rule("argmin")
def _argmin(eqn: Equation) -> Evaluate:
    (axis,), dtype = eqn.params["axes"], np.dtype(eqn.out.dtype)
    return lambda value: widen(value).argmin(axis).astype(dtype)
