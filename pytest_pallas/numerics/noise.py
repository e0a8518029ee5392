"""What rounding alone may do to an output, as measured on its reference."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pallas_sim.dtypes import Array, epsilon
from pytest_pallas.numerics.measure import Measured
from pytest_pallas.numerics.tolerance import Tolerance

#: How many standard deviations an error may be, for a factor of 1. With a factor of 2 six: the
#: largest of 10,000 normal numbers is beyond four, and the deviation of 16 draws 20 % too small.
_DEVIATIONS = 3.0

#: How much the bound of an element may grow for roundings in a narrow dtype: a kernel need not make
#: them, so that an answer without a correct digit is wrong where the baseline has some.
_MOST = 2.0


@dataclass(frozen=True)
class Noise:
    """Errors that the reference makes if it is evaluated with random roundings.

    Attributes:
      wide: where every operation is rounded in float32: float64[draws, *shape], in units of the
        output.
      narrow: likewise, where terms of sums are rounded in the output's dtype, too.
      sums: likewise, where nothing is rounded, but products are added in a random order as the
        chip's tensor cores add them; None where sums are those of float32.
    """

    wide: Array
    narrow: Array
    sums: Array | None = None


@dataclass(frozen=True)
class ExcusedErrors:
    """Errors that noise explains, in ulps of the output scale.

    Attributes:
      each: for each element; of the shape of the output.
      rms: root mean square of all.
      unknown: what the worst error of a baseline adds to the bound of each element, where it could
        not be measured.
      unknown_rms: the same of the root mean square.
      sums: what the sums of tensor cores add to the bound of each element.
      sums_rms: the same of the root mean square.
    """

    each: Array
    rms: float
    unknown: float = 0.0
    unknown_rms: float = 0.0
    sums: Array | float = 0.0
    sums_rms: float = 0.0


def excused(
    noise: Noise,
    measured: Measured,
    tolerance: Tolerance,
    dtype: npt.DTypeLike,
    limit: Array | float,
    *,
    inexact: bool = False,
) -> ExcusedErrors:
    """How large errors may be that come from rounding alone.

    An element may be off by ``3 * factor`` standard deviations of its noise in float32, and the
    root mean square of all by its mean plus as many of its own. Roundings in a narrower dtype count
    for single elements only, and at most double their bound. Few different values have few
    different roundings, which add up in some elements and not in others, so there the deviation of
    an element has that of all added. The sums of tensor cores come on top: as for a baseline, its
    ``factor`` times the worst error of a draw, or what the deviation of the element allows.

    Args:
      noise: of the reference at these inputs.
      measured: the errors of the output.
      tolerance: its ``factor`` counts.
      dtype: the float or complex dtype of the output.
      limit: what is allowed each element otherwise, in ulps of the output scale.
      inexact: whether the oracle has errors of rounding itself, about as large as the noise. Then
        the baseline's error cannot be measured, and is taken to be that of the draws on average;
        the oracle's own comes on top. A difference of two noisy answers has the square root of 2
        times the deviation of one.
    """
    unit = measured.scale * epsilon(dtype)
    times = _DEVIATIONS * tolerance.factor
    worst = mean = 0.0
    wide, rms = _deviations(noise.wide, unit)
    narrow, _ = _deviations(noise.narrow, unit)
    shared = float(np.mean(np.square(narrow)))
    if inexact:
        worst, mean = float(np.mean(_worst(noise.wide, unit))), float(np.mean(rms))
        wide, rms = math.sqrt(2) * wide, math.sqrt(2) * rms
    sums: Array | float = 0.0
    sums_rms = 0.0
    if noise.sums is not None:
        own, of_draws = _deviations(noise.sums, unit)
        sums = np.maximum(_most(_worst(noise.sums, unit), tolerance), times * own)
        sums_rms = _most(of_draws, tolerance)
    return ExcusedErrors(
        each=np.maximum(
            times * wide, np.minimum(times * np.sqrt(narrow**2 + shared), _MOST * limit)
        ),
        rms=float(np.mean(rms) + times * np.std(rms)),
        unknown=(tolerance.factor + 1) * worst,
        unknown_rms=(tolerance.factor + 1) * mean,
        sums=sums,
        sums_rms=sums_rms,
    )


def _most(errors: Array, tolerance: Tolerance) -> float:
    """What an answer like those with these errors may have: ``factor`` times that on average.

    Or as many standard deviations more as ``excused`` allows, where the errors vary.
    """
    mean, deviation = float(np.mean(errors)), float(np.std(errors))
    return max(tolerance.factor * mean, mean + _DEVIATIONS * tolerance.factor * deviation)


def _worst(draws: Array, unit: Array) -> Array:
    """The worst error of each draw, in ulps."""
    with np.errstate(all="ignore"):
        errors = np.abs(draws) / unit
    errors = np.where(np.isfinite(errors), errors, 0.0)
    return np.max(errors, axis=tuple(range(1, errors.ndim)))


def _deviations(draws: Array, unit: Array) -> tuple[Array, Array]:
    """The standard deviation of each element, and the root mean square of each draw, in ulps."""
    with np.errstate(all="ignore"):
        squares = np.square(np.abs(draws) / unit)
    squares = np.where(np.isfinite(squares), squares, 0.0)
    rest = tuple(range(1, squares.ndim))
    return np.sqrt(np.mean(squares, axis=0)), np.sqrt(np.mean(squares, axis=rest))
