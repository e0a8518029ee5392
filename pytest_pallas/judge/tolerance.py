"""How far a kernel may be from its oracle, and how far it is: the numerics of a judgement.

``Tolerance`` has the rules, with their sources, and ``Comparison`` is the judgement of one output
by them. ``measure`` gives the errors in ulps of the output scale, ``excused`` what rounding alone
explains of them (``Noise``), and ``Precision`` says where a reference leaves float64. Everything
here is numpy, without JAX.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from pallas_sim.dtypes import Array, FloatFacts, epsilon, float_facts, is_complex, wide
from pallas_sim.errors import Explanation, OptionError
from pallas_sim.findings import SourceLine
from pytest_pallas.decoding import Between

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
            value: Any = vars(self)[name]
            if value is None and name not in ("factor", "fraction"):
                continue
            top = 1.0 if name == "fraction" else math.inf
            # True and False can only be mistakes.
            is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
            if not is_number or not bool(0 <= vars(self)[name] <= top):
                span = "from 0 to 1" if name == "fraction" else "of 0 or more"
                raise OptionError(f"tolerance: {name} must be a number {span}, but is {value!r}")

    def __str__(self) -> str:
        """What differs from the default: ``Tolerance(factor=5.0)``."""
        default = vars(Tolerance())
        fields = [f"{name}={v!r}" for name, v in vars(self).items() if v != default[name]]
        return f"Tolerance({', '.join(fields)})"

    @property
    def explicit(self) -> bool:
        """Whether ``rtol``, ``atol`` or ``ulp`` replaces the rule relative to the baseline."""
        return not (self.rtol is None and self.atol is None and self.ulp is None)

    def allowed(self, baseline_error: float, dtype: npt.DTypeLike, depth: int = 1) -> float:
        """Return the error that the baseline-relative rule allows, in ulps of the output scale.

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
        """Return the RMS error that the default rule allows, in ulps of the output scale.

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


#: What stands for a tolerance: 1e-3 for both parts of the explicit rule, or fields by name.
type AnyTolerance = Tolerance | float | Mapping[str, float | None]

_FIELDS = tuple(Tolerance.__dataclass_fields__)

_FORMS = (
    'write 1e-3 (rtol and atol), {"rtol": 1e-3, "atol": 1e-5}, pytest_pallas.Tolerance(ulp=8), or '
    "a mapping from a dtype, a backend or both to one of these: "
    '{"bfloat16": 1e-2, "gpu float32": 1e-4}'
)


def as_tolerance(value: Any) -> Tolerance | Mapping[str, Tolerance] | None:
    """Return the tolerance that a value stands for, or the tolerances of a mapping by its keys.

    A number is ``rtol`` and ``atol``, as in ``numpy.testing.assert_allclose``; a mapping whose keys
    are fields of ``Tolerance`` has these. Keys that are no text, such as ``jnp.float32``, become
    the names of dtypes.

    Raises:
      OptionError: it stands for none; the message says how to write one.
    """
    if value is None or isinstance(value, Tolerance):
        return value
    if isinstance(value, Mapping):
        entries: dict[str, Any] = {_key(key): entry for key, entry in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
        fields = [key for key in entries if key in _FIELDS]
        if fields and len(fields) == len(entries):
            return Tolerance(**entries)
        if fields or not entries:
            raise OptionError(f"tolerance: {value!r} mixes fields with other keys; {_FORMS}")
        return {key: _single(key, entry) for key, entry in entries.items()}
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not is_number or not 0 < float(value) < math.inf:
        hint = "exact=True asks for equal numbers" if is_number and value == 0 else _FORMS
        raise OptionError(f"tolerance: {value!r} is none; {hint}")
    return Tolerance(rtol=float(value), atol=float(value))


def _single(key: str, value: Any) -> Tolerance:
    tolerance = as_tolerance(value)
    if not isinstance(tolerance, Tolerance):
        raise OptionError(f"tolerance: {value!r} of {key!r} is none; {_FORMS}")
    return tolerance


def _key(key: Any) -> str:
    """Return the key of a mapping of tolerances as text."""
    if isinstance(key, str):
        return key
    try:
        return np.dtype(key).name
    except TypeError:
        raise OptionError(f"tolerance: {key!r} is no dtype and no backend; {_FORMS}") from None


def summation_error(dtype: npt.DTypeLike, depth: int) -> float:
    """Bound the error of summing ``depth`` terms in another order, in ulps of ``dtype``.

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


