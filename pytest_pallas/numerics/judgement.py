"""``compare``: whether an output is acceptable, given its oracle and its baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_pallas.errors import ReferenceError
from pytest_pallas.numerics.comparison import Comparison
from pytest_pallas.numerics.dtypes import Array, epsilon, is_complex, is_exact, is_float, wide
from pytest_pallas.numerics.explanation import Sides, explain, state
from pytest_pallas.numerics.measure import Measured, measure, overflow_gap
from pytest_pallas.numerics.tolerance import Tolerance, summation_error

_DEFAULT = Tolerance()


@dataclass(frozen=True)
class _Verdict:
    """The errors of one output against what is allowed, before anything is explained."""

    kind: str
    errors: Array
    worst: float
    limit: Array | float
    wrong: Array | None
    misclassed: Array | None = None
    baseline_worst: float = 0.0


def compare(
    actual: npt.ArrayLike,
    oracle: npt.ArrayLike,
    baseline: npt.ArrayLike,
    *,
    tolerance: Tolerance = _DEFAULT,
    exact: bool = False,
    depth: int = 1,
    sensitivity: float = 0.0,
    where: str = "",
    check_dtype: bool = True,
    block_shape: Sequence[int | None] | None = None,
) -> Comparison:
    """Judge one output array. All three arrays must have one shape; any shape will do.

    Integers and bools must equal the baseline, unless ``tolerance`` has an explicit rule. Floats
    and complex numbers must have the oracle's class (NaN, infinite, finite) in every element, and
    be as near to it as ``tolerance`` asks.

    Args:
      actual: the kernel's output.
      oracle: the reference in float64 or complex128 (of integers: any integer dtype).
      baseline: the reference in the kernel's own dtypes.
      tolerance: how far ``actual`` may be from ``oracle``.
      exact: ask that ``actual`` is the oracle rounded to its dtype, bit for bit, except that
        -0.0 equals 0.0 and every NaN every other; ``tolerance`` is then not used.
      depth: an upper bound of the number of terms of any sum in the kernel, such as the largest
        dimension of any input; see ``tolerance.summation_error``.
      sensitivity: how much the output changes with its inputs, absolute per relative change: the
        size of the terms behind an output that nearly cancels. What another order of summation
        may cost is relative to it where it is larger than the output's own scale.
      where: which output this is, for messages.
      check_dtype: whether ``actual`` must have the dtype of ``baseline``.
      block_shape: block shape of the output, None for a squeezed dimension; for messages.

    Raises:
      ReferenceError: oracle and baseline have different shapes.
    """
    sides = Sides(np.asarray(actual), np.asarray(oracle), np.asarray(baseline))
    unfit = _unfit(sides, where, check_dtype)
    if unfit is not None:
        return unfit
    if sides.actual.size == 0:
        verdict = _Verdict("exact" if exact else "close", np.zeros(()), 0.0, 0.0, None)
    elif is_exact(sides.actual.dtype):
        verdict = _judge_integers(sides, tolerance, exact)
    elif exact:
        verdict = _judge_exact(sides)
    else:
        verdict = _judge_floats(sides, tolerance, depth, sensitivity)
    return _conclude(sides, verdict, 0.0 if exact else tolerance.fraction, where, block_shape)


def _unfit(sides: Sides, where: str, check_dtype: bool) -> Comparison | None:
    """The failed comparison of arrays that cannot be compared, or None."""
    actual, oracle, baseline = sides.actual, sides.oracle, sides.baseline
    if oracle.shape != baseline.shape:
        raise ReferenceError(
            f"{where or 'output'}: the reference returned shape {oracle.shape} in float64 and "
            f"{baseline.shape} in the kernel's dtypes; it must not depend on the dtype"
        )
    if actual.shape != oracle.shape:
        kind = "shape"
        text = f"the kernel returned shape {actual.shape}, the reference {oracle.shape}"
    elif check_dtype and actual.dtype != baseline.dtype:
        kind = "dtype"
        text = f"the kernel returned dtype {actual.dtype}, the reference {baseline.dtype}"
    elif not any(test(actual.dtype) for test in (is_exact, is_float, is_complex)):
        kind, text = "dtype", f"arrays of dtype {actual.dtype} cannot be compared"
    else:
        return None
    return state(kind, where, text, actual)


def _judge_integers(sides: Sides, tolerance: Tolerance, exact: bool) -> _Verdict:
    explicit = tolerance.explicit and not exact
    actual, expected = wide(sides.actual), wide(sides.baseline)
    wrong = np.asarray(actual != expected, dtype=bool)
    if not wrong.any():
        return _Verdict("explicit" if explicit else "exact", wrong, 0.0, 0.0, None)
    # Python ints, because the difference of two int64 may not be one.
    difference = abs(actual[wrong].astype(object) - expected[wrong].astype(object))
    errors = np.zeros(actual.shape)
    errors[wrong] = difference.astype(np.float64)
    worst = float(errors.max())
    if not explicit:
        return _Verdict("exact", errors, worst, 0.0, wrong)
    limit = _explicit_limit(tolerance, np.abs(expected.astype(np.float64)), 1.0)
    return _Verdict("explicit", errors, worst, limit, errors > limit)


def _judge_exact(sides: Sides) -> _Verdict:
    """Judge floats by equality with the rounded oracle."""
    dtype = sides.actual.dtype
    actual = wide(sides.actual)
    with np.errstate(all="ignore"):
        expected = wide(_numeric(sides.oracle, dtype).astype(dtype))
    equal = actual == expected
    if not equal.all():
        equal |= np.isnan(actual) & np.isnan(expected)
    if equal.all():
        return _Verdict("exact", equal, 0.0, 0.0, None)
    measured = measure(actual, expected, expected, dtype)
    return _Verdict(
        "exact", measured.errors, measured.worst, 0.0, ~equal, misclassed=measured.misclassed
    )


def _judge_floats(sides: Sides, tolerance: Tolerance, depth: int, sensitivity: float) -> _Verdict:
    """Judge floats and complex numbers by their errors."""
    dtype = sides.actual.dtype
    actual = wide(sides.actual)
    measured = measure(
        actual, _numeric(sides.oracle, dtype), _numeric(sides.baseline, dtype), dtype
    )
    errors, worst, misclassed = measured.errors, measured.worst, measured.misclassed
    if tolerance.explicit:
        kind, limit = "explicit", _float_limit(tolerance, measured, epsilon(dtype))
    else:
        kind, limit = "close", tolerance.allowed(measured.baseline_worst, dtype, depth)
        if sensitivity > measured.scale.min():
            excess = np.maximum(sensitivity / measured.scale, 1.0) - 1.0
            limit = limit + summation_error(dtype, depth) * excess
        if misclassed is not None:
            gap = overflow_gap(actual, measured.target, dtype)
            excused = misclassed & (gap <= limit)
            misclassed = misclassed & ~excused
            errors = np.where(excused, gap, errors)
            worst = float(errors.max())
    if misclassed is not None and misclassed.any():
        wrong = misclassed | (errors > limit)
        kind = "class"
    else:
        misclassed = None
        wrong = None if np.ndim(limit) == 0 and worst <= limit else errors > limit
    return _Verdict(kind, errors, worst, limit, wrong, misclassed, measured.baseline_worst)


def _numeric(values: Array, dtype: np.dtype[Any]) -> Array:
    """``values`` as float64 or complex128, to be measured against an output of ``dtype``."""
    values = wide(values)
    if is_complex(dtype):
        return values.astype(np.complex128, copy=False)
    return values.astype(np.float64, copy=False) if is_exact(values.dtype) else values


def _explicit_limit(tolerance: Tolerance, magnitude: Array, unit: Array | float) -> Array:
    """What the explicit rule allows each element, in units of ``unit``."""
    with np.errstate(all="ignore"):
        limit = ((tolerance.atol or 0.0) + (tolerance.rtol or 0.0) * magnitude) / unit
    return np.maximum(limit, tolerance.ulp or 0.0)


def _float_limit(tolerance: Tolerance, measured: Measured, eps: float) -> Array:
    return _explicit_limit(tolerance, np.abs(measured.target), measured.scale * eps)


def _conclude(
    sides: Sides,
    verdict: _Verdict,
    fraction: float,
    where: str,
    block_shape: Sequence[int | None] | None,
) -> Comparison:
    """The verdict as a ``Comparison``, explained if it failed."""
    actual = sides.actual
    count = 0 if verdict.wrong is None else int(np.count_nonzero(verdict.wrong))
    misclassed = verdict.misclassed is not None
    error = np.inf if misclassed else verdict.worst
    index, limit, values = None, verdict.limit, {}
    if actual.size:
        index = _worst_index(verdict)
        limit = limit[index] if isinstance(limit, np.ndarray) else limit
        values = sides.at(index)
    result = Comparison(
        passed=not misclassed and count <= fraction * actual.size,
        kind=verdict.kind,
        where=where,
        shape=actual.shape,
        dtype=str(actual.dtype),
        error=error,
        baseline_error=verdict.baseline_worst,
        allowed=float(limit),
        multiple=error / max(verdict.baseline_worst, 1.0),
        wrong=count,
        worst_index=index,
        mask=verdict.wrong if count else None,
        **values,
    )
    return result if result.passed else explain(result, sides, block_shape)


def _worst_index(verdict: _Verdict) -> tuple[int, ...]:
    """The index of the first element of wrong class, else of the largest error over its limit."""
    ranked = verdict.errors
    if verdict.misclassed is not None:
        ranked = verdict.misclassed
    elif isinstance(verdict.limit, np.ndarray) and verdict.wrong is not None:
        with np.errstate(all="ignore"):
            over = verdict.errors - verdict.limit
        ranked = np.where(verdict.wrong, over, -1.0) if verdict.wrong.any() else ranked
    flat = int(np.argmax(ranked))
    return tuple(int(i) for i in np.unravel_index(flat, ranked.shape))
