"""``bitwise``: whether two runs gave the same bits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from pytest_pallas.explanations import Explanation
from pytest_pallas.numerics.comparison import Comparison
from pytest_pallas.numerics.dtypes import Array, is_complex, is_exact, is_float, wide
from pytest_pallas.numerics.explanation import Sides, explain, state
from pytest_pallas.numerics.measure import measure


def bitwise(actual: npt.ArrayLike, expected: npt.ArrayLike, *, where: str = "") -> Comparison:
    """Compare two arrays bit for bit, NaN payloads and the sign of zero included.

    For determinism and immutability, where no error is small. Any shape and dtype of fixed size
    will do. ``expected_value`` and ``baseline_value`` are both those of ``expected``.
    """
    actual, expected = np.asarray(actual), np.asarray(expected)
    if actual.shape != expected.shape:
        return state("shape", where, f"shape {actual.shape} and not {expected.shape}", actual)
    if actual.dtype != expected.dtype:
        return state("dtype", where, f"dtype {actual.dtype} and not {expected.dtype}", actual)
    if actual.dtype.hasobject:
        return state("dtype", where, f"arrays of dtype {actual.dtype} have no bits", actual)
    mask = (_bytes(actual) != _bytes(expected)).any(axis=-1).reshape(actual.shape)
    wrong = int(np.count_nonzero(mask))
    result = Comparison(
        passed=wrong == 0,
        kind="bitwise",
        where=where,
        shape=actual.shape,
        dtype=str(actual.dtype),
        wrong=wrong,
        mask=mask if wrong else None,
    )
    if not wrong:
        return result
    if not any(test(actual.dtype) for test in (is_exact, is_float, is_complex)):
        text = f"{where or 'output'}: {wrong} elements differ in bits"
        return replace(result, explanation=Explanation(text))
    errors = _errors(actual, expected, mask)
    # Where the values are equal (-0.0 and 0.0, two NaNs) the first difference is as bad as any.
    flat = int(np.argmax(np.where(mask, errors, -1.0)))
    index = tuple(int(i) for i in np.unravel_index(flat, mask.shape))
    sides = Sides(actual, expected, expected)
    error = float(errors[index])
    result = replace(result, error=error, multiple=error, worst_index=index, **sides.at(index))
    return explain(result, sides)


def _bytes(array: Array) -> Array:
    """The bytes of each element: uint8[elements, itemsize]."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.dtype.itemsize)


def _errors(actual: Array, expected: Array, mask: Array) -> Array:
    """Absolute differences of integers, ulps of floats; infinite where the class differs."""
    if is_exact(actual.dtype):
        errors = np.zeros(mask.shape)
        difference = wide(actual[mask]).astype(object) - wide(expected[mask]).astype(object)
        errors[mask] = abs(difference).astype(np.float64)
        return errors
    measured = measure(wide(actual), wide(expected), wide(expected), actual.dtype)
    if measured.misclassed is None:
        return measured.errors
    return np.where(measured.misclassed, np.inf, measured.errors)
