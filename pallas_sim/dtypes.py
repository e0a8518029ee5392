"""Facts about the dtypes of kernels: every numpy one and every one of ``ml_dtypes``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

Array = np.ndarray[Any, Any]

# ml_dtypes 0.6 has complex numbers of two 16-bit halves; older versions do not.
_HALF_COMPLEX = {"complex32": "float16", "bcomplex32": "bfloat16"}


@dataclass(frozen=True)
class FloatFacts:
    """What the format of a float dtype (or of the parts of a complex one) can hold.

    Attributes:
      epsilon: the distance from 1 to the next number, ``2**-nmant``: one ulp of 1.
      smallest_normal: the smallest positive number that is held with full precision.
      largest: the largest finite number.
      bits: how many bits one number takes in memory.
    """

    epsilon: float
    smallest_normal: float
    largest: float
    bits: int


def is_bool(dtype: npt.DTypeLike) -> bool:
    """Return whether ``dtype`` is bool."""
    return np.dtype(dtype).kind == "b"


def is_exact(dtype: npt.DTypeLike) -> bool:
    """Return whether arithmetic in ``dtype`` has no rounding: bool and every integer, also int4."""
    return np.dtype(dtype).kind in "biu" or _is_narrow_integer(np.dtype(dtype))


@cache
def is_complex(dtype: npt.DTypeLike) -> bool:
    """Return whether ``dtype`` is a complex dtype."""
    dtype = np.dtype(dtype)
    return dtype.kind == "c" or dtype.name in _HALF_COMPLEX


@cache
def is_float(dtype: npt.DTypeLike) -> bool:
    """Return whether ``dtype`` is a real floating-point dtype, from float4 to float64."""
    dtype = np.dtype(dtype)
    return not is_complex(dtype) and not is_exact(dtype) and _has_float_facts(dtype)


def is_inexact(dtype: Any) -> bool:
    """Return whether it is a floating or complex dtype, narrow ones included."""
    return is_float(dtype) or is_complex(dtype)


def epsilon(dtype: npt.DTypeLike) -> float:
    """Return ``2**-nmant`` of a float or complex ``dtype``; 1 for bool and integers.

    Raises:
      TypeError: ``dtype`` is not a number.
    """
    return 1.0 if is_exact(dtype) else float_facts(np.dtype(dtype)).epsilon


@cache
def float_facts(dtype: np.dtype[Any]) -> FloatFacts:
    """Return the facts of a float dtype, or of the parts of a complex one.

    Raises:
      TypeError: ``dtype`` is neither float nor complex.
    """
    part = _HALF_COMPLEX.get(dtype.name, dtype)
    try:
        info = ml_dtypes.finfo(part)
    except (TypeError, ValueError) as error:
        raise TypeError(f"dtype {dtype} is not a floating-point dtype") from error
    return FloatFacts(
        epsilon=2.0**-info.nmant,
        smallest_normal=float(info.smallest_normal),
        largest=float(info.max),
        bits=int(info.bits),
    )


def wide(values: npt.ArrayLike) -> Array:
    """Return ``values`` in the widest dtype of their kind, without loss.

    Floats become float64, complex numbers complex128, bools and integers int64, and uint64, which
    int64 cannot hold, an object array of Python ints. The shape stays.

    Raises:
      TypeError: the dtype is not a number.
    """
    array = np.asarray(values)
    dtype = array.dtype
    if dtype == np.uint64:
        return array.astype(object)
    if is_exact(dtype):
        return array.astype(np.int64, copy=False)
    if not is_complex(dtype) and not is_float(dtype):
        raise TypeError(f"dtype {dtype} is not a number")
    with np.errstate(invalid="ignore"):  # a signalling NaN, as stale memory may hold
        return array.astype(np.complex128 if is_complex(dtype) else np.float64, copy=False)


@cache
def _is_narrow_integer(dtype: np.dtype[Any]) -> bool:
    """Return whether ``dtype`` is one of the integers of ``ml_dtypes``, narrower than a byte."""
    try:
        ml_dtypes.iinfo(dtype)
    except (TypeError, ValueError):
        return False
    return dtype.kind not in "biu"


@cache
def _has_float_facts(dtype: np.dtype[Any]) -> bool:
    try:
        float_facts(dtype)
    except TypeError:
        return False
    return True


# Dtypes: what they are computed in, how JAX converts one to another, and their bits as another.


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


def is_integer(dtype: Dtype) -> bool:
    """Return whether a dtype holds integers, also of two or four bits. A bool is none."""
    return dtype.kind in "iu" or dtype in _NARROW_INTS


def is_unsigned(dtype: Dtype) -> bool:
    """Return whether a dtype holds unsigned integers."""
    return dtype.kind == "u" or (dtype in _NARROW_INTS and _NARROW_INTS[dtype][0].kind == "u")


def bit_width(dtype: Dtype) -> int:
    """Return how many bits an element has: 4 for int4, though numpy stores it in a byte."""
    if dtype in _NARROW_INTS:
        return _NARROW_INTS[dtype][1]
    return 4 if dtype == _FLOAT4 else dtype.itemsize * 8


def word_dtype(dtype: Dtype) -> Dtype:
    """Return the unsigned integers that are as large as the elements of a dtype in numpy."""
    return _WORDS[dtype.itemsize]


def codes_of(array: Any) -> Any:
    """Return the bits of each element, as an unsigned integer: for int4, a number from 0 to 15."""
    dtype = array.dtype
    codes = array.view(_WORDS[dtype.itemsize])
    width = bit_width(dtype)
    return codes if width == 8 * dtype.itemsize else codes & np.uint8((1 << width) - 1)


def from_codes(codes: Any, dtype: Dtype) -> Any:
    """Return the elements of a dtype that have these bits; see ``codes_of``."""
    return codes.view(dtype)


@cache
def compute_dtype(dtype: Dtype) -> Dtype:
    """Return the dtype that numpy computes in; one rounding then gives the result in ``dtype``."""
    if dtype in _NARROW_INTS:
        return _NARROW_INTS[dtype][0]
    return FLOAT32 if is_float(dtype) and dtype.itemsize < 4 else dtype


def convert(array: Any, dtype: Dtype) -> Any:
    """Return an array, or a numpy scalar, in another dtype, as JAX converts it."""
    return array if array.dtype == dtype else converter(array.dtype, dtype)(array)


def widen(array: Any) -> Any:
    """Return an array in the dtype that it is computed in, which holds all its values exactly."""
    dtype = array.dtype
    return array if dtype.char in "fdlLiIqQ?" else convert(array, compute_dtype(dtype))


def rounding(dtype: Dtype) -> Convert:
    """Return the function that rounds a computed array to a dtype and widens it again."""
    if compute_dtype(dtype) == dtype:
        return lambda value: value
    return lambda value: widen(convert(value, dtype))


@cache
def converter(source: Dtype, target: Dtype) -> Convert:
    """Return the function that converts arrays of one dtype to another, as JAX does.

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
    """Return a table of the float32 of each float16, by its bits."""
    return np.arange(1 << 16, dtype=np.uint16).view(FLOAT16).astype(FLOAT32)


