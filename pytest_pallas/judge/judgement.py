"""``compare``: whether an output is acceptable, given its oracle and its baseline.

Read ``compare`` (one output) and ``compare_trees`` (all outputs of a kernel) first. An
``ErrorVerdict`` is what ``judge_integers``, ``judge_exact`` or ``judge_floats`` finds, before it
becomes a ``Comparison`` with an explanation. ``bitwise`` compares bits, where no error is small.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from pallas_sim.dtypes import Array, epsilon, is_complex, is_exact, is_inexact, wide
from pallas_sim.errors import Explanation
from pytest_pallas.errors import KernelReferenceError
from pytest_pallas.judge.explanation import ComparedArrays, explain, state
from pytest_pallas.judge.tolerance import (
    Comparison,
    Measured,
    Noise,
    Precision,
    ProductPrecision,
    Tolerance,
    excused,
    measure,
    overflow_gap,
    summation_error,
    without_stored,
)
from pytest_pallas.record import Note

if TYPE_CHECKING:
    from pytest_pallas.judge.arithmetic import ChipArithmetic


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
    """Return the root mean square errors of an output of ``dtype`` if they are too large, or None.

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
    rms = Rms(error, baseline, allowed(baseline))
    return rms if error > rms.allowed else None


def _root_mean_square(errors: Array, count: int) -> float:
    """Return the root mean square of ``count`` errors; other elements are zeros."""
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

    @property
    def count(self) -> int:
        """The number of wrong elements."""
        return 0 if self.wrong is None else int(np.count_nonzero(self.wrong))

    def worst_index(self, present: Array | None = None) -> tuple[int, ...]:
        """Return where the first element of wrong class is, else the one furthest over its limit.

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
    errors = _differences(actual, expected, wrong)
    worst = float(errors.max())
    if not explicit:
        return ErrorVerdict("exact", errors, worst, 0.0, wrong)
    limit = _explicit_limit(tolerance, np.abs(expected.astype(np.float64)), 1.0)
    return ErrorVerdict("explicit", errors, worst, limit, errors > limit)


def _differences(actual: Array, expected: Array, mask: Array) -> Array:
    """Return the absolute differences of integers where ``mask`` is True; 0 elsewhere."""
    errors = np.zeros(mask.shape)
    # Python ints, because the difference of two int64 may not be one.
    difference = actual[mask].astype(object) - expected[mask].astype(object)
    errors[mask] = abs(difference).astype(np.float64)
    return errors


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
    if noise is not None and noise.stored is not None:
        measured = without_stored(measured, actual, noise.stored, tolerance, dtype)
    if noise is not None:
        spared = excused(noise, measured, tolerance, dtype, limit, inexact=inexact)
        limit = np.maximum(limit + spared.unknown, spared.elements) + spared.chip
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
    count = verdict.count
    if verdict.misclassed is not None or count > tolerance.fraction * sides.count:
        return verdict
    rms = excessive_rms(
        measured,
        tolerance,
        dtype,
        depth=depth,
        sensitivity=relative,
        excused=verdict.wrong if count else None,
    )
    if rms is not None and spared is not None:
        allowed = max(rms.allowed + spared.unknown_rms, spared.rms) + spared.chip_rms
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
    """Return ``values`` as float64 or complex128, to be measured against an output of ``dtype``."""
    values = wide(values)
    if is_complex(dtype):
        return values.astype(np.complex128, copy=False)
    return values.astype(np.float64, copy=False) if is_exact(values.dtype) else values


def _explicit_limit(tolerance: Tolerance, magnitude: Array, unit: Array | float) -> Array:
    """Return what the explicit rule allows each element, in units of ``unit``."""
    with np.errstate(all="ignore"):
        limit = ((tolerance.atol or 0.0) + (tolerance.rtol or 0.0) * magnitude) / unit
    return np.maximum(limit, tolerance.ulp or 0.0)


_DEFAULT = Tolerance()

#: The outputs of a kernel by their paths.
type Leaves = Sequence[tuple[str, npt.ArrayLike]]


def compare(
    actual: npt.ArrayLike,
    oracle: npt.ArrayLike,
    baseline: npt.ArrayLike,
    *,
    tolerance: Tolerance = _DEFAULT,
    exact: bool = False,
    depth: int = 1,
    sensitivity: float | Callable[[], float] = 0.0,
    noise: Callable[[], Noise | None] | None = None,
    precision: Precision | None = None,
    where: str = "",
    check_dtype: bool = True,
    block_shape: Sequence[int | None] | None = None,
    explained: bool = True,
    present: npt.ArrayLike | None = None,
) -> Comparison:
    """Judge one output array. All three arrays must have one shape; any shape will do.

    Integers and bools must equal the baseline, unless ``tolerance`` has an explicit rule. Floats
    and complex numbers must have the oracle's class (NaN, infinite, finite) in every element, and
    be as near to it as ``tolerance`` requires, the worst of them and all on the whole.

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
        may cost is relative to it where it is larger than the output's own scale, and so is what
        rounding the inputs once more may. A function is called only where the output would fail
        without it.
      noise: measures what rounding alone does to the reference, or says that it cannot. It is
        called only where the output would fail without it, because it takes a while.
      precision: the dtype that the oracle was computed in, and where, if that is narrower than
        float64: ``"float32 (refs.py:12)"``. The baseline's error cannot be measured then, and is
        estimated from ``noise``.
      where: which output this is, for messages.
      check_dtype: whether ``actual`` must have the dtype of ``baseline``.
      block_shape: block shape of the output, None for a squeezed dimension; for messages.
      explained: whether a failure has a message and patterns; without, it is judged faster.
      present: bool, True where this process holds ``actual``, for an output that is spread over
        processes. Only that part is judged, by the scale of the whole.

    Raises:
      KernelReferenceError: oracle and baseline have different shapes.
    """
    sides = ComparedArrays(
        np.asarray(actual),
        np.asarray(oracle),
        np.asarray(baseline),
        None if present is None else np.asarray(present),
    )
    unfit = _unfit(sides, where, check_dtype)
    if unfit is not None:
        return unfit
    if sides.count == 0:
        verdict = ErrorVerdict("exact" if exact else "close", np.zeros(()), 0.0, 0.0, None)
    elif is_exact(sides.actual.dtype):
        verdict = judge_integers(sides, tolerance, exact)
    elif exact:
        verdict = judge_exact(sides)
    else:
        verdict = _judge(sides, tolerance, depth, sensitivity, noise, inexact=precision is not None)
    fraction = 0.0 if exact else tolerance.fraction
    result = _conclude(sides, verdict, fraction, where)
    if result.passed or not explained:
        return result
    return explain(result, sides, block_shape, precision)


def _judge(
    sides: ComparedArrays,
    tolerance: Tolerance,
    depth: int,
    sensitivity: float | Callable[[], float],
    noise: Callable[[], Noise | None] | None,
    *,
    inexact: bool,
) -> ErrorVerdict:
    """Judge floats, and ask for what may excuse their errors only where something must."""
    relative = 0.0 if callable(sensitivity) else sensitivity
    verdict = judge_floats(sides, tolerance, depth, relative)
    if callable(sensitivity) and not tolerance.explicit and _refused(sides, verdict, tolerance):
        relative = sensitivity()
        verdict = judge_floats(sides, tolerance, depth, relative)
    if noise is not None and _inaccurate(sides, verdict, tolerance):
        verdict = judge_floats(sides, tolerance, depth, relative, noise(), inexact=inexact)
    return verdict


def _refused(sides: ComparedArrays, verdict: ErrorVerdict, tolerance: Tolerance) -> bool:
    """Return whether the output is wrong by a verdict, for whatever reason."""
    return verdict.misclassed is not None or _inaccurate(sides, verdict, tolerance)


def _inaccurate(sides: ComparedArrays, verdict: ErrorVerdict, tolerance: Tolerance) -> bool:
    """Return whether the default rule rejects a verdict for the size of its errors."""
    if verdict.misclassed is not None or tolerance.explicit or not sides.count:
        return False
    return verdict.rms is not None or verdict.count > tolerance.fraction * sides.count


def _unfit(sides: ComparedArrays, where: str, check_dtype: bool) -> Comparison | None:
    """Return the failed comparison of arrays that cannot be compared, or None."""
    actual, oracle, baseline = sides.actual, sides.oracle, sides.baseline
    if oracle.shape != baseline.shape:
        raise KernelReferenceError(
            f"{where or 'output'}: the reference returned shape {oracle.shape} in float64 and "
            f"{baseline.shape} in the kernel's dtypes; it must not depend on the dtype"
        )
    if actual.shape != oracle.shape:
        kind = "shape"
        text = f"the kernel returned shape {actual.shape}, the reference {oracle.shape}"
    elif check_dtype and actual.dtype != baseline.dtype:
        kind = "dtype"
        text = f"the kernel returned dtype {actual.dtype}, the reference {baseline.dtype}"
    elif not is_exact(actual.dtype) and not is_inexact(actual.dtype):
        kind, text = "dtype", f"arrays of dtype {actual.dtype} cannot be compared"
    else:
        return None
    return state(kind, where, text, actual)


def _conclude(
    sides: ComparedArrays, verdict: ErrorVerdict, fraction: float, where: str
) -> Comparison:
    """Convert a verdict to a ``Comparison``."""
    actual = sides.actual
    count = verdict.count
    misclassed, rms = verdict.misclassed is not None, verdict.rms
    error, baseline_error = np.inf if misclassed else verdict.worst, verdict.baseline_worst
    multiple = error / max(baseline_error, 1.0)
    index, limit, values = None, verdict.limit, {}
    if sides.count:
        index = verdict.worst_index(sides.present)
        limit = limit[index] if isinstance(limit, np.ndarray) else limit
        values = sides.at(index)
    if rms is not None:
        error, baseline_error, limit = rms.error, rms.baseline, rms.allowed
        multiple = rms.multiple
    return Comparison(
        passed=not misclassed and rms is None and count <= fraction * sides.count,
        kind=verdict.kind,
        where=where,
        shape=actual.shape,
        dtype=str(actual.dtype),
        error=error,
        baseline_error=baseline_error,
        allowed=float(limit),
        multiple=multiple,
        wrong=count,
        worst_index=index,
        mask=verdict.wrong if count else None,
        **values,
    )


def bitwise(
    actual: npt.ArrayLike,
    expected: npt.ArrayLike,
    *,
    where: str = "",
    change: str = "",
    explained: bool = True,
) -> Comparison:
    """Compare two arrays bit for bit, NaN payloads and the sign of zero included.

    For determinism and immutability, where no error is small. Any shape and dtype of fixed size
    will do. ``expected_value`` and ``baseline_value`` are both those of ``expected``. With a
    ``change``, both are answers of the kernel: the actual one with that change, such as ``"with NaN
    in the padding"``, the expected one without. A failure is ``explained`` as in ``compare``.
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
    if not is_exact(actual.dtype) and not is_inexact(actual.dtype):
        text = f"{where or 'output'}: {wrong} elements differ in bits"
        return replace(result, explanation=Explanation(text))
    errors = _errors(actual, expected, mask)
    # Where the values are equal (-0.0 and 0.0, two NaNs) the first difference is as bad as any.
    flat = int(np.argmax(np.where(mask, errors, -1.0)))
    index = tuple(int(i) for i in np.unravel_index(flat, mask.shape))
    sides = ComparedArrays(actual, expected, expected)
    error = float(errors[index])
    result = replace(result, error=error, multiple=error, worst_index=index, **sides.at(index))
    return explain(result, sides, change=change) if explained else result


