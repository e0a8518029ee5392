"""The message of a failed comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pallas_sim.dtypes import Array, epsilon, is_exact, wide
from pallas_sim.errors import Explanation, Fact, explanation_of
from pytest_pallas.numerics.causes import causes_of
from pytest_pallas.numerics.comparison import Comparison, Scalar
from pytest_pallas.numerics.measure import CLASS_NAMES, classes
from pytest_pallas.numerics.patterns import location_patterns
from pytest_pallas.numerics.precision import Precision
from pytest_pallas.numerics.relations import value_patterns

_SHOWN_INDICES = 6
_SHOWN_PATTERNS = 3

# Relative to the output scale: 16 roundings of bfloat16. What is further off is no rounding error.
_SMALL_ERROR = 1 / 16


@dataclass(frozen=True)
class ComparedArrays:
    """The arrays of one comparison: the kernel's output, the oracle's and the baseline's.

    Of an output of which only a part is here, ``present`` is True there; elsewhere ``actual`` means
    nothing.
    """

    actual: Array
    oracle: Array
    baseline: Array
    present: Array | None = None

    @property
    def count(self) -> int:
        """The number of elements that are compared."""
        return self.actual.size if self.present is None else int(np.count_nonzero(self.present))

    def here(self, array: Array) -> Array:
        """The elements of an array that are compared; flat if they are not all."""
        return array if self.present is None else array[self.present]

    @property
    def expected(self) -> Array:
        """What decides: the oracle, but of integers the baseline."""
        return self.baseline if is_exact(self.actual.dtype) else self.oracle

    def at(self, index: tuple[int, ...]) -> dict[str, Any]:
        """The values at ``index``, as fields of a ``Comparison``."""
        return {
            "actual_value": scalar(self.actual, index),
            "expected_value": scalar(self.expected, index),
            "baseline_value": scalar(self.baseline, index),
        }


def scalar(array: Array, index: tuple[int, ...]) -> Scalar:
    """The element at ``index`` as a Python number."""
    value = wide(array[index]).item()
    return bool(value) if array.dtype.kind == "b" else value


def state(kind: str, where: str, text: str, actual: Array | None = None) -> Comparison:
    """A failed comparison in which no element was looked at."""
    return Comparison(
        passed=False,
        kind=kind,
        where=where,
        shape=() if actual is None else actual.shape,
        dtype="" if actual is None else str(actual.dtype),
        error=np.inf,
        multiple=np.inf,
        explanation=explanation_of(f"{where or 'output'}: {text}"),
    )


def explain(
    failed: Comparison,
    sides: ComparedArrays,
    block_shape: Sequence[int | None] | None = None,
    precision: Precision | None = None,
    change: str = "",
) -> Comparison:
    """``failed`` with its patterns and explanation, given the arrays that were compared.

    ``precision`` is as in ``compare``, ``change`` as in ``bitwise``.
    """
    mask = failed.mask
    assert mask is not None, "a comparison that failed on elements has a mask"
    actual, expected = _for_arithmetic(sides.actual), _for_arithmetic(sides.expected)
    slack = _slack(failed.allowed, sides.actual.dtype)
    patterns = (
        *value_patterns(mask, actual, expected, slack),
        *location_patterns(mask, block_shape),
    )[:_SHOWN_PATTERNS]
    causes = ()
    if not change:
        causes = causes_of(sides.here(mask), sides.here(sides.actual), sides.here(sides.expected))
    percent = 100 * failed.wrong / sides.count
    dims = ", ".join(map(str, failed.shape))
    elements = "element" if sides.count == 1 else "elements"
    if sides.present is not None:
        elements += " of this process"
    how = "inaccurate on the whole, most of all in" if failed.kind == "rms" else "wrong in"
    explanation = Explanation(
        f"{failed.where or 'output'}, {failed.dtype}[{dims}]: {how} {failed.wrong} of "
        f"{sides.count} {elements} ({percent:.3g} %)",
        tuple(f"  {line}" for line in _class_lines(failed, sides, actual, expected)),
        (
            *_worst_facts(failed, change),
            Fact("error", "\n".join(_error_lines(failed, sides.actual.dtype, expected))),
            *_precision_facts(failed, precision),
            Fact("wrong at", _first_indices(mask)),
            *(Fact("cause", cause) for cause in causes),
            *(Fact("pattern", pattern) for pattern in patterns),
        ),
    )
    return replace(failed, explanation=explanation, patterns=patterns)


def _slack(allowed: float, dtype: np.dtype[Any]) -> float:
    """How far, relative to the scale, values may be from a pattern that is reported.

    At least a rounding error, but no more than 1/32 beyond that: with a wide bound, or in a narrow
    format, everything would look like everything else.
    """
    if is_exact(dtype):
        return 0.0
    eps = epsilon(dtype)
    return max(0.6 * eps, min(max(allowed, 4.0) * eps, 1 / 32))


def _for_arithmetic(array: Array) -> Array:
    array = wide(array)
    return array if array.dtype.kind in "fc" else array.astype(np.float64)


def _class_lines(
    failed: Comparison, sides: ComparedArrays, actual: Array, expected: Array
) -> list[str]:
    """How often which class is there instead of which, and whether the baseline does the same."""
    if failed.kind not in ("class", "exact") or is_exact(sides.actual.dtype):
        return []
    with np.errstate(all="ignore"):
        dtype = sides.actual.dtype
        expected_classes = classes(wide(expected.astype(dtype)))
        pairs = classes(actual) * len(CLASS_NAMES) + expected_classes
    actual_classes, differ = classes(actual), classes(actual) != expected_classes
    differ &= failed.mask if failed.mask is not None else True
    lines: list[str] = []
    for pair, count in zip(*np.unique(pairs[differ], return_counts=True), strict=True):
        got, wanted = divmod(int(pair), len(CLASS_NAMES))
        lines.append(f"{CLASS_NAMES[got]} where the oracle is {CLASS_NAMES[wanted]}: {count}")
    same = differ & (classes(_for_arithmetic(sides.baseline)) == actual_classes)
    if same.any():
        lines.append(
            f"in {np.count_nonzero(same)} of them the baseline is no better: draw smaller values, "
            "or make the reference stable"
        )
    return lines


def _worst_facts(failed: Comparison, change: str) -> Iterator[Fact]:
    index = ", ".join(map(str, failed.worst_index or ()))
    yield Fact("worst", f"[{index}]")
    actual = _number(failed.actual_value, failed.dtype)
    expected = _number(failed.expected_value, failed.dtype)
    if change:
        yield Fact("kernel", f"{actual} {change}\n{expected} without, also from the kernel")
        return
    yield Fact("kernel", actual)
    if failed.kind == "bitwise" or isinstance(failed.expected_value, int):
        yield Fact("expected", expected)
        return
    yield Fact("oracle", expected)
    yield Fact("baseline", _number(failed.baseline_value, failed.dtype))


def _number(value: Scalar, dtype: str) -> str:
    """A number with the digits that its dtype has."""
    if value is None or isinstance(value, str | int):
        return str(value)
    return format(value, ".17g" if dtype in ("float64", "complex128") else ".9g")


def _error_lines(failed: Comparison, dtype: np.dtype[Any], expected: Array) -> list[str]:
    """The error, what is allowed, and why where that needs saying."""
    integers = is_exact(dtype)
    # What is compared to the bit is another run, and no oracle.
    measured = failed.kind in ("close", "exact") and not integers and np.isfinite(failed.error)
    zero = measured and failed.error > 0 and not np.any(expected)
    lines = [_error_from_zero(failed) if zero else _error_line(failed, integers)]
    if failed.kind == "rms":
        lines += _rms_hints(dtype)
    elif failed.kind == "exact" and not integers:
        lines.append("the inputs are small integers, so any order of summation is exact in float32")
        if failed.error * epsilon(dtype) <= _SMALL_ERROR:
            lines.append("(a narrow accumulator, or one rounding too many?)")
    return lines


def _precision_facts(failed: Comparison, precision: Precision | None) -> Iterator[Fact]:
    """That the oracle is not of float64, and what was done about it."""
    if precision is None:
        return
    lines = [f"computes in {precision}, also for inputs in float64:"]
    if failed.kind in ("close", "rms"):
        lines.append("the oracle is no more exact than the baseline; allowed is what random")
        lines.append(f"roundings of {precision.dtype} change, in both. Cast to")
    else:
        lines.append("the oracle is no more exact than the baseline. Cast to")
    lines.append("jnp.promote_types(x.dtype, jnp.float32) for an oracle in float64")
    yield Fact("reference", "\n".join(lines))


def _rms_hints(dtype: np.dtype[Any]) -> Iterator[str]:
    """What makes the root mean square too large, and what to do about it."""
    narrow = epsilon(dtype) > epsilon(np.float32)
    how = f"rounded to {dtype}" if narrow else "too narrow and rounded"
    yield "root mean square: many small errors rather than a few large ones, as from"
    yield f"an accumulator that is {how} at every step; if that is meant,"
    yield "let the reference round likewise, or set Tolerance(factor=)"


def _error_line(failed: Comparison, integers: bool) -> str:
    if failed.kind == "class":
        return "a NaN or an infinity on one side only; never within a tolerance"
    if integers:
        rule = "must be exactly equal"
        if failed.kind == "explicit":
            rule = f"the explicit tolerance allows {failed.allowed:.4g} there"
        return f"{failed.error:.17g} at most; {rule}"
    text = f"{failed.error:.4g} ulps of the output scale"
    if failed.kind in ("exact", "bitwise"):
        return f"{text}; must be exactly equal"
    if failed.kind == "explicit":
        return f"{text}; the explicit tolerance allows {failed.allowed:.4g} there"
    lead = "rms " if failed.kind == "rms" else ""
    return (
        f"{lead}{text}, {failed.multiple:.3g} times the baseline's "
        f"({failed.baseline_error:.3g}); allowed {failed.allowed:.4g}"
    )


def _error_from_zero(failed: Comparison) -> str:
    """The error where the oracle is 0 everywhere, and ulps say nothing: in units of the output."""
    assert isinstance(failed.actual_value, int | float | complex)
    ulp = abs(failed.actual_value) / failed.error
    text = f"{failed.error * ulp:.4g}, where the oracle is 0 everywhere"
    if failed.kind != "close":
        return f"{text}; must be exactly equal"
    baseline = failed.baseline_error * ulp
    how = f"the baseline at most {baseline:.4g}" if baseline else "so is the baseline"
    return f"{text} and {how}; allowed {failed.allowed * ulp:.4g}"


def _first_indices(mask: Array) -> str:
    flat = np.flatnonzero(mask)
    if flat.size == 1 and mask.ndim == 0:
        return "[]"
    shown = np.stack(np.unravel_index(flat[:_SHOWN_INDICES], mask.shape), axis=-1)
    text = " ".join("[" + ", ".join(map(str, row)) + "]" for row in shown.tolist())
    return text + (" ..." if flat.size > _SHOWN_INDICES else "")
