"""Products of matrices of any dtypes, computed by BLAS.

Floats of less than 32 bits are widened to float32, multiplied there, and rounded once. Integers are
multiplied as floats wherever all sums are exact in those: BLAS is about fifty times faster than
numpy's products of integers. Sums of integers wrap around in the dtype of the result.

The precision that a program names for a product is not simulated: float32 is never rounded to
bfloat16 or TensorFloat-32 before it is multiplied.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from pytest_pallas.simulator.arithmetic.dtypes import Array, Dtype, converter, is_integer

Unary = Callable[[Any], Any]
Multiply = Callable[[Any, Any], Any]

#: Products of fewer multiplications are summed by ``einsum``, in the order of the contracted
#: dimension, as a matrix unit does. BLAS adds up each part of a result in an order of its own, so
#: that the same row and column give other bits elsewhere (OpenBLAS 0.3.34). It is 5 times faster.
_BLAS = 1 << 20

#: All integers up to here are floats.
_EXACT = {np.dtype(np.float32): 2**24, np.dtype(np.float64): 2**53}


def multiplier(lhs: Any, rhs: Any, out: Any, depth: int, *, batched: bool = False) -> Multiply:
    """How matrices of these dtypes are multiplied.

    Args:
      lhs: dtype of the first operand.
      rhs: dtype of the second operand.
      out: dtype of the result.
      depth: length of the contracted dimension.
      batched: whether the operands have dimensions before those of the matrices, the same ones.

    Returns:
      A function of ``[..., m, depth]`` and ``[..., depth, n]`` that gives ``[..., m, n]``.
    """
    lhs, rhs, out = np.dtype(lhs), np.dtype(rhs), np.dtype(out)
    # Without a sum, so that a product of a zero and a negative number keeps its sign.
    product: Multiply = np.multiply if depth == 1 else (_batched if batched else _single)
    if all(is_integer(each) or each == np.bool_ for each in (lhs, rhs, out)):
        return _of_integers(product, lhs, rhs, out, depth)
    work = working_dtype(lhs, rhs, out)
    widen_lhs, widen_rhs = widening(lhs, work), widening(rhs, work)
    narrow = _narrowing(work, out)
    if widen_lhs is widen_rhs is narrow is None:
        return product
    if widen_lhs is not None and widen_rhs is not None:
        if narrow is None:
            return lambda a, b: product(widen_lhs(a), widen_rhs(b))
        return lambda a, b: narrow(product(widen_lhs(a), widen_rhs(b)))
    left, right, last = widen_lhs or _same, widen_rhs or _same, narrow or _same
    return lambda a, b: last(product(left(a), right(b)))


def _single(a: Array, b: Array) -> Array:
    if a.size * b.shape[1] < _BLAS and b.size:
        return np.einsum("ik,kj->ij", a, np.ascontiguousarray(b))
    return np.dot(a, b)


def _batched(a: Array, b: Array) -> Array:
    if a.size * b.shape[-1] < _BLAS and b.size:
        return np.einsum("...ik,...kj->...ij", a, np.ascontiguousarray(b))
    return np.matmul(a, b)


def working_dtype(*dtypes: Dtype) -> Dtype:
    """The dtype in which these floats or complex numbers are multiplied."""
    wide = any(each.char in "dD" for each in dtypes)
    if any(each.kind == "c" for each in dtypes):
        return np.dtype(np.complex128 if wide else np.complex64)
    return np.dtype(np.float64 if wide else np.float32)


def widening(dtype: Dtype, work: Dtype) -> Unary | None:
    """How values of ``dtype`` become values of ``work``; None if they are."""
    if dtype == work:
        return None
    if dtype == np.float16 and work == np.float32:
        # Numpy converts them one by one.
        take = _table().take
        return lambda value: take(value.view(np.uint16))
    if work.kind == "c":
        return lambda value: value.astype(work)
    return converter(dtype, work)


@cache
def _table() -> Array:
    """For each bit pattern of a float16, that number in float32."""
    with np.errstate(all="ignore"):
        return np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


def _narrowing(work: Dtype, out: Dtype) -> Unary | None:
    return None if work == out else converter(work, out)


def _of_integers(product: Multiply, lhs: Dtype, rhs: Dtype, out: Dtype, depth: int) -> Multiply:
    largest = _magnitude(lhs) * _magnitude(rhs) * max(depth, 1)
    # Truth values count before they are narrowed.
    wrap = _wrapping(out)
    if product is not np.multiply:
        for work, limit in _EXACT.items():
            if largest <= limit:
                whole = np.dtype(np.int32 if work == np.float32 else np.int64)
                return lambda a, b: wrap(
                    product(a.astype(work), b.astype(work)).astype(whole, copy=False)
                )
        if out.itemsize <= 4 and out != np.bool_ and depth <= 2**21:
            return lambda a, b: wrap(_in_halves(product, a, b))
        product = np.matmul
    return lambda a, b: wrap(product(a.astype(np.int64), b.astype(np.int64)))


def _in_halves(product: Multiply, a: Array, b: Array) -> Array:
    """The product of integers of 32 bits, modulo 2**32."""
    a, b = a.astype(np.int64), b.astype(np.int64)
    a_low, a_high = (a & 0xFFFF).astype(np.float64), (a >> 16).astype(np.float64)
    b_low, b_high = (b & 0xFFFF).astype(np.float64), (b >> 16).astype(np.float64)
    low = product(a_low, b_low).astype(np.int64)
    high = (product(a_high, b_low) + product(a_low, b_high)).astype(np.int64)
    return low + (high << 16)


def _magnitude(dtype: Dtype) -> int:
    if dtype == np.bool_:
        return 1
    info = ml_dtypes.iinfo(dtype)
    return max(-int(info.min), int(info.max))


def _wrapping(out: Dtype) -> Unary:
    if out == np.bool_:
        return lambda value: value != 0
    return lambda value: value.astype(out, copy=False)


def _same(value: Any) -> Any:
    return value
