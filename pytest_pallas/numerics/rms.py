"""The second criterion of the default rule: the root mean square of all errors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pytest_pallas.numerics.dtypes import Array
from pytest_pallas.numerics.measure import Measured
from pytest_pallas.numerics.tolerance import Tolerance


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
