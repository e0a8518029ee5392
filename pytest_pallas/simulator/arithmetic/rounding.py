"""Rounding to other than the nearest number of a dtype: stochastic, or to fewer bits."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from pytest_pallas.simulator.arithmetic.dtypes import BFLOAT16, Array, Dtype, convert, is_integer


def round_by_bits(target: Dtype) -> Callable[[Any, Any], Any]:
    """The function of float32 numbers and uint32 bits that rounds to one of both neighbors.

    Chips do not document which of the bits they use. Here it is the lower 16: a number is rounded
    away from zero (an integer: up) if its fraction of the way to that neighbor and the bits, as a
    fraction of 65536, are at least one. Numbers beyond the largest are rounded to nearest.

    Args:
      target: dtype of the results.
    """
    return _to_bfloat16 if target == BFLOAT16 else _to_neighbors(target)


def rounded_to_bits(x: Any, bits: int) -> Array:
    """Float32 numbers rounded to so many significant bits, ties to even."""
    x = np.asarray(x)
    words = x.view(np.uint32)
    drop = np.uint32(24 - bits)
    half = np.uint32((1 << (23 - bits)) - 1) + ((words >> drop) & np.uint32(1))
    found = ((words + half) >> drop << drop).view(np.float32)
    return np.where(np.isfinite(x), found, x)


def _to_bfloat16(x: Any, bits: Any) -> Array:
    x = np.asarray(x)
    words = x.view(np.uint32)
    rounded = (words + (bits & np.uint32(0xFFFF))) >> 16
    found = np.asarray(rounded.astype(np.uint16)).view(BFLOAT16)
    # A carry could leave the payload of a NaN; that of an infinity is zeros, which have none.
    return np.where(np.isnan(x), convert(x, BFLOAT16), found)


def _to_neighbors(target: Dtype) -> Callable[[Any, Any], Any]:
    values = _values(target)
    signed = not is_integer(target)

    def evaluate(x: Any, bits: Any) -> Array:
        size = np.abs(x) if signed else x
        inside = (size >= values[0]) & (size < values[-1])
        place = np.searchsorted(values, np.where(inside, size, values[0]), "right") - 1
        low, high = values[place], values[np.minimum(place + 1, len(values) - 1)]
        fraction = (size.astype(np.float64) - low) / (high - low) * 65536
        found = np.where(fraction + (bits & np.uint32(0xFFFF)) >= 65536, high, low)
        found = np.copysign(found, x) if signed else found
        return np.where(inside, convert(found.astype(np.float32), target), convert(x, target))

    return evaluate


@cache
def _values(target: Dtype) -> Array:
    """All finite numbers of a dtype of 8 bits or less, without negative floats."""
    values = np.arange(256, dtype=np.uint8)
    if target.name in ("int4", "uint4", "float4_e2m1fn"):
        values = values[:16]
    if is_integer(target):
        values = (values.astype(np.int8) << 4) >> 4 if target.name == "int4" else values
        return np.sort(values).astype(np.float64)
    with np.errstate(all="ignore"):
        numbers = values.view(target).astype(np.float64)
    return np.unique(numbers[np.isfinite(numbers) & (numbers >= 0)]) + 0.0