# Errors in ulps, and classes of numbers that are not finite.

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
    """Return the class of each element: ``FINITE``, ``NAN``, ``POSITIVE`` or ``NEGATIVE`` infinity.

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
    """Measure the distance to overflow, where one side did, in ulps of the largest number.

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
    """Return the oracle with what the output's format cannot hold cast to it, and its magnitude."""
    magnitude = np.abs(oracle)
    if magnitude.max() <= facts.largest:  # False if there is a NaN
        return oracle, magnitude
    target = np.where(magnitude <= facts.largest, oracle, wide(oracle.astype(dtype)))
    return target, np.abs(target)


def _least_scale(magnitude: Array, facts: FloatFacts) -> float:
    """Return the least scale of an element: the root mean square, but not below the format's.

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


# Where a reference leaves float64, and what products keep of float32.


@dataclass(frozen=True)
class Precision:
    """Where a reference leaves float64.

    Attributes:
      dtype: in which it computes from there on.
      line: where it does so; None if that is not known.
    """

    dtype: str
    line: SourceLine | None = None

    def __str__(self) -> str:
        """For messages: ``float32 (refs.py:12)``."""
        return f"{self.dtype} ({self.line})" if self.line else self.dtype


#: The fractional bits of the significand of float32.
FLOAT32_BITS = 23


@dataclass(frozen=True)
class ProductPrecision:
    """The precision of products of float32.

    Attributes:
      name: such as ``"tf32"``.
      bits: the fractional bits that a product keeps of the significand of an operand, fewer than
        ``FLOAT32_BITS``. An operand is rounded to nearest, half away from zero.
      passes: of a TPU, which adds up products of parts of the operands; 0 elsewhere. See
        ``pallas_sim.product_in_passes``.
    """

    name: str
    bits: Annotated[int, Between(0, FLOAT32_BITS)]
    passes: Annotated[int, Between(0, 6)] = 0


# What rounding alone may do to an output, as measured on its reference.

#: How many standard deviations an error may be, for a factor of 1. With a factor of 2 six: the
#: largest of 10,000 normal numbers is beyond four, and the deviation of 16 draws 20 % too small.
_DEVIATIONS = 3.0

#: How much the bound of an element may grow for roundings in a narrow dtype: a kernel need not make
#: them, so that an answer without a correct digit is wrong where the baseline has some.
_MOST = 2.0


#: Number of evaluations with random roundings.
DRAWS = 16

#: Of so many elements, the deviations of single ones are taken as they are measured.
_FEW_ELEMENTS = 2**12


@dataclass(frozen=True)
class Noise:
    """Errors that the reference makes if it is evaluated with random roundings.

    Attributes:
      wide: where every operation is rounded in float32: float64[draws, *shape], in units of the
        output.
      narrow: likewise, where terms of sums are rounded in the output's dtype, too.
      chip: likewise, where nothing is rounded, but products are added in a random order as the
        chip's tensor cores add them, and functions are as approximate as the kernel's; None where
        neither has an error of its own.
      stored: likewise, where nothing is rounded but an output that a gradient's kernel stored in
        its dtype; None if that is not narrower than float32.
    """

    wide: Array
    narrow: Array
    chip: Array | None = None
    stored: Array | None = None

    def combined(self, combine: Callable[..., Array], *others: Noise) -> Noise:
        """Return the noise of outputs that are combined, given what does that to draws."""
        noises = (self, *others)

        def of(draws: Sequence[Array | None]) -> Array | None:
            present = [one for one in draws if one is not None]
            return combine(*present) if len(present) == len(draws) else None

        return Noise(
            combine(*(noise.wide for noise in noises)),
            combine(*(noise.narrow for noise in noises)),
            of([noise.chip for noise in noises]),
            of([noise.stored for noise in noises]),
        )


@dataclass(frozen=True)
class ExcusedErrors:
    """Errors that noise explains, in ulps of the output scale.

    Attributes:
      elements: for each element; of the shape of the output.
      rms: root mean square of all.
      unknown: what the worst error of a baseline adds to the bound of each element, where it could
        not be measured.
      unknown_rms: the same of the root mean square.
      chip: what the arithmetic of the chip adds to the bound of each element.
      chip_rms: the same of the root mean square.
    """

    elements: Array
    rms: float
    unknown: float = 0.0
    unknown_rms: float = 0.0
    chip: Array | float = 0.0
    chip_rms: float = 0.0


def excused(
    noise: Noise,
    measured: Measured,
    tolerance: Tolerance,
    dtype: npt.DTypeLike,
    limit: Array | float,
    *,
    inexact: bool = False,
) -> ExcusedErrors:
    """Return how large errors may be that come from rounding alone.

    An element may be off by ``3 * factor`` standard deviations of its noise in float32, and the
    root mean square of all by its mean plus as many of its own. Roundings in a narrower dtype count
    for single elements only, and at most double their bound. Few different values have few
    different roundings, which add up in some elements and not in others, so there the deviation of
    an element has that of all added. The errors of the chip's arithmetic come on top: as for a
    baseline, its ``factor`` times the worst error of a draw, or what the deviation of the element
    allows.

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
    chip: Array | float = 0.0
    chip_rms = 0.0
    if noise.chip is not None:
        own, of_draws = _deviations(noise.chip, unit)
        chip = np.maximum(_most(_worst(noise.chip, unit), tolerance), times * own)
        chip_rms = _most(of_draws, tolerance)
    return ExcusedErrors(
        elements=np.maximum(
            times * wide, np.minimum(times * np.sqrt(narrow**2 + shared), _MOST * limit)
        ),
        rms=float(np.mean(rms) + times * np.std(rms)),
        unknown=(tolerance.factor + 1) * worst,
        unknown_rms=(tolerance.factor + 1) * mean,
        chip=chip,
        chip_rms=chip_rms,
    )


