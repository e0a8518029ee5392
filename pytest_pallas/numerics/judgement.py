"""``compare``: whether an output is acceptable, given its oracle and its baseline."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from pallas_sim.dtypes import is_complex, is_exact, is_float
from pytest_pallas.errors import KernelReferenceError
from pytest_pallas.numerics.comparison import Comparison
from pytest_pallas.numerics.explanation import ComparedArrays, explain, state
from pytest_pallas.numerics.noise import Noise
from pytest_pallas.numerics.precision import Precision
from pytest_pallas.numerics.rules import ErrorVerdict, judge_exact, judge_floats, judge_integers
from pytest_pallas.numerics.tolerance import Tolerance

_DEFAULT = Tolerance()


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
      present: bool, True where ``actual`` is there, of an output that is spread over processes and
        of which this one has a part. Only that part is judged, by the scale of the whole.

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
    """Whether a verdict is that the output is wrong, for whatever reason."""
    return verdict.misclassed is not None or _inaccurate(sides, verdict, tolerance)


def _inaccurate(sides: ComparedArrays, verdict: ErrorVerdict, tolerance: Tolerance) -> bool:
    """Whether the default rule rejects a verdict for the size of its errors."""
    if verdict.misclassed is not None or tolerance.explicit or not sides.count:
        return False
    count = 0 if verdict.wrong is None else int(np.count_nonzero(verdict.wrong))
    return verdict.rms is not None or count > tolerance.fraction * sides.count


def _unfit(sides: ComparedArrays, where: str, check_dtype: bool) -> Comparison | None:
    """The failed comparison of arrays that cannot be compared, or None."""
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
    elif not any(test(actual.dtype) for test in (is_exact, is_float, is_complex)):
        kind, text = "dtype", f"arrays of dtype {actual.dtype} cannot be compared"
    else:
        return None
    return state(kind, where, text, actual)


def _conclude(
    sides: ComparedArrays,
    verdict: ErrorVerdict,
    fraction: float,
    where: str,
) -> Comparison:
    """The verdict as a ``Comparison``."""
    actual = sides.actual
    count = 0 if verdict.wrong is None else int(np.count_nonzero(verdict.wrong))
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