def bitwise_leaves(
    actual: Leaves, expected: Leaves, suffix: str, *, change: str = ""
) -> list[Comparison]:
    """Compare outputs bit for bit with those of equal paths; ``suffix`` follow their names."""
    return [
        bitwise(array, other, where=f"{path or 'output'}{suffix}", change=change)
        for (path, array), (_, other) in zip(actual, expected, strict=True)
    ]


def _bytes(array: Array) -> Array:
    """Return the bytes of each element: uint8[elements, itemsize]."""
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(np.uint8).reshape(flat.size, array.dtype.itemsize)


def _errors(actual: Array, expected: Array, mask: Array) -> Array:
    """Return absolute differences of integers, ulps of floats; infinite where the class differs."""
    if is_exact(actual.dtype):
        return _differences(wide(actual), wide(expected), mask)
    measured = measure(wide(actual), wide(expected), wide(expected), actual.dtype)
    if measured.misclassed is None:
        return measured.errors
    return np.where(measured.misclassed, np.inf, measured.errors)


@dataclass(frozen=True)
class Expected:
    """The expected outputs of a kernel.

    Attributes:
      oracle: the reference in float64 on the host.
      baseline: the reference in the kernel's own dtypes, and in the precision of its products.
      depth: the largest dim of any input. A sum in the kernel has at most a few times as many
        terms, which bounds the effect of another order of summation.
      sensitivity: for a path, the change of the oracle with its inputs, 0 if it is not known; see
        ``oracle._sensitivity``. Evaluated at its first use, like ``noise``: most outputs pass
        without it.
      noise: for a path, the effect of rounding on that output, or None if it is not known. See
        ``oracle.noise_of``.
      precision: by path, where the reference computes an output's oracle in less than float64. Such
        an oracle is not more exact than the baseline.
      remarks: sentences on how the reference was evaluated, if not by the simulator, or not in
        float64 as it is.
      least: the least magnitude that the oracle computes with, 0 if it is not known. Evaluated at
        its first use.
      products: the precision of the baseline's products of float32; None for float32.
      errors_of_chip: by path, what computing as a chip changes in an output; see
        ``oracle.errors_of_chip``. Evaluated at its first use.
      effects: by argument, whether an output depends on it; see ``oracle._effects``. Evaluated at
        its first use.
    """

    oracle: list[tuple[str, Array]]
    baseline: list[tuple[str, Array]]
    depth: int = 1
    sensitivity: Callable[[str], float] = lambda _: 0.0
    noise: Callable[[str], Noise | None] = lambda _: None
    precision: Mapping[str, Precision] = MappingProxyType({})
    remarks: Sequence[str] = ()
    least: Callable[[], float] = lambda: 0.0
    products: ProductPrecision | None = None
    errors_of_chip: Callable[[ChipArithmetic], Mapping[str, Array]] = lambda _: {}
    effects: Callable[[], Mapping[str, bool]] = dict

    def with_chip(self, arithmetic: Callable[[], ChipArithmetic | None]) -> Expected:
        """Return the expected outputs of a kernel that computes as ``arithmetic`` says."""

        def noise_with_chip(path: str) -> Noise | None:
            noise, chip = self.noise(path), arithmetic()
            if noise is None or chip is None:
                return noise
            return replace(noise, chip=self.errors_of_chip(chip).get(path))

        return replace(self, noise=noise_with_chip)

    @property
    def notes(self) -> tuple[Note, ...]:
        """Notes on the reference, for the record."""
        several = dict.fromkeys(map(str, self.precision.values()))
        texts = (
            *(f"the reference computes in {cause}, not in float64" for cause in several),
            *self.remarks,
        )
        if self.products is not None:
            texts += (
                f"the baseline multiplies float32 as {self.products.name}, the lowest precision "
                "that the kernel asks for",
            )
        return tuple(Note(text, "reference") for text in texts)

    def renamed(self, name: Callable[[str], str]) -> Expected:
        """Return the expected outputs with other paths: ``name(path)``."""
        paths = {name(path): path for path, _ in self.oracle}
        return replace(
            self,
            oracle=[(name(path), array) for path, array in self.oracle],
            baseline=[(name(path), array) for path, array in self.baseline],
            sensitivity=lambda path: self.sensitivity(paths[path]),
            noise=lambda path: self.noise(paths[path]),
            precision={name(path): dtype for path, dtype in self.precision.items()},
        )


