"""How far an array of floats is from its oracle: errors in ulps, and non-finite classes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array, FloatFacts, float_facts, is_complex, wide

FINITE, NAN, POSITIVE, NEGATIVE = range(4)
CLASS_NAMES = {FINITE: "finite", NAN: "NaN", POSITIVE: "+inf", NEGATIVE: "-inf"}


@dataclass(frozen=True)
class Measured:
    """How far ``actual`` and the baseline are from the oracle.

    Attributes:
      target: the oracle as the output's dtype can hold it, wide: what overflows there is
        infinite, NaN or the largest number, whichever the format makes of it.
      scale: what the error of each element is relative to, in units of the output.
      errors: error of each element in ulps of the output scale; 0 where either is not finite.
      worst: the largest of ``errors``.
      compared: the number of elements where ``actual`` and ``target`` are finite.
      baseline_errors: errors of the baseline where it is finite, like ``errors``; of any shape.
      baseline_worst: the largest of ``baseline_errors``.
      misclassed: True where ``actual`` and ``target`` differ in class; None if nowhere.
    """

    target: Array
    scale: Array
    errors: Array
    worst: float
    compared: int
    baseline_errors: Array
    baseline_worst: float
    misclassed: Array | None


def classes(values: Array) -> Array:
    """The class of each element: ``FINITE``, ``NAN``, ``POSITIVE`` or ``NEGATIVE`` infinity.

    A complex number is infinite if either part is, whatever the other, and has no sign.
    """
    infinite = np.isinf(values)
    signed = infinite & ((np.real(values) > 0) | np.iscomplexobj(values))
    result = np.full(values.shape, FINITE, np.int8)
    result[np.isnan(values) & ~infinite] = NAN
    result[infinite] = NEGATIVE
    result[signed] = POSITIVE
    return result


def measure(
    actual: Array,
    oracle: Array,
    baseline: Array,
    dtype: np.dtype[Any],
    present: Array | None = None,
) -> Measured:
    """Measure wide arrays of one shape, not empty, that stand for an output of ``dtype``.

    ``present`` is True where ``actual`` is there, if it is not everywhere: the scale and the
    baseline's error are those of the whole output, the errors those of what is there.
    """
    facts = float_facts(dtype)
    with np.errstate(all="ignore"):
        target, magnitude = _as_held(oracle, dtype, facts)
        scale = np.fmax(magnitude, _least_scale(magnitude, facts))  # of NaN the least
        if present is not None:
            actual = np.where(present, actual, target)
        errors = np.abs(actual - target)
        errors /= scale
        worst = float(errors.max())
        misclassed = None
        compared = errors.size if present is None else int(np.count_nonzero(present))
        # An element that is not finite on either side makes its error NaN or infinite.
        if not np.isfinite(worst):
            actual_classes, target_classes = classes(actual), classes(target)
            misclassed = actual_classes != target_classes
            finite = (actual_classes == FINITE) & (target_classes == FINITE)
            compared = int(np.count_nonzero(finite if present is None else finite & present))
            errors = np.where(finite, errors, 0.0)
            worst = float(errors.max())
        baseline_errors = np.abs(baseline - target)
        baseline_errors /= scale
        baseline_worst = float(baseline_errors.max())
        if not np.isfinite(baseline_worst):
            baseline_errors = baseline_errors[np.isfinite(baseline_errors)]
            baseline_worst = float(baseline_errors.max(initial=0.0))
        errors /= facts.epsilon
        baseline_errors /= facts.epsilon
    return Measured(
        target=target,
        scale=scale,
        errors=errors,
        worst=worst / facts.epsilon,
        compared=compared,
        baseline_errors=baseline_errors,
        baseline_worst=baseline_worst / facts.epsilon,
        misclassed=misclassed if misclassed is not None and misclassed.any() else None,
    )


def overflow_gap(actual: Array, target: Array, dtype: np.dtype[Any]) -> Array:
    """How far elements are from overflowing, where one side did, in ulps of the largest number.

    A kernel that is one ulp off at the largest number of a format returns infinity: a small
    error, not one of class. The gap is infinite unless one side is infinite and the other finite,
    of the same sign and within 1/16 of the largest number. NaN is never excused, even in formats
    that have it for infinity.
    """
    facts = float_facts(dtype)
    if is_complex(dtype):
        return np.full(actual.shape, np.inf)
    finite = np.where(np.isfinite(actual), actual, target)
    other = np.where(np.isfinite(actual), target, actual)
    overflowed = np.isfinite(finite) & np.isinf(other) & (np.sign(finite) == np.sign(other))
    near = overflowed & (np.abs(finite) >= facts.largest * (1 - 1 / 16))
    gap = np.full(actual.shape, np.inf)
    gap[near] = (1 - np.abs(finite[near]) / facts.largest) / facts.epsilon
    return np.maximum(gap, 0.0)


def _as_held(oracle: Array, dtype: np.dtype[Any], facts: FloatFacts) -> tuple[Array, Array]:
    """The oracle with what the output's format cannot hold cast to it, and its magnitude."""
    magnitude = np.abs(oracle)
    if magnitude.max() <= facts.largest:  # False if there is a NaN
        return oracle, magnitude
    target = np.where(magnitude <= facts.largest, oracle, wide(oracle.astype(dtype)))
    return target, np.abs(target)


def _least_scale(magnitude: Array, facts: FloatFacts) -> float:
    """The scale that an element has at least: the root mean square, but not below the format's.

    Accelerators, and XLA on the CPU, flush subnormal numbers of formats with the exponent range
    of float32 or more to 0. There the least scale is such that a flush is an error of one ulp.
    """
    smallest = facts.smallest_normal
    if smallest < 1e-30:
        smallest /= facts.epsilon
    top = float(magnitude.max())
    if not np.isfinite(top):
        magnitude = magnitude[np.isfinite(magnitude)]
        top = float(magnitude.max(initial=0.0))
    if top <= smallest:
        return smallest
    unit = 1.0 if 1e-100 < top < 1e100 else top  # so that no square overflows or vanishes
    ratio = (magnitude if unit == 1.0 else magnitude / unit).ravel()
    # einsum, because a threaded BLAS costs milliseconds on a busy machine.
    squares = float(np.einsum("i,i->", ratio, ratio))
    return max(unit * math.sqrt(squares / ratio.size), smallest)
