"""The message of a failed comparison, and masks and ids in words.

``explain`` gives a comparison its explanation: what is wrong where, the error and what is allowed,
what the wrong elements have in common (``judge.wrong_elements``), and causes that all values of the
output show (``causes_of``). ``in_words`` describes arguments that are masks or ids, for reports.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import ml_dtypes
import numpy as np

from pallas_sim.dtypes import Array, epsilon, is_complex, is_exact, is_inexact, wide
from pallas_sim.errors import Explanation, Fact, explanation_of
from pytest_pallas.judge.tolerance import CLASS_NAMES, Comparison, Precision, Scalar, classes
from pytest_pallas.judge.wrong_elements import location_patterns, value_patterns

_SHOWN_INDICES = 6
_SHOWN_PATTERNS = 3

# Relative to the output scale: 16 roundings of bfloat16. What is further off is no rounding error.
_SMALL_ERROR = 1 / 16


@dataclass(frozen=True)
class ComparedArrays:
    """The arrays of one comparison: the kernel's output, the oracle's and the baseline's.

    ``present`` is True where this process holds the output, or None if it holds all of it.
    Elsewhere ``actual`` means nothing.
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
        """Return the elements of an array that are compared; flat if they are not all."""
        return array if self.present is None else array[self.present]

    @property
    def expected(self) -> Array:
        """What decides: the oracle, but of integers the baseline."""
        return self.baseline if is_exact(self.actual.dtype) else self.oracle

    def at(self, index: tuple[int, ...]) -> dict[str, Any]:
        """Return the values at ``index``, as fields of a ``Comparison``."""
        return {
            "actual_value": scalar(self.actual, index),
            "expected_value": scalar(self.expected, index),
            "baseline_value": scalar(self.baseline, index),
        }


def scalar(array: Array, index: tuple[int, ...]) -> Scalar:
    """Return the element at ``index`` as a Python number."""
    value = wide(array[index]).item()
    return bool(value) if array.dtype.kind == "b" else value


def state(kind: str, where: str, text: str, actual: Array | None = None) -> Comparison:
    """Return a failed comparison in which no element was looked at."""
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
    """Add patterns and an explanation to ``failed``, given the arrays that were compared.

    ``precision`` is as in ``compare``, ``change`` as in ``bitwise``.
    """
    mask = failed.mask
    assert mask is not None, "a comparison that failed on elements has a mask"
    actual, expected = for_arithmetic(sides.actual), for_arithmetic(sides.expected)
    slack = slack_of(failed.allowed, sides.actual.dtype)
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


def slack_of(allowed: float, dtype: np.dtype[Any]) -> float:
    """Return how far, relative to the scale, values may be from a pattern that is reported.

    At least a rounding error, but no more than 1/32 beyond that: with a wide bound, or in a narrow
    format, everything would look like everything else.
    """
    if is_exact(dtype):
        return 0.0
    eps = epsilon(dtype)
    return max(0.6 * eps, min(max(allowed, 4.0) * eps, 1 / 32))


def for_arithmetic(array: Array) -> Array:
    """Return an array as float64 or complex128."""
    array = wide(array)
    return array if array.dtype.kind in "fc" else array.astype(np.float64)


def _class_lines(
    failed: Comparison, sides: ComparedArrays, actual: Array, expected: Array
) -> list[str]:
    """Count mismatches of NaN, infinity and finite values, and those that the baseline shares."""
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
        own, right = divmod(int(pair), len(CLASS_NAMES))
        lines.append(f"{CLASS_NAMES[own]} where the oracle is {CLASS_NAMES[right]}: {count}")
    same = differ & (classes(for_arithmetic(sides.baseline)) == actual_classes)
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
    """Format a number with the digits that its dtype has."""
    if value is None or isinstance(value, str | int):
        return str(value)
    return format(value, ".17g" if dtype in ("float64", "complex128") else ".9g")


def _error_lines(failed: Comparison, dtype: np.dtype[Any], expected: Array) -> list[str]:
    """Describe the error and what is allowed, with hints."""
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
    """Explain what makes the root mean square too large, and what to do about it."""
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
    """Describe the error in units of the output, where the oracle is 0 and ulps say nothing."""
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


# What made an output wrong, where all its values show it. A cause needs evidence that other
# mistakes do not leave. Values that were never written, or are all the same, are numbers of every
# format, and may be the end of a range.

#: Formats that an output may have been rounded to, the coarsest first.
_FORMATS: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(getattr(ml_dtypes, name, name))
    for name in ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "float32")
}

