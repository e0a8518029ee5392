"""``Comparison``: the judgement of one output array, as data."""

from __future__ import annotations

from dataclasses import dataclass, field

from pallas_sim.dtypes import Array
from pallas_sim.errors import Explanation

type Scalar = bool | int | float | complex | str | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The judgement of one output array.

    Errors are in ulps of the output scale: ``|actual - oracle| / (eps * scale)``, where eps is
    that of the output's dtype and the scale of an element is its oracle's magnitude, but at least
    the root mean square of all of them. Errors of integers are absolute differences.

    Attributes:
      passed: whether the output is accepted.
      kind: the rule that decided: ``close`` (relative to the baseline), ``rms`` (the same for the
        root mean square of all errors), ``explicit`` (rtol, atol or ulp), ``exact``, ``bitwise``,
        ``class`` (NaN or infinite where it should not be, or the other way round), ``shape``,
        ``dtype`` or ``tree`` (the outputs are not the expected ones).
      where: which output, for example ``output 0`` or ``['dq']``.
      shape: shape of the kernel's output.
      dtype: name of the dtype of the kernel's output.
      error: the worst error; infinite for the kind ``class``; 0 where nothing was measured. Of the
        kind ``rms``, this and the next three are of the root mean square of the errors.
      baseline_error: the worst error of the baseline, in the same unit.
      allowed: the largest error that would have passed, at the worst element.
      multiple: ``error / max(baseline_error, 1 ulp)``: the multiple of the baseline's error. Of the
        kind ``rms``, ``error / baseline_error``, infinite if the baseline is exact.
      wrong: the number of elements outside the bound. Of the kind ``rms``, those that are worse
        than the baseline's worst, or if there are none, the worst.
      worst_index: index of the worst element, None if nothing was measured.
      actual_value: the kernel's value there.
      expected_value: the oracle's value there; of integers the baseline's.
      baseline_value: the baseline's value there.
      explanation: of a failure; None if passed.
      patterns: what the wrong elements have in common, the most specific first.
      mask: True where wrong, of the output's shape; None if no element is wrong, or none could be
        compared.
    """

    passed: bool
    kind: str
    where: str
    shape: tuple[int, ...]
    dtype: str
    error: float = 0.0
    baseline_error: float = 0.0
    allowed: float = 0.0
    multiple: float = 0.0
    wrong: int = 0
    worst_index: tuple[int, ...] | None = None
    actual_value: Scalar = None
    expected_value: Scalar = None
    baseline_value: Scalar = None
    explanation: Explanation | None = None
    patterns: tuple[str, ...] = ()
    mask: Array | None = field(default=None, repr=False, compare=False)

    @property
    def message(self) -> str:
        """The explanation as text of several lines; empty if passed."""
        return "" if self.explanation is None else str(self.explanation)
