"""Dtypes: what they are computed in, how JAX converts one to another, and their bits as another."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]
Dtype = np.dtype[Any]
Convert = Callable[[Any], Any]

BFLOAT16: Dtype = np.dtype(ml_dtypes.bfloat16)
FLOAT16: Dtype = np.dtype(np.float16)
FLOAT32: Dtype = np.dtype(np.float32)
FLOAT64: Dtype = np.dtype(np.float64)

_NARROW_INTS = {
    np.dtype(ml_dtypes.int2): (np.dtype(np.int8), 2),
    np.dtype(ml_dtypes.int4): (np.dtype(np.int8), 4),
    np.dtype(ml_dtypes.uint2): (np.dtype(np.uint8), 2),
    np.dtype(ml_dtypes.uint4): (np.dtype(np.uint8), 4),
}
_FLOAT4: Dtype = np.dtype(ml_dtypes.float4_e2m1fn)

_WORDS: dict[int, Dtype] = {size: np.dtype(f"uint{8 * size}") for size in (1, 2, 4, 8)}

#: Below this many elements, one call of numpy costs more than its work.
SMALL = 1 << 13


def is_complex(dtype: Dtype) -> bool:
    """Whether a dtype is complex."""
    return dtype.kind == "c"


def is_integer(dtype: Dtype) -> bool:
    """Whether a dtype holds integers, those of two and four bits included, and bool excluded."""
    return dtype.kind in "iu" or dtype in _NARROW_INTS


def is_unsigned(dtype: Dtype) -> bool:
    """Whether a dtype holds unsigned integers."""
    return dtype.kind == "u" or (dtype in _NARROW_INTS and _NARROW_INTS[dtype][0].kind == "u")


def is_float(dtype: Dtype) -> bool:
    """Whether a dtype holds real floating-point numbers."""
    return dtype.kind not in "biuc" and dtype not in _NARROW_INTS


def bit_width(dtype: Dtype) -> int:
    """How many bits an element has: 4 for int4, though numpy stores it in a byte."""
    if dtype in _NARROW_INTS:
        return _NARROW_INTS[dtype][1]
    return 4 if dtype == _FLOAT4 else dtype.itemsize * 8


def words_of(dtype: Dtype) -> Dtype:
    """The unsigned integers that are as large as the elements of a dtype in numpy."""
    return _WORDS[dtype.itemsize]


def codes_of(array: Any) -> Any:
    """The bits of each element, as an unsigned integer: for int4, a number from 0 to 15."""
    dtype = array.dtype
    words = array.view(_WORDS[dtype.itemsize])
    width = bit_width(dtype)
    return words if width == 8 * dtype.itemsize else words & np.uint8((1 << width) - 1)


def from_codes(codes: Any, dtype: Dtype) -> Any:
    """The elements of a dtype that have these bits; see ``codes_of``."""
    return codes.view(dtype)


@cache
def compute_dtype(dtype: Dtype) -> Dtype:
    """The dtype that numpy computes in, so that one rounding gives the result in ``dtype``."""
    if dtype in _NARROW_INTS:
        return _NARROW_INTS[dtype][0]
    return FLOAT32 if is_float(dtype) and dtype.itemsize < 4 else dtype


def convert(array: Any, dtype: Dtype) -> Any:
    """An array, or a numpy scalar, in another dtype, as JAX converts it."""
    return array if array.dtype == dtype else converter(array.dtype, dtype)(array)


def widen(array: Any) -> Any:
    """An array in the dtype that it is computed in, which holds all its values exactly."""
    dtype = array.dtype
    return array if dtype.char in "fdlLiIqQ?" else convert(array, compute_dtype(dtype))


def rounding(dtype: Dtype) -> Convert:
    """The function that rounds a computed array to a dtype, and gives it to compute on with."""
    if compute_dtype(dtype) == dtype:
        return lambda value: value
    return lambda value: widen(convert(value, dtype))


@cache
def converter(source: Dtype, target: Dtype) -> Convert:
    """The function that converts arrays of one dtype to another, as JAX does.

    Args:
      source: dtype of the arrays that it takes.
      target: dtype of those that it gives.
    """
    if source == target:
        return lambda array: array
    if is_complex(source) and not is_complex(target):
        convert_part = converter(np.dtype(source.type(0).real.dtype), target)
        return lambda array: convert_part(array.real)
    wide = compute_dtype(source)
    if is_float(source) and is_integer(target):
        saturate = _saturating(wide, target)
        if wide == source:
            return saturate
        widened = converter(source, wide)
        return lambda array: saturate(widened(array))
    if source in _NARROW_INTS and not is_integer(target):
        onward = converter(wide, target)
        return lambda array: onward(array.astype(wide))
    if target in _NARROW_INTS and source in _NARROW_INTS:
        return lambda array: array.astype(wide).astype(target)
    if source == FLOAT32 and target == BFLOAT16:
        return _to_bfloat16
    if is_float(target) and target.itemsize == 1:
        return _to_8_bits(source, target)
    if is_float(source) and source.itemsize == 1:
        return _from_8_bits(source, target)
    if source == FLOAT16 and target == FLOAT32:
        return _from_float16
    return lambda array: array.astype(target)


def _from_float16(array: Any) -> Any:
    """Widen float16 to float32; large arrays by a table, which is faster than numpy."""
    if array.size < SMALL:
        return array.astype(FLOAT32)
    return _widening_table().take(array.view(np.uint16), mode="wrap")


@cache
def _widening_table() -> Array:
    """For the bits of each float16, that number in float32."""
    return np.arange(1 << 16, dtype=np.uint16).view(FLOAT16).astype(FLOAT32)


def _to_bfloat16(array: Any) -> Any:
    """Round float32 to bfloat16; large arrays by their bits, which is faster than ml_dtypes."""
    if array.size < SMALL:
        return array.astype(BFLOAT16)
    words = array.view(np.uint32)
    # To even: just below half of the last place, and one more if that place is odd.
    rounded = words >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += words
    rounded >>= 16
    narrow = rounded.astype(np.uint16)
    if np.isnan(array.max()):
        # Rounding may have carried the payload of a NaN into its exponent, or cut it off.
        narrow |= np.multiply(np.isnan(array), 0x7FC0, dtype=np.uint16)
    return narrow.view(BFLOAT16)


def _to_8_bits(source: Dtype, target: Dtype) -> Convert:
    """Conversions to float8 and float4: of float32 by a table."""
    widest = source if source in (FLOAT32, FLOAT64) else None
    if widest is None and is_float(source):
        widest = FLOAT32
    if widest is None:  # an integer, or a bool
        widest = FLOAT32 if source.itemsize < 4 else FLOAT64

    def direct(array: Any) -> Any:
        found = array.astype(widest).astype(target)
        if target == _FLOAT4:
            found = np.where(np.isnan(array.astype(widest)), np.array(-0.0, target), found)
        return found

    if widest != FLOAT32:
        return direct
    table = _narrowing_table(target)
    widened = converter(source, FLOAT32)

    def by_table(array: Any) -> Any:
        words = widened(array).view(np.uint32)
        # The upper half, with a last bit that says whether any lower one is set: it has two bits
        # more than the target, so that rounding it is rounding the number.
        upper = words >> 16
        upper |= (words & 0xFFFF) != 0
        return table.take(upper, mode="wrap")  # which is faster than to check the bounds

    return by_table


@cache
def _narrowing_table(target: Dtype) -> Array:
    """For each upper half of a float32, that number in the target dtype."""
    values = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        table = values.astype(target)
    if target == _FLOAT4:
        table[np.isnan(values)] = -0.0  # it has no NaN
    return table


def _from_8_bits(source: Dtype, target: Dtype) -> Convert:
    """Conversions from float8 and float4, by a table."""
    values = np.arange(1 << 8, dtype=np.uint8)
    if source == _FLOAT4:
        values &= 15
    with np.errstate(all="ignore"):
        table = converter(FLOAT32, target)(values.view(source).astype(np.float32))
    return lambda array: table.take(array.view(np.uint8), mode="wrap")


def _saturating(source: Dtype, target: Dtype) -> Convert:
    """Conversions of float32 and float64 to integers."""
    wide = compute_dtype(target)
    limits = ml_dtypes.iinfo(target)
    low = source.type(int(limits.min))
    high = source.type(int(limits.max))
    if int(high) > int(limits.max):
        high = np.nextafter(high, source.type(0))  # the largest that the integers hold
    most = wide.type(int(limits.max))

    def saturate(array: Any) -> Any:
        if array.size == 0:
            return np.empty(array.shape, target)
        if array.min() >= low and array.max() <= high:  # false where there is a NaN
            return narrowed(array.astype(wide))
        finite = np.nan_to_num(array, nan=0.0, posinf=np.inf, neginf=-np.inf)
        found = np.clip(finite, low, high).astype(wide)
        return narrowed(np.where(array > high, most, found))

    def narrowed(array: Any) -> Any:
        return array if wide == target else array.astype(target)

    return saturate


def reinterpret(array: Any, dtype: Dtype) -> Any:
    """The bits of elements as elements of another dtype.

    Where those are narrower, a last axis is added, with the lowest bits first; where they are
    wider, the last axis is taken away.
    """
    source, target = bit_width(array.dtype), bit_width(dtype)
    if source == target:
        return from_codes(codes_of(array), dtype)
    if source > target:
        if target < 8:
            parts = 8 // target
            octets = _bytes_of(array)
            amounts = np.arange(parts, dtype=np.uint8) * np.uint8(target)
            codes = (octets[..., None] >> amounts) & np.uint8((1 << target) - 1)
            return from_codes(codes.reshape(*array.shape, source // target), dtype)
        return _bytes_of(array).view(words_of(dtype)).view(dtype)
    codes = codes_of(array)
    if source < 8:
        parts = 8 // source
        amounts = np.arange(parts, dtype=np.uint8) * np.uint8(source)
        pieces = codes.reshape(*array.shape[:-1], target // 8, parts) << amounts
        codes = np.bitwise_or.reduce(pieces, axis=-1)
    words = np.ascontiguousarray(codes).view(words_of(dtype))
    return words[..., 0].view(dtype)


def _bytes_of(array: Any) -> Any:
    """The bytes of each element, as a last axis."""
    return np.ascontiguousarray(codes_of(array)[..., None]).view(np.uint8)


def bitcast_axis(array: Any, dtype: Dtype, axis: int) -> Any:
    """As ``reinterpret``, where one axis becomes longer or shorter."""
    source, target = bit_width(array.dtype), bit_width(dtype)
    if source == target:
        return reinterpret(array, dtype)
    array = np.moveaxis(array, axis, -1)
    *leading, size = array.shape
    if source < target:
        parts = target // source
        found = reinterpret(array.reshape(*leading, size // parts, parts), dtype)
    else:
        found = reinterpret(array, dtype).reshape(*leading, size * (source // target))
    return np.moveaxis(found, -1, axis)
