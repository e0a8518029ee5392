"""The rules of ``compare``: errors, their root mean square, and what is allowed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from pallas_sim.dtypes import Array, epsilon, is_complex, is_exact, wide
from pytest_pallas.numerics.explanation import ComparedArrays
from pytest_pallas.numerics.measure import Measured, measure, overflow_gap
from pytest_pallas.numerics.noise import Noise, excused
from pytest_pallas.numerics.tolerance import Tolerance, summation_error


@dataclass(frozen=True)
class Rms:
    """Root mean square errors in ulps of the output scale: the kernel's, and what it is held to.

    Attributes:
      error: that of the kernel.
      baseline: that of the baseline.
      allowed: the largest that would have passed; see ``Tolerance.allowed_rms``.
    """

    error: float
    baseline: float
    allowed: float

    @property
    def multiple(self) -> float:
        """``error / baseline``, infinite if the baseline is exact."""
        return self.error / self.baseline if self.baseline else math.inf


def excessive_rms(
    measured: Measured,
    tolerance: Tolerance,
    dtype: npt.DTypeLike,
    *,
    depth: int,
    sensitivity: float,
    excused: Array | None,
) -> Rms | None:
    """The root mean square errors of an output of ``dtype`` if they are too large, or None.

    Args:
      measured: the errors.
      tolerance: what they are held to.
      dtype: the float or complex dtype of the output.
      depth: see ``Tolerance.allowed_rms``.
      sensitivity: see ``Tolerance.allowed_rms``.
      excused: True for elements that ``tolerance.fraction`` excuses; None if there are none.
    """
    errors, worst, count = measured.errors, measured.worst, measured.compared
    if excused is not None:
        errors = errors[~excused]
        worst = float(errors.max(initial=0.0))
        count -= int(np.count_nonzero(excused))
    if count <= 0:
        return None

    def allowed(baseline_rms: float) -> float:
        return tolerance.allowed_rms(baseline_rms, dtype, count, depth, sensitivity)

    # Most outputs pass before anything is summed, and most others before the baseline is.
    least = allowed(0.0)
    if worst <= least:
        return None
    error = _root_mean_square(errors, count)
    if error <= least:
        return None
    baseline = _root_mean_square(measured.baseline_errors, measured.baseline_errors.size)
    found = Rms(error, baseline, allowed(baseline))
    return found if error > found.allowed else None


def _root_mean_square(errors: Array, count: int) -> float:
    """The root of the sum of squares over ``count``, which excludes zeros that mean nothing."""
    flat = errors.ravel()
    # einsum, because a threaded BLAS costs milliseconds on a busy machine.
    with np.errstate(over="ignore"):
        return math.sqrt(float(np.einsum("i,i->", flat, flat)) / max(count, 1))


@dataclass(frozen=True)
class ErrorVerdict:
    """The errors of one output against what is allowed, before anything is explained."""

    kind: str
    errors: Array
    worst: float
    limit: Array | float
    wrong: Array | None
    misclassed: Array | None = None
    baseline_worst: float = 0.0
    rms: Rms | None = None

    def worst_index(self, present: Array | None = None) -> tuple[int, ...]:
        """Where the first element of wrong class is, else the one furthest over its limit.

        ``present`` is True where elements are, if not everywhere.
        """
        ranked = self.errors
        if self.misclassed is not None:
            ranked = self.misclassed
        elif isinstance(self.limit, np.ndarray) and self.wrong is not None and self.rms is None:
            with np.errstate(all="ignore"):
                over = self.errors - self.limit
            ranked = np.where(self.wrong, over, -1.0) if self.wrong.any() else ranked
        if present is not None:
            ranked = np.where(present, ranked, -1.0)
        flat = int(np.argmax(ranked))
        return tuple(int(i) for i in np.unravel_index(flat, ranked.shape))


def judge_integers(sides: ComparedArrays, tolerance: Tolerance, exact: bool) -> ErrorVerdict:
    """Judge integers and bools by equality with the baseline, or by an explicit rule."""
    explicit = tolerance.explicit and not exact
    actual, expected = wide(sides.actual), wide(sides.baseline)
    wrong = np.asarray(actual != expected, dtype=bool)
    if sides.present is not None:
        wrong &= sides.present
    if not wrong.any():
        return ErrorVerdict("explicit" if explicit else "exact", wrong, 0.0, 0.0, None)
    # Python ints, because the difference of two int64 may not be one.
    difference = abs(actual[wrong].astype(object) - expected[wrong].astype(object))
    errors = np.zeros(actual.shape)
    errors[wrong] = difference.astype(np.float64)
    worst = float(errors.max())
    if not explicit:
        return ErrorVerdict("exact", errors, worst, 0.0, wrong)
    limit = _explicit_limit(tolerance, np.abs(expected.astype(np.float64)), 1.0)
    return ErrorVerdict("explicit", errors, worst, limit, errors > limit)


def judge_exact(sides: ComparedArrays) -> ErrorVerdict:
    """Judge floats by equality with the rounded oracle."""
    dtype = sides.actual.dtype
    actual = wide(sides.actual)
    with np.errstate(all="ignore"):
        expected = wide(_numeric(sides.oracle, dtype).astype(dtype))
    equal = actual == expected
    if not equal.all():
        equal |= np.isnan(actual) & np.isnan(expected)
    if sides.present is not None:
        equal |= ~sides.present
    if equal.all():
        return ErrorVerdict("exact", equal, 0.0, 0.0, None)
    measured = measure(actual, expected, expected, dtype, sides.present)
    return ErrorVerdict(
        "exact", measured.errors, measured.worst, 0.0, ~equal, misclassed=measured.misclassed
    )


def judge_floats(
    sides: ComparedArrays,
    tolerance: Tolerance,
    depth: int,
    sensitivity: float,
    noise: Noise | None = None,
    *,
    inexact: bool = False,
) -> ErrorVerdict:
    """Judge floats and complex numbers by their errors; ``noise`` may widen the bounds.

    ``inexact`` says that the oracle has the errors of float32, or of a narrower dtype, itself.
    """
    dtype = sides.actual.dtype
    actual = wide(sides.actual)
    measured = measure(
        actual,
        _numeric(sides.oracle, dtype),
        _numeric(sides.baseline, dtype),
        dtype,
        sides.present,
    )
    if tolerance.explicit:
        limit = _explicit_limit(tolerance, np.abs(measured.target), measured.scale * epsilon(dtype))
        return _judge_elements("explicit", measured, limit)
    limit = tolerance.allowed(measured.baseline_worst, dtype, depth)
    relative = max(1.0, sensitivity / float(measured.scale.min()))
    if relative > 1.0:
        excess = np.maximum(sensitivity / measured.scale, 1.0) - 1.0
        limit = limit + summation_error(dtype, depth) * excess
    spared = None
    if noise is not None:
        spared = excused(noise, measured, tolerance, dtype, limit, inexact=inexact)
        limit = np.maximum(limit + spared.unknown, spared.each) + spared.sums
    held = measured
    if measured.misclassed is not None:
        gap = overflow_gap(actual, measured.target, dtype)
        overflow = measured.misclassed & (gap <= limit)
        errors = np.where(overflow, gap, measured.errors)
        held = replace(
            measured,
            errors=errors,
            worst=float(errors.max()),
            misclassed=measured.misclassed & ~overflow,
        )
    verdict = _judge_elements("close", held, limit)
    wrong = verdict.wrong
    count = 0 if wrong is None else int(np.count_nonzero(wrong))
    if verdict.misclassed is not None or count > tolerance.fraction * sides.count:
        return verdict
    rms = excessive_rms(
        measured,
        tolerance,
        dtype,
        depth=depth,
        sensitivity=relative,
        excused=wrong if count else None,
    )
    if rms is not None and spared is not None:
        allowed = max(rms.allowed + spared.unknown_rms, spared.rms) + spared.sums_rms
        rms = replace(rms, allowed=allowed)
    if rms is None or rms.error <= rms.allowed:
        return verdict
    wrong = measured.errors > measured.baseline_worst
    if not wrong.any():
        wrong = measured.errors == measured.worst
    return replace(verdict, kind="rms", errors=measured.errors, wrong=wrong, rms=rms)


def _judge_elements(kind: str, measured: Measured, limit: Array | float) -> ErrorVerdict:
    """Hold each element to its limit, and to the class of the oracle."""
    errors, worst, misclassed = measured.errors, measured.worst, measured.misclassed
    if misclassed is not None and misclassed.any():
        kind, wrong = "class", misclassed | (errors > limit)
    else:
        misclassed = None
        wrong = None if np.ndim(limit) == 0 and worst <= limit else errors > limit
    return ErrorVerdict(kind, errors, worst, limit, wrong, misclassed, measured.baseline_worst)


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
