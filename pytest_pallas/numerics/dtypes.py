"""Facts about the dtypes of kernels: every numpy one and every one of ``ml_dtypes``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

type Array = npt.NDArray[Any]

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
    """Whether ``dtype`` is bool."""
    return np.dtype(dtype).kind == "b"


def is_exact(dtype: npt.DTypeLike) -> bool:
    """Whether arithmetic in ``dtype`` has no rounding: bool and every integer, int4 included."""
    return np.dtype(dtype).kind in "biu" or _is_narrow_integer(np.dtype(dtype))


def is_complex(dtype: npt.DTypeLike) -> bool:
    """Whether ``dtype`` is a complex dtype."""
    dtype = np.dtype(dtype)
    return dtype.kind == "c" or dtype.name in _HALF_COMPLEX


def is_float(dtype: npt.DTypeLike) -> bool:
    """Whether ``dtype`` is a real floating-point dtype, from float4 to float64."""
    dtype = np.dtype(dtype)
    return not is_complex(dtype) and not is_exact(dtype) and _has_float_facts(dtype)


def epsilon(dtype: npt.DTypeLike) -> float:
    """``2**-nmant`` of a float or complex ``dtype``; 1 for bool and integers.

    Raises:
      TypeError: ``dtype`` is not a number.
    """
    return 1.0 if is_exact(dtype) else float_facts(np.dtype(dtype)).epsilon


@cache
def float_facts(dtype: np.dtype[Any]) -> FloatFacts:
    """The facts of a float dtype, or of the parts of a complex one.

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
    """``values`` in the widest dtype of their kind, without loss.

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
    """Whether ``dtype`` is one of the integers of ``ml_dtypes``, narrower than a byte."""
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