def compare_trees(
    actual: Leaves,
    expected: Expected,
    *,
    tolerance: Tolerance = _DEFAULT,
    exact: bool = False,
    check_dtype: bool = True,
    explained: bool = True,
    present: Mapping[str, Array] = MappingProxyType({}),
) -> list[Comparison]:
    """Judge each output of a kernel, in the order of the expected ones.

    A kernel whose outputs have other paths than the oracle's gives one failed comparison of the
    kind ``tree``.

    Args:
      actual: the outputs, by unique paths.
      expected: what they are compared with.
      tolerance: see ``compare``, as for the next three.
      exact: whether they must be the oracle, rounded.
      check_dtype: whether they must have the dtypes of the baseline.
      explained: whether a failure has a message.
      present: as for ``compare``, by path.

    Raises:
      KernelReferenceError: oracle and baseline have different paths or shapes.
    """
    outputs = dict(actual)
    references, baselines = dict(expected.oracle), dict(expected.baseline)
    if references.keys() != baselines.keys():
        raise KernelReferenceError(
            f"the reference returned the outputs {_names(references)} in float64 and "
            f"{_names(baselines)} in the kernel's dtypes; they must not depend on the dtype"
        )
    missing = [path for path in references if path not in outputs]
    extra = [path for path in outputs if path not in references]
    if missing or extra:
        text = f"the kernel returned {len(outputs)} outputs, the reference {len(references)}"
        if missing:
            text += f"; missing: {_names(missing)}"
        if extra:
            text += f"; not in the reference: {_names(extra)}"
        return [state("tree", "outputs", text)]
    return [
        compare(
            outputs[path],
            array,
            baselines[path],
            tolerance=tolerance,
            exact=exact,
            depth=expected.depth,
            sensitivity=functools.partial(expected.sensitivity, path),
            noise=functools.partial(expected.noise, path),
            precision=expected.precision.get(path),
            where=path,
            check_dtype=check_dtype,
            explained=explained,
            present=present.get(path),
        )
        for path, array in expected.oracle
    ]


def _names(paths: Iterable[str]) -> str:
    """Return paths in one line, in their order."""
    return ", ".join(paths) or "none"