def _to_bfloat16(array: Any) -> Any:
    """Round float32 to bfloat16; large arrays by their bits, which is faster than ml_dtypes."""
    if array.size < SMALL:
        return array.astype(BFLOAT16)
    bits = array.view(np.uint32)
    # To even: just below half of the last place, and one more if that place is odd.
    rounded = bits >> 16
    rounded &= 1
    rounded += 0x7FFF
    rounded += bits
    rounded >>= 16
    narrow = rounded.astype(np.uint16)
    if np.isnan(array.max()):
        # Rounding may have carried the payload of a NaN into its exponent, or cut it off.
        narrow |= np.multiply(np.isnan(array), 0x7FC0, dtype=np.uint16)
    return narrow.view(BFLOAT16)


def _to_8_bits(source: Dtype, target: Dtype) -> Convert:
    """Return conversions to float8 and float4: of float32 by a table."""
    widest = source if source in (FLOAT32, FLOAT64) else None
    if widest is None and is_float(source):
        widest = FLOAT32
    if widest is None:  # an integer, or a bool
        widest = FLOAT32 if source.itemsize < 4 else FLOAT64

    def direct(array: Any) -> Any:
        result = array.astype(widest).astype(target)
        if target == _FLOAT4:
            result = np.where(np.isnan(array.astype(widest)), np.array(-0.0, target), result)
        return result

    if widest != FLOAT32:
        return direct
    table = _narrowing_table(target)
    widened = converter(source, FLOAT32)

    def by_table(array: Any) -> Any:
        bits = widened(array).view(np.uint32)
        # The upper half, with a last bit that says whether any lower one is set: it has two bits
        # more than the target, so that rounding it is rounding the number.
        upper = bits >> 16
        upper |= (bits & 0xFFFF) != 0
        return table.take(upper, mode="wrap")  # which is faster than to check the bounds

    return by_table


@cache
def _narrowing_table(target: Dtype) -> Array:
    """Return a table of numbers in the target dtype, by the upper half of the float32."""
    values = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)
    with np.errstate(all="ignore"):
        table = values.astype(target)
    if target == _FLOAT4:
        table[np.isnan(values)] = -0.0  # it has no NaN
    return table


def _from_8_bits(source: Dtype, target: Dtype) -> Convert:
    """Return conversions from float8 and float4, by a table."""
    values = np.arange(1 << 8, dtype=np.uint8)
    if source == _FLOAT4:
        values &= 15
    with np.errstate(all="ignore"):
        table = converter(FLOAT32, target)(values.view(source).astype(np.float32))
    return lambda array: table.take(array.view(np.uint8), mode="wrap")


