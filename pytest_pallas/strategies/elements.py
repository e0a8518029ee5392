"""``elements``: single values of any dtype, also of the narrow ones, which Hypothesis lacks."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from pytest_pallas.errors import SpecError
from pytest_pallas.strategies.dtypes import as_dtype, is_float
from pytest_pallas.strategies.values import limits


def elements(
    dtype: npt.DTypeLike,
    *,
    min_value: float | None = None,
    max_value: float | None = None,
    allow_nan: bool = False,
    allow_infinity: bool = False,
    allow_subnormal: bool = True,
) -> SearchStrategy[Any]:
    """A strategy for one value of ``dtype``, one of numpy's or ml_dtypes' dtypes.

    Example::

        from hypothesis.extra import numpy as hnp

        hnp.arrays(np.dtype(ml_dtypes.bfloat16), (3, 4), elements=elements("bfloat16"))

    Half of the draws are boundaries: zeros of both signs, one, the largest and smallest values, the
    least normal and subnormal ones, the neighbours of one. Every bit pattern of up to 16 bits can
    be drawn. It shrinks to 0, and then towards 1 and values with few significant bits.

    It draws element by element, which suits small arrays; ``arrays`` draws large ones.

    Args:
      dtype: a supported dtype.
      min_value: the smallest value, as any comparable number.
      max_value: the largest value.
      allow_nan: whether to draw NaN, where the dtype has it.
      allow_infinity: whether to draw infinities, where the dtype has them.
      allow_subnormal: whether to draw subnormal values.

    Draws numpy scalars of the dtype.

    Raises:
      SpecError: ``dtype`` is not supported, has no value between the bounds, or is complex and has
        bounds.
    """
    of_dtype = as_dtype(dtype)
    if of_dtype.kind == "c":
        if min_value is not None or max_value is not None:
            raise SpecError("elements: complex numbers have no order, so no min_value or max_value")
        part = elements(
            "float32" if of_dtype.itemsize == 8 else "float64",
            allow_nan=allow_nan,
            allow_infinity=allow_infinity,
            allow_subnormal=allow_subnormal,
        )
        return st.builds(lambda real, imag: of_dtype.type(complex(real, imag)), part, part)
    held = limits(of_dtype)
    low = held.low if min_value is None else max(min_value, held.low)
    high = held.high if max_value is None else min(max_value, held.high)

    def allowed(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if not is_float(of_dtype):
            return values[(values >= low) & (values <= high)]
        numbers = _as_float64(values)
        kept = (numbers >= low) & (numbers <= high) & np.isfinite(numbers)
        kept |= allow_nan & np.isnan(numbers)
        kept |= allow_infinity & np.isinf(numbers) & (max_value is None) & (numbers > 0)
        kept |= allow_infinity & np.isinf(numbers) & (min_value is None) & (numbers < 0)
        least = float(ml_dtypes.finfo(of_dtype).smallest_normal)
        if not allow_subnormal:
            kept &= (numbers == 0) | (np.abs(numbers) >= least) | ~np.isfinite(numbers)
        return values[kept]

    edges = allowed(_boundaries(of_dtype))
    if of_dtype.itemsize <= 2 and (is_float(of_dtype) or of_dtype.kind == "b"):
        groups = [group for group in map(allowed, _every(of_dtype)) if group.size]
        if not groups:
            raise _nothing(of_dtype, min_value, max_value)
        most = max(group.size for group in groups)
        rest = st.tuples(st.sampled_from(groups), st.integers(0, most - 1)).map(
            lambda pair: pair[0][pair[1] % pair[0].size]
        )
    elif is_float(of_dtype):
        # Hypothesis needs bounds that the width holds exactly.
        low, high = (_inward(bound, of_dtype, away) for bound, away in ((low, 1), (high, -1)))
        if not low <= high:
            raise _nothing(of_dtype, min_value, max_value)
        rest = st.floats(
            low,
            high,
            width=8 * of_dtype.itemsize,  # pyright: ignore[reportArgumentType]
            allow_subnormal=allow_subnormal and None,
        ).map(of_dtype.type)
    else:
        lowest, highest = math.ceil(low), math.floor(high)
        if lowest > highest:
            raise _nothing(of_dtype, min_value, max_value)
        rest = st.integers(lowest, highest).map(of_dtype.type)
    return rest if not edges.size else rest | st.sampled_from(edges.tolist()).map(of_dtype.type)


def _nothing(dtype: np.dtype[Any], low: object, high: object) -> SpecError:
    return SpecError(
        f"elements: {dtype.name} has no value between min_value={low} and max_value={high}; "
        "widen them"
    )


def _inward(bound: float, dtype: np.dtype[Any], away: int) -> float:
    """``bound`` as a value of ``dtype``, not beyond it."""
    rounded = dtype.type(bound)
    if (rounded < bound) if away > 0 else (rounded > bound):
        rounded = np.nextafter(rounded, dtype.type(away * np.inf))
    return float(rounded)


def _as_float64(values: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return values.astype(np.float64)


@lru_cache(maxsize=32)
def _boundaries(dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The boundary values of ``dtype``, and two short ones to shrink to."""
    held = limits(dtype)
    if not is_float(dtype):
        return np.array(
            sorted({held.low, 0, held.unit, min(2, held.high), held.high, held.high - 1}, key=abs),
            object,
        )
    info = ml_dtypes.finfo(dtype)
    # Large values and fractions are adjacent, because shrinking goes step by step.
    found = [1.0, 2.0, info.max, 0.5, 1 + float(info.eps), 1 - float(info.epsneg)]
    found = [*map(float, found), float(info.smallest_normal), float(info.smallest_subnormal)]
    found += [np.inf, np.nan]
    signed = [0.0, -0.0, *found, *(-value for value in found)]
    made = np.array(signed, np.float64).astype(dtype)
    # Values that the dtype lacks were rounded: keep one of each.
    _, first = np.unique(made.view(f"V{dtype.itemsize}"), return_index=True)
    return made[np.sort(first)]


@lru_cache(maxsize=32)
def _every(dtype: np.dtype[Any]) -> tuple[npt.NDArray[Any], ...]:
    """Every value of a dtype of at most 16 bits, by order of magnitude; the simplest first.

    Zeros come first and non-finite values last. Between them the order is by distance from 1, and
    for one magnitude by the number of significant bits.
    """
    if dtype.kind == "b":
        return (np.array([False, True]),)
    bits = int(ml_dtypes.finfo(dtype).bits)
    patterns = np.arange(2**bits, dtype=np.uint16 if dtype.itemsize == 2 else np.uint8)
    values = patterns.view(dtype)
    numbers = _as_float64(values)
    finite = np.where(np.isfinite(numbers), numbers, 0)
    fraction, exponent = np.frexp(np.abs(finite))
    significant = np.zeros(fraction.shape, int)  # bits after the first one
    for bit in range(1, 12):
        significant[(fraction * 2.0**bit) % 1 != 0] = bit
    distance = np.where(exponent > 0, 2 * exponent - 1, 2 - 2 * exponent)
    group = np.where(finite == 0, 0, distance)
    group[~np.isfinite(numbers)] = np.iinfo(group.dtype).max
    order = np.lexsort((np.abs(finite), np.signbit(finite), significant, group))
    starts = np.flatnonzero(np.diff(group[order])) + 1
    return tuple(np.split(values[order], starts))