#: How many values of the oracle must not be numbers of the narrow format. Of random numbers, one in
#: 2**16 is a bfloat16 number, and one in eight of bfloat16 is a float8 number.
_FEW = {"bfloat16": 4, "float16": 4, "float32": 4}
_MANY = 32

#: How near values that were rounded are to the right ones, in units of the format: a rounded sum
#: may have several roundings. Relative to the scale, no more than a quarter, which 0 is not.
_NEAR, _NEAREST = 4.0, 0.25

#: The share of values that are near, and of those that have the last bit of the format.
_MOST, _LAST = 0.9, 1 / 8

#: As few different values as rounding may leave.
_DIFFERENT = 8

#: As many unsigned numbers are in the lower half by chance less than once in a thousand times.
_UNSIGNED = 10


def causes_of(mask: Array, actual: Array, expected: Array) -> tuple[str, ...]:
    """Find causes that all values of a wrong output show.

    Args:
      mask: bool, True where the output is wrong.
      actual: the kernel's output, in its dtype.
      expected: what it is compared with, of the same shape; of integers in the same dtype.
    """
    if is_exact(actual.dtype):
        return tuple(_saturated(mask, actual, wide(expected)))
    return tuple(_rounded(actual, expected))


def _rounded(actual: Array, expected: Array) -> Iterator[str]:
    """Report that every value is a number of a narrower format, and the expected ones are not."""
    dtype = actual.dtype
    if not is_inexact(dtype):
        return
    width = dtype.itemsize // 2 if is_complex(dtype) else dtype.itemsize
    with np.errstate(all="ignore"):
        values, right = _parts(actual), _parts(expected.astype(dtype))
    finite = np.isfinite(values) & np.isfinite(right)
    values, right = values[finite], right[finite]
    for name in _FORMATS:
        if _FORMATS[name].itemsize < width and _is_of(values, name).all():
            other = ~_is_of(right, name)
            others, least = int(np.count_nonzero(other)), _FEW.get(name, _MANY)
            if others >= least and _is_rounding(values[other], right[other], name, least):
                yield (
                    f"every value is a {name} number, and {others} of {right.size} expected ones "
                    f"are not: the output is {dtype}, but was rounded to {name} on the way"
                )
            return


def _is_rounding(values: Array, right: Array, name: str, least: int) -> bool:
    """Return whether values are what rounding to a format makes of the right ones.

    They are near these, there are several of them, and they have the last bit of the format. Of
    numbers that were rounded, half have it; of zeros and powers of two, none.
    """
    eps = epsilon(_FORMATS[name])
    size = np.abs(right)
    scale = np.maximum(size, np.sqrt(np.mean(np.square(size))))
    near = np.abs(values - right) <= min(_NEAR * eps, _NEAREST) * scale
    last = np.rint(np.frexp(values)[0] * 2 / eps) % 2 == 1
    return bool(
        np.mean(near) >= _MOST
        and np.unique(values).size >= min(least, _DIFFERENT)
        and np.mean(last) >= _LAST
    )


def _parts(array: Array) -> Array:
    """Return all real numbers of an array in float64."""
    values = wide(array).ravel()
    return values.view(np.float64) if values.dtype.kind == "c" else values


def _is_of(values: Array, name: str) -> Array:
    """Return which values are numbers of a format."""
    with np.errstate(all="ignore"):
        return values.astype(_FORMATS[name]).astype(np.float64) == values


def _saturated(mask: Array, actual: Array, expected: Array) -> Iterator[str]:
    """Report integers that are at the ends of their range on one side only."""
    values = wide(actual)
    wrong, right = values[mask], expected[mask]
    if actual.dtype.kind == "b" or not wrong.size:
        return
    info = ml_dtypes.iinfo(actual.dtype)
    low, high = int(info.min), int(info.max)
    # Where the kernel is right, it has large numbers, too: it computes, and some are larger.
    if not (values[~mask] > high / 2).any():
        return
    if _at_ends(wrong, right, low, high):
        yield (
            f"the wrong elements are all {_ends(wrong, low, high)} of {actual.dtype}: the kernel "
            "saturates where the reference wraps around"
        )
    elif _at_ends(right, wrong, low, high):
        yield (
            f"the expected values are all {_ends(right, low, high)} of {actual.dtype} there: the "
            "reference saturates where the kernel wraps around"
        )