def _saturating(source: Dtype, target: Dtype) -> Convert:
    """Return conversions of float32 and float64 to integers."""
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
        clipped = np.clip(finite, low, high).astype(wide)
        return narrowed(np.where(array > high, most, clipped))

    def narrowed(array: Any) -> Any:
        return array if wide == target else array.astype(target)

    return saturate


def reinterpret(array: Any, dtype: Dtype) -> Any:
    """Return the bits of elements as elements of another dtype.

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
        return _bytes_of(array).view(word_dtype(dtype)).view(dtype)
    codes = codes_of(array)
    if source < 8:
        parts = 8 // source
        amounts = np.arange(parts, dtype=np.uint8) * np.uint8(source)
        pieces = codes.reshape(*array.shape[:-1], target // 8, parts) << amounts
        codes = np.bitwise_or.reduce(pieces, axis=-1)
    merged = np.ascontiguousarray(codes).view(word_dtype(dtype))
    return merged[..., 0].view(dtype)


def _bytes_of(array: Any) -> Any:
    """Return the bytes of each element, as a last axis."""
    return np.ascontiguousarray(codes_of(array)[..., None]).view(np.uint8)


def bitcast_axis(array: Any, dtype: Dtype, axis: int) -> Any:
    """Reinterpret bits so that one axis becomes longer or shorter; see ``reinterpret``."""
    source, target = bit_width(array.dtype), bit_width(dtype)
    if source == target:
        return reinterpret(array, dtype)
    array = np.moveaxis(array, axis, -1)
    *leading, size = array.shape
    if source < target:
        parts = target // source
        result = reinterpret(array.reshape(*leading, size // parts, parts), dtype)
    else:
        result = reinterpret(array, dtype).reshape(*leading, size * (source // target))
    return np.moveaxis(result, -1, axis)


# Rounding to other than the nearest number of a dtype: stochastic, or to fewer bits.


def round_by_bits(target: Dtype) -> Callable[[Any, Any], Any]:
    """Return the function of float32 numbers and uint32 bits that rounds to one of both neighbors.

    Chips do not document which of the bits they use. Here it is the lower 16: a number is rounded
    away from zero (an integer: up) if its fraction of the way to that neighbor and the bits, as a
    fraction of 65536, are at least one. Numbers beyond the largest are rounded to nearest.

    Args:
      target: dtype of the results.
    """
    return _stochastic_bfloat16 if target == BFLOAT16 else _to_neighbors(target)


def rounded_to_bits(x: Any, bits: int) -> Array:
    """Return float32 numbers rounded to so many significant bits, ties to even."""
    x = np.asarray(x)
    codes = x.view(np.uint32)
    drop = np.uint32(24 - bits)
    half = np.uint32((1 << (23 - bits)) - 1) + ((codes >> drop) & np.uint32(1))
    rounded = ((codes + half) >> drop << drop).view(np.float32)
    return np.where(np.isfinite(x), rounded, x)


def _stochastic_bfloat16(x: Any, bits: Any) -> Array:
    x = np.asarray(x)
    codes = x.view(np.uint32)
    rounded = (codes + (bits & np.uint32(0xFFFF))) >> 16
    result = np.asarray(rounded.astype(np.uint16)).view(BFLOAT16)
    # A carry could leave the payload of a NaN; that of an infinity is zeros, which have none.
    return np.where(np.isnan(x), convert(x, BFLOAT16), result)


def _to_neighbors(target: Dtype) -> Callable[[Any, Any], Any]:
    values = _values(target)
    signed = not is_integer(target)

    def evaluate(x: Any, bits: Any) -> Array:
        size = np.abs(x) if signed else x
        inside = (size >= values[0]) & (size < values[-1])
        index = np.searchsorted(values, np.where(inside, size, values[0]), "right") - 1
        low, high = values[index], values[np.minimum(index + 1, len(values) - 1)]
        fraction = (size.astype(np.float64) - low) / (high - low) * 65536
        rounded = np.where(fraction + (bits & np.uint32(0xFFFF)) >= 65536, high, low)
        rounded = np.copysign(rounded, x) if signed else rounded
        return np.where(inside, convert(rounded.astype(np.float32), target), convert(x, target))

    return evaluate


@cache
def _values(target: Dtype) -> Array:
    """Return all finite numbers of a dtype of 8 bits or less, without negative floats."""
    values = np.arange(256, dtype=np.uint8)
    if target.name in ("int4", "uint4", "float4_e2m1fn"):
        values = values[:16]
    if is_integer(target):
        values = (values.astype(np.int8) << 4) >> 4 if target.name == "int4" else values
        return np.sort(values).astype(np.float64)
    with np.errstate(all="ignore"):
        numbers = values.view(target).astype(np.float64)
    return np.unique(numbers[np.isfinite(numbers) & (numbers >= 0)]) + 0.0


def same_bits(first: Array, second: Array) -> bool:
    """Return whether the bits of two arrays are the same: NaN is NaN."""
    shapes = (first.shape, first.dtype) == (second.shape, second.dtype)
    return shapes and first.tobytes() == second.tobytes()