def without_stored(
    measured: Measured, actual: Array, stored: Array, tolerance: Tolerance, dtype: npt.DTypeLike
) -> Measured:
    """Return the errors that remain if those of a stored output are taken off.

    One rounding changes many elements in a fixed ratio. What is taken off is the most probable
    combination of the draws beside independent errors of one ulp (the Wiener filter), at most
    ``3 * factor`` standard deviations of each element. The elements of some axes have one together,
    those of others one each: whichever has the fewest parameters.

    Args:
      measured: the errors.
      actual: the kernel's output, wide.
      stored: see ``Noise``.
      tolerance: its ``factor`` counts.
      dtype: the float or complex dtype of the output.
    """
    unit = measured.scale * epsilon(dtype)
    deviations, _ = _deviations(stored, unit)
    if not np.any(deviations) or not deviations.ndim:
        return measured
    with np.errstate(all="ignore"):
        errors = (actual - measured.target) / unit
        drawn = stored / unit
    errors = np.where(measured.errors > 0, errors, 0.0)
    drawn = np.where(np.isfinite(drawn), drawn, 0.0)
    most = _DEVIATIONS * tolerance.factor * deviations
    last = range(errors.ndim)
    groups = [*(tuple(last)[first:] for first in last), *((axis,) for axis in last[:-1])]
    _, likely = min((_filtered(errors, drawn, axes) for axes in groups), key=lambda part: part[0])
    with np.errstate(over="ignore"):
        likely *= np.minimum(1.0, most / np.fmax(np.abs(likely), np.finfo(np.float64).tiny))
    rest = np.minimum(measured.errors, np.abs(errors - likely))
    return replace(measured, errors=rest, worst=float(rest.max()))