def _at_ends(ends: Array, others: Array, low: int, high: int) -> bool:
    """Return whether one side is at the ends of the range, and the other wrapped around.

    The lower end alone shows nothing: 0 may be memory that was never written, and the simulator
    fills uninitialized memory with the lowest signed and the highest unsigned integer. So it does
    not if all others are the same, or if a few unsigned ones are small by chance.
    """
    at_high = ends == high
    count = int(np.count_nonzero(at_high))
    return bool(
        count >= (1 if low else _UNSIGNED)
        and ((ends == low) | at_high).all()
        and (others[at_high] < (low + high) / 2).all()
        and np.unique(others).size > 1
    )


def _ends(values: Array, low: int, high: int) -> str:
    ends = [f"{low}, the lowest number"] * bool((values == low).any())
    ends += [f"{high}, the highest number"] * bool((values == high).any())
    return " or ".join(ends)


# What masks and ids hold, in words.

#: Arrays of up to this many ids are written as they are.
WHOLE = 16

#: Ids beyond this are no names of segments, pages or rows, but numbers.
_MOST_VALUES = 2**20


def role_of(array: Any) -> Literal["mask", "ids", ""]:
    """Classify an argument by its values: a mask (bools), ids, or "" for numbers.

    Ids are 32-bit and wider integers of one or two axes, from -1 (for "none") on.
    """
    if not isinstance(array, np.ndarray) or not array.ndim or not array.size:
        return ""
    if array.dtype == np.bool_:
        return "mask"
    wide = array.dtype.kind in "iu" and array.dtype.itemsize >= 4
    if wide and array.ndim <= 2 and array.min() >= -1 and array.max() <= _MOST_VALUES:
        return "ids"
    return ""


def in_words(array: Array) -> str:
    """Describe a mask or ids in one line.

    Such as ``"causal 5x5"``, ``"bool[7, 9], 31 of 63 True, first False at (0, 1)"`` or ``"int32[5]
    [0 0 1 1 2]"``.
    """
    if array.dtype != np.bool_:
        return _ids_in_words(array)
    mask, typed = array, _typed(array)
    count = int(np.count_nonzero(mask))
    if count in (0, mask.size):
        return f"{typed}, all {bool(count)}"
    pattern = _pattern(mask)
    if pattern:
        return pattern
    index = np.unravel_index(int(np.argmin(mask)), mask.shape)
    first = ", ".join(str(int(axis_index)) for axis_index in index)
    return f"{typed}, {count} of {mask.size} True, first False at ({first})"


def _typed(array: Array) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"


def _pattern(mask: Array) -> str:
    """Name the pattern of the last two axes, if all others repeat it; else ""."""
    if mask.ndim < 2:
        lengths = _lengths(mask[None])
        return "" if lengths is None else f"bool[{mask.size}], the first {lengths[0]} True"
    flat = mask.reshape(-1, *mask.shape[-2:])
    if not (flat == flat[0]).all():
        return ""
    size = "x".join(map(str, mask.shape))
    rows, columns = np.indices(mask.shape[-2:])
    for name, sign in (("causal", 1), ("anti-causal", -1)) if min(mask.shape[-2:]) > 1 else ():
        distance = sign * (columns - rows)
        kept = distance[flat[0]]
        offset = int(kept.max())
        if (flat[0] == (distance <= offset)).all() and abs(offset) < min(mask.shape[-2:]):
            moved = f", moved by {sign * offset} columns" if offset else ""
            return f"{name} {size}{moved}"
    lengths = _lengths(flat[0])
    if lengths is None:
        return ""
    if len(set(lengths)) == 1:
        return f"{_typed(mask)}, the first {lengths[0]} of each row True"
    some = " ".join(map(str, lengths[:WHOLE])) + (" ..." if len(lengths) > WHOLE else "")
    return f"{_typed(mask)}, each row True up to lengths {some}"


def _lengths(rows: Array) -> list[int] | None:
    """Count the elements of each row that are True, if these are the first ones; else None."""
    counts = np.count_nonzero(rows, axis=-1)
    first = np.arange(rows.shape[-1]) < counts[:, None]
    return [int(count) for count in counts] if (rows == first).all() else None


def _ids_in_words(ids: Array) -> str:
    typed = _typed(ids)
    if ids.size <= WHOLE:
        return f"{typed} {_written(ids)}"
    flat = ids.ravel()
    ordered = ", in order" if (np.diff(flat) >= 0).all() else ""
    some = " ".join(map(str, flat[: WHOLE // 2].tolist()))
    return (
        f"{typed} [{some} ...], {int(flat.min())} to {int(flat.max())}, "
        f"{len(np.unique(flat))} different{ordered}"
    )


def _written(ids: Array) -> str:
    if ids.ndim == 1:
        return f"[{' '.join(map(str, ids.tolist()))}]"
    return f"[{' '.join(map(_written, ids))}]"
