"""Rules: sums, products and extrema of everything up to each element of an axis.

Floats of 16 bits and fewer are added in float32, and each result is rounded once. JAX rounds the
partial results of its tree instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.simulator.dtypes import compute_dtype, converter, is_float
from pytest_pallas.simulator.registry import Equation, Evaluate, rule

Array = np.ndarray[Any, Any]

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