def _filtered(errors: Array, draws: Array, axes: Sequence[int]) -> tuple[float, Array]:
    """Return the part of errors that is probably a combination of those of the draws.

    Before it is the number of its parameters, infinite where the draws are too few to tell.

    Args:
      errors: in ulps.
      draws: likewise, ``[draws, *shape]``.
      axes: of an element and those with which it is combined; of others each is combined alone.
    """
    count, ends = len(draws), range(-len(axes), 0)
    errors = np.moveaxis(errors, axes, ends)
    shape = errors.shape
    groups = (*shape[: -len(axes)], math.prod(shape[-len(axes) :]))
    errors = errors.reshape(groups)
    draws = np.moveaxis(draws, [axis + 1 for axis in axes], ends).reshape(count, *groups)
    parts = np.zeros_like(errors)
    some = np.abs(draws).max(axis=(0, -1)) > 1 / DRAWS
    lines = np.moveaxis(draws, 0, -2)[some]
    # einsum, because a threaded BLAS costs milliseconds on a busy machine.
    sizes, vectors = np.linalg.eigh(np.einsum("...dn,...en->...de", lines, np.conj(lines)))
    sizes = np.where(sizes > 1e-10 * sizes[..., -1:], sizes, 0.0)
    shares = sizes / (sizes + count)
    weights = np.einsum("...dn,...n->...d", np.conj(lines), errors[some])
    weights = np.einsum("...de,...d->...e", vectors, weights) * (sizes > 0) / (sizes + count)
    weights = np.einsum("...de,...e->...d", np.conj(vectors), weights)
    parts[some] = np.einsum("...dn,...d->...n", lines, weights)
    with np.errstate(all="ignore"):
        parameters = float(np.sum(shares.sum(-1) / (1 - shares.sum(-1) / count)))
    return parameters, np.moveaxis(parts.reshape(shape), ends, axes)


def _most(errors: Array, tolerance: Tolerance) -> float:
    """Bound the error of an answer like those with these errors: ``factor`` times the mean.

    Or as many standard deviations more as ``excused`` allows, where the errors vary.
    """
    mean, deviation = float(np.mean(errors)), float(np.std(errors))
    return max(tolerance.factor * mean, mean + _DEVIATIONS * tolerance.factor * deviation)


def _worst(draws: Array, unit: Array) -> Array:
    """Return the worst error of each draw, in ulps."""
    with np.errstate(all="ignore"):
        errors = np.abs(draws) / unit
    errors = np.where(np.isfinite(errors), errors, 0.0)
    return np.max(errors, axis=tuple(range(1, errors.ndim)))


def _deviations(draws: Array, unit: Array) -> tuple[Array, Array]:
    """Measure the standard deviation of each element and the RMS of each draw, in ulps."""
    with np.errstate(all="ignore"):
        squares = np.square(np.abs(draws) / unit)
    squares = np.where(np.isfinite(squares), squares, 0.0)
    rest = tuple(range(1, squares.ndim))
    return np.sqrt(_pooled(np.mean(squares, axis=0))), np.sqrt(np.mean(squares, axis=rest))


def _pooled(variances: Array) -> Array:
    """Return variances that are less off where there are many elements.

    Of a few draws, the least of many variances is far too small. Beyond ``_FEW_ELEMENTS``, each has
    a share of what the means of its row and its column say, the more the more elements there are.
    """
    if variances.size <= _FEW_ELEMENTS or not (mean := float(np.mean(variances))):
        return variances
    share = math.log2(variances.size / _FEW_ELEMENTS)
    columns = np.mean(variances, axis=tuple(range(variances.ndim - 1)), keepdims=True)
    of_lines = np.mean(variances, axis=-1, keepdims=True) * columns / mean
    return (DRAWS * variances + share * of_lines) / (DRAWS + share)
