"""``Tolerance``: how far a kernel may be from its oracle."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from pallas_sim.dtypes import epsilon, float_facts
from pallas_sim.errors import OptionError

#: Root mean square of the error of one rounding to nearest, relative to the number, in eps. The
#: error is uniform in half a unit of the last place to either side; mantissas x in [1, 2) have
#: the density ``1 / (x ln 2)`` (Hamming, "On the distribution of numbers", Bell System Technical
#: Journal 49(8), 1970); so the mean square is ``E[1 / x**2] / 12 = (3 / (8 ln 2)) / 12``.
ROUNDING = math.sqrt(3 / (8 * math.log(2)) / 12)


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """How far a kernel may be from its oracle.

    By default the bound is relative to the baseline, so that no literal has to be tuned: the worst
    error of the kernel may be ``factor`` times the worst error of the baseline, plus ``floor``,
    plus a share for the order of summation (see ``allowed``), and likewise the root mean square of
    its errors (see ``allowed_rms``). Any of ``rtol``, ``atol`` and ``ulp`` replaces both by an
    explicit rule: ``|actual - oracle| <= atol + rtol * |oracle|``, or within ``ulp`` ulps of the
    output scale.

    Attributes:
      factor: how many times the baseline's error is allowed.
      floor: ulps of the output scale that are always allowed a single element. None is 4 ulps, but
        1 ulp in formats of 8 bits and fewer, where 4 ulps are as large as the numbers themselves.
      rtol: relative part of the explicit rule.
      atol: absolute part of the explicit rule, in units of the output.
      ulp: the explicit rule in ulps of the output scale (of integers: in ones).
      fraction: the share of elements that may exceed the bound, from 0 to 1; they are left out of
        the root mean square. Elements that are NaN or infinite where they should not be are never
        excused.

    Raises:
      OptionError: a field is negative or NaN, or ``fraction`` is above 1.
    """

    factor: float = 2.0
    floor: float | None = None
    rtol: float | None = None
    atol: float | None = None
    ulp: float | None = None
    fraction: float = 0.0

    def __post_init__(self) -> None:
        for name in ("factor", "floor", "rtol", "atol", "ulp", "fraction"):
            value = getattr(self, name)
            if value is None and name not in ("factor", "fraction"):
                continue
            top = 1.0 if name == "fraction" else math.inf
            if not _between(value, top):
                span = "from 0 to 1" if name == "fraction" else "of 0 or more"
                raise OptionError(f"tolerance: {name} must be a number {span}, but is {value!r}")

    def __str__(self) -> str:
        """What differs from the default: ``Tolerance(factor=5.0)``."""
        default = Tolerance.__dataclass_fields__
        words = [
            f"{name}={getattr(self, name)!r}"
            for name, field in default.items()
            if getattr(self, name) != field.default
        ]
        return f"Tolerance({', '.join(words)})"

    @property
    def explicit(self) -> bool:
        """Whether ``rtol``, ``atol`` or ``ulp`` replaces the rule relative to the baseline."""
        return not (self.rtol is None and self.atol is None and self.ulp is None)

    def allowed(self, baseline_error: float, dtype: npt.DTypeLike, depth: int = 1) -> float:
        """The error that the baseline-relative rule allows, in ulps of the output scale.

        Args:
          baseline_error: the worst error of the baseline, in ulps of the output scale.
          dtype: the float or complex dtype of the output.
          depth: an upper bound of the number of terms of any sum in the kernel.
        """
        dtype = np.dtype(dtype)
        return self.factor * baseline_error + self._floor(dtype) + summation_error(dtype, depth)

    def allowed_rms(
        self,
        baseline_rms: float,
        dtype: npt.DTypeLike,
        count: int,
        depth: int = 1,
        sensitivity: float = 1.0,
    ) -> float:
        """The root mean square error that the default rule allows, in ulps of the output scale.

        It sees what the worst error hides: a sum that is rounded to bfloat16 at each of n steps has
        an error of about ``sqrt(n)`` roundings in nearly every element, and still no element is
        beyond 5 ulps until n is 128. The bound is the sum of

        - ``factor`` times the baseline's own RMS, or what rounding every input once would cost if
          that is more: an honest kernel may round what it computes with, such as scaled queries or
          softmax weights, where the reference does not. One rounding is ``ROUNDING`` ulps, and the
          output changes by ``sensitivity`` times as much.
        - the floor, for the errors of float32 arithmetic (all of it if the output is float32 or
          wider, where another ``exp`` or another formula is honest), or for chance: one element
          that is off by the whole floor adds ``floor / sqrt(count)``, however many of the others
          are exact.
        - the share for the order of summation, as in ``allowed``.

        Args:
          baseline_rms: the root mean square error of the baseline, in ulps of the output scale.
          dtype: the float or complex dtype of the output.
          count: how many elements are compared, 1 or more.
          depth: an upper bound of the number of terms of any sum in the kernel.
          sensitivity: how much the output changes, relative to its scale, per relative change of
            its inputs.
        """
        dtype = np.dtype(dtype)
        own = epsilon(dtype)
        share = max(min(own, epsilon(np.float32)) / own, 1 / math.sqrt(count))
        return (
            max(self.factor * baseline_rms, ROUNDING * sensitivity)
            + self._floor(dtype) * share
            + summation_error(dtype, depth) * sensitivity
        )

    def _floor(self, dtype: np.dtype[np.generic]) -> float:
        if self.floor is not None:
            return self.floor
        return 1.0 if float_facts(dtype).bits <= 8 else 4.0


def _between(value: Any, top: float) -> bool:
    """Whether ``value`` is a number from 0 to ``top``. True and False can only be mistakes."""
    number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    return number and bool(0 <= value <= top)


def summation_error(dtype: npt.DTypeLike, depth: int) -> float:
    """What summing ``depth`` terms in another order may cost, in ulps of an output of ``dtype``.

    When an output has few elements, the baseline may be exact by luck; an honest kernel that
    adds in another order must pass all the same. The rounding error of a sum of n terms is, with
    high probability, at most ``lambda * sqrt(n) * u`` relative to the size of the terms, where
    u = eps / 2 is the unit roundoff and lambda a small constant: Higham and Mary, "A new approach
    to probabilistic rounding error analysis", SIAM J. Sci. Comput. 41(5), 2019. With lambda = 2
    that is 2 * sqrt(n) * eps / 2 = sqrt(n) * eps, where eps is the accumulator's: float32's, or
    float64's for a float64 output. In units of the output's own eps the term vanishes for
    bfloat16 and narrower, so that a kernel that accumulates in those is caught.
    """
    own = epsilon(dtype)
    accumulator = min(own, epsilon(np.float32))
    return math.sqrt(max(depth, 0)) * accumulator / own
