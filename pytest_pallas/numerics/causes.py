"""What made an output wrong, where all its values show it: sentences for the message.

A cause needs evidence that other mistakes do not leave. Values that were never written, or are all
the same, are numbers of every format, and may be the end of a range.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np

from pallas_sim.dtypes import Array, epsilon, is_complex, is_exact, is_float, wide

#: Formats that an output may have been rounded to, the coarsest first.
_FORMATS = ("float8_e5m2", "float8_e4m3fn", "bfloat16", "float16", "float32")

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
    """What all values of a wrong output have in common that names a cause.

    Args:
      mask: bool, True where the output is wrong.
      actual: the kernel's output, in its dtype.
      expected: what it is compared with, of the same shape; of integers in the same dtype.
    """
    if is_exact(actual.dtype):
        return tuple(_saturated(mask, actual, wide(expected)))
    return tuple(_rounded(actual, expected))


def _rounded(actual: Array, expected: Array) -> Iterator[str]:
    """Every value is a number of a narrower format near the expected one, which is not."""
    dtype = actual.dtype
    if not (is_float(dtype) or is_complex(dtype)):
        return
    with np.errstate(all="ignore"):
        values, right = _parts(actual), _parts(expected.astype(dtype))
    finite = np.isfinite(values) & np.isfinite(right)
    values, right = values[finite], right[finite]
    for name in _FORMATS:
        if _narrower(name, dtype) and _is_of(values, name).all():
            other = ~_is_of(right, name)
            others, least = int(np.count_nonzero(other)), _FEW.get(name, _MANY)
            if others >= least and _is_rounding(values[other], right[other], name, least):
                yield (
                    f"every value is a {name} number, and {others} of {right.size} expected ones "
                    f"are not: the output is {dtype}, but was rounded to {name} on the way"
                )
            return


def _is_rounding(values: Array, right: Array, name: str, least: int) -> bool:
    """Whether values are what rounding to a format makes of the right ones.

    They are near these, there are several of them, and they have the last bit of the format. Of
    numbers that were rounded, half have it; of zeros and powers of two, none.
    """
    eps = epsilon(getattr(ml_dtypes, name, name))
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
    """All real numbers of an array in float64."""
    values = wide(array).ravel()
    return values.view(np.float64) if values.dtype.kind == "c" else values


def _narrower(name: str, dtype: np.dtype[Any]) -> bool:
    part = dtype.itemsize // 2 if is_complex(dtype) else dtype.itemsize
    return np.dtype(getattr(ml_dtypes, name, name)).itemsize < part


def _is_of(values: Array, name: str) -> Array:
    """Which values are numbers of a format."""
    with np.errstate(all="ignore"):
        return values.astype(getattr(ml_dtypes, name, name)).astype(np.float64) == values


def _saturated(mask: Array, actual: Array, expected: Array) -> Iterator[str]:
    """Integers at the ends of their range on one side only."""
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
    """Whether one side is at the ends of the range, and the others wrapped around from the upper.

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
    words = [f"{low}, the lowest number"] * bool((values == low).any())
    words += [f"{high}, the highest number"] * bool((values == high).any())
    return " or ".join(words)
