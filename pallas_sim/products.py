"""Products of matrices of any dtypes, computed by BLAS.

Floats of less than 32 bits are widened to float32, multiplied there, and rounded once. Integers are
multiplied as floats wherever all sums are exact in those: BLAS is about fifty times faster than
numpy's products of integers. Sums of integers wrap around in the dtype of the result.

The precision that a program names for a product counts only with the arithmetic of a chip: then
TPUs multiply float32 in passes (``product_in_passes``), and GPUs round it
(``gpu.tensor_cores``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from pallas_sim.chips import Accumulation
from pallas_sim.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    Array,
    Dtype,
    convert,
    converter,
    is_float,
    is_integer,
)

Unary = Callable[[Any], Any]
Multiply = Callable[[Any, Any], Any]

#: Products of fewer multiplications are summed by ``einsum``, in the order of the contracted
#: dimension, as a matrix unit does. BLAS adds up each part of a result in an order of its own, so
#: that the same row and column give other bits elsewhere (OpenBLAS 0.3.34). It is 5 times faster.
_BLAS = 1 << 20

#: All integers up to here are floats.
_EXACT = {np.dtype(np.float32): 2**24, np.dtype(np.float64): 2**53}


def multiplier(lhs: Any, rhs: Any, out: Any, depth: int, *, batched: bool = False) -> Multiply:
    """Return how matrices of these dtypes are multiplied.

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
    if all(is_integer(dtype) or dtype == np.bool_ for dtype in (lhs, rhs, out)):
        return _of_integers(product, lhs, rhs, out, depth)
    work = working_dtype(lhs, rhs, out)
    if lhs == rhs == out == work:
        return product
    widen_lhs, widen_rhs, narrow = widening(lhs, work), widening(rhs, work), converter(work, out)
    return lambda a, b: narrow(product(widen_lhs(a), widen_rhs(b)))


def _single(a: Array, b: Array) -> Array:
    if a.size * b.shape[1] < _BLAS and b.size:
        return np.einsum("ik,kj->ij", a, np.ascontiguousarray(b))
    return np.dot(a, b)


def _batched(a: Array, b: Array) -> Array:
    if a.size * b.shape[-1] < _BLAS and b.size:
        return np.einsum("...ik,...kj->...ij", a, np.ascontiguousarray(b))
    return np.matmul(a, b)


# Products of float32 on TPUs: one pass of bfloat16, or several of parts of the operands.
#
# This is the code that libtpu 0.0.50.1 makes of ``dot_general`` in a kernel, for v4, v5e, v5p, v6e
# and tpu7x alike. Parts are cut off by a mask of the upper 16 bits, and what remains is subtracted.
# Passes are added in float32, from the least. Where a pass gets float32, the MXU takes it as
# bfloat16; how it rounds is not in the code, and to nearest here.


#: The passes of a product of float32 by its precision; without one, those of ``DEFAULT``.
_PASSES = {"DEFAULT": 1, "HIGH": 3, "HIGHEST": 6}


def passes_of(precision: Any) -> int:
    """Return how many passes a TPU makes of a product of float32; 0 if it is not known.

    Args:
      precision: the parameter of ``dot_general``.
    """
    parts: Any = precision if isinstance(precision, tuple) else (precision,)
    names = {"DEFAULT" if part is None else getattr(part, "name", "") for part in parts}
    return _PASSES.get(names.pop(), 0) if len(names) == 1 else 0


def takes_passes(lhs: Any, rhs: Any, passes: int) -> bool:
    """Return whether a TPU makes so many passes of a product of these dtypes.

    Operands of 16 bits or fewer are exact in one pass, and have one. With a precision,
    libtpu refuses a product of float32 and another float.
    """
    dtypes = [np.dtype(lhs), np.dtype(rhs)]
    if passes > 1:
        return dtypes == [FLOAT32, FLOAT32]
    return passes == 1 and FLOAT32 in dtypes and all(map(is_float, dtypes))


def product_in_passes(multiply: Multiply, a: Array, b: Array, passes: int) -> Array:
    """Multiply as a TPU does, arrays of numpy or JAX.

    Args:
      multiply: of matrices of the dtypes of ``a`` and ``b``, with a result of float32.
      a: float32; with one pass, it may be another float.
      b: likewise.
      passes: 1, 3 or 6.
    """
    if passes == 1:
        return multiply(_as_bfloat16(a), _as_bfloat16(b))
    (a_high, a_rest), (b_high, b_rest) = _cut(a), _cut(b)
    if passes == 3:
        pairs = [(_as_bfloat16(a_rest), b_high), (a_high, _as_bfloat16(b_rest))]
    else:
        (a_middle, a_low), (b_middle, b_low) = _cut(a_rest), _cut(b_rest)
        pairs = [
            (_cut(a_low)[0], b_high),
            (a_high, _cut(b_low)[0]),
            (_as_bfloat16(a_rest), _as_bfloat16(b_rest)),
            (a_middle, b_high),
            (a_high, b_middle),
        ]
    first, *others = [multiply(left, right) for left, right in (*pairs, (a_high, b_high))]
    for product in others:
        first = first + product
    return first


def _cut(x: Array) -> tuple[Array, Array]:
    """Return the upper 16 bits of float32, as bfloat16 has, and what is left."""
    high = (x.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    return high, x - high


def _as_bfloat16(x: Any) -> Any:
    """Return float32 rounded to bfloat16; other numbers as they are."""
    if x.dtype != FLOAT32:
        return x
    if isinstance(x, np.ndarray | np.generic):
        return convert(convert(x, BFLOAT16), FLOAT32)
    return x.astype(BFLOAT16).astype(FLOAT32)


def working_dtype(*dtypes: Dtype) -> Dtype:
    """Return the dtype in which these floats or complex numbers are multiplied."""
    wide = any(dtype.char in "dD" for dtype in dtypes)
    if any(dtype.kind == "c" for dtype in dtypes):
        return np.dtype(np.complex128 if wide else np.complex64)
    return np.dtype(np.float64 if wide else np.float32)


def widening(dtype: Dtype, work: Dtype) -> Unary:
    """Return how values of ``dtype`` become values of ``work``."""
    if work.kind == "c" and dtype != work:
        return lambda value: value.astype(work)
    return converter(dtype, work)


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
    """Return the product of integers of 32 bits, modulo 2**32."""
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


# Sums of products as tensor cores add them: truncated, a group of products at a time.
#
# For each group of ``Accumulation.step`` products, in their order:
#
# 1. Products are exact. The exponent of a product is the sum of the exponents of its operands; a
#    subnormal operand has the smallest exponent of its format.
# 2. ``m`` is the largest of these exponents and that of the accumulator; zeros have none. It is at
#    least -133.
# 3. Each product, and the accumulator, is truncated toward zero to a multiple of
#    ``2 ** (m - fraction_bits)``.
# 4. They are added exactly, and the sum is truncated toward zero to ``sum_bits`` bits below its own
#    exponent, and to a multiple of the smallest subnormal number. From 2**128 on it is infinite.
#
# The source is a comparison with an H200, without a wrong bit in 610,000 sums (docs/simulator.md).


#: Gives ``a @ b + c`` for ``a [m, k]``, ``b [k, n]`` and ``c [m, n]``, or ``a @ b`` for None.
Product = Callable[[Array, Array, Array | None], Array]

#: The exponent of a zero: less than that of any product of numbers.
_NONE = -4096

#: Where exponents of products are in this range, products are normal numbers of float32, and stay
#: so when they are scaled.
_RANGE = 60

#: The smallest exponent of a group, whatever its products have.
_LEAST_OF_GROUP = -133

#: Sums are multiples of 2 to this: the subnormal numbers of float32.
_SMALLEST = -149

#: Groups with a smaller exponent cannot have a sum beyond float32.
_LARGE = 120

#: More bits than a sum of a step has.
_ALL_BITS = 44

#: Products of a group that are computed at a time: their arrays fit into a level 2 cache.
_AT_A_TIME = 1 << 16


def least_exponent(dtype: Any) -> int:
    """Return the exponent of the subnormal numbers of a float dtype."""
    return int(ml_dtypes.finfo(dtype).minexp)


def truncated_product(
    a: Array, b: Array, c: Array | None, accumulation: Accumulation, least: tuple[int, int, int]
) -> Array:
    """Return ``a @ b + c`` as float64, whose values are those of the accumulator.

    Args:
      a: float32 or float64 ``[m, k]``; finite.
      b: of the same dtype, ``[k, n]``; finite.
      c: float32 ``[m, n]``; finite. None for zeros.
      accumulation: how the instruction adds.
      least: the smallest exponents of the formats of ``a``, ``b`` and the sums.
    """
    sums = np.zeros((len(a), b.shape[1])) if c is None else c.astype(np.float64) + 0.0
    if not sums.size or not a.shape[1]:
        return sums
    # Products of zeros leave an accumulator as it is, after its own truncation. Blocks have many,
    # where they are beyond the edge of an array.
    _keep(sums, accumulation.fraction_bits)
    rows, columns = a.any(axis=1), b.any(axis=0)
    terms = np.flatnonzero(a.any(axis=0) & b.any(axis=1))
    if not terms.size:
        return sums
    if rows.all() and columns.all():
        _add(a, b, sums, terms, accumulation, least)
    else:
        part = np.ix_(rows, columns)
        inner = sums[part]
        _add(a[rows], b[:, columns], inner, terms, accumulation, least)
        sums[part] = inner
    return sums


def _add(
    a: Array,
    b: Array,
    sums: Array,
    terms: Array,
    accumulation: Accumulation,
    least: tuple[int, int, int],
) -> None:
    """Add the products of ``terms``, those of the others being zeros, to ``sums``, in place."""
    step = accumulation.step
    # Products are outer products of columns of a and rows of b.
    a, b = np.ascontiguousarray(a.T[terms]), np.ascontiguousarray(b[terms])
    of_a, of_b = _exponents(a, least[0]), _exponents(b, least[1])
    low, high = _range(of_a, of_b)
    if high - low <= accumulation.fraction_bits - _bits(a) - _bits(b):
        exact = _exact_sums(a, b, sums, accumulation, max(high, least[2]))
        if exact is not None:
            sums[...] = exact
            return
    if low < -_RANGE or high > _RANGE:
        a, b = a.astype(FLOAT64), b.astype(FLOAT64)
    starts = np.searchsorted(terms, np.arange(0, terms[-1] + step + 1, step))
    rows = max(1, _AT_A_TIME // (step * b.shape[1]))
    for row in range(0, len(sums), rows):
        span = slice(row, row + rows)
        total = sums[span]
        for start, end in itertools.pairwise(starts.tolist()):
            if start < end:
                of_rows = a[start:end, span], of_a[start:end, span]
                of_columns = b[start:end], of_b[start:end]
                total = _added(of_rows, of_columns, total, accumulation, least[2])
        sums[span] = total


def _range(of_a: Array, of_b: Array) -> tuple[int, int]:
    """Return the smallest and the largest sum of an exponent of each, without those of zeros."""
    low, high = 0, 0
    for exponents in (of_a, of_b):
        low += int(exponents.min(initial=-_NONE, where=exponents > _NONE))
        high += int(exponents.max())
    return low, high


def _bits(array: Array) -> int:
    """Return how many bits the fractions of some floats have."""
    whole, bits = (np.int32, 23) if array.dtype == FLOAT32 else (np.int64, 52)
    fraction = int(np.bitwise_or.reduce(array.view(whole), axis=None)) & ((1 << bits) - 1)
    return bits + 1 - (fraction & -fraction).bit_length() if fraction else 0


def _exact_sums(
    a: Array, b: Array, total: Array, accumulation: Accumulation, high: int
) -> Array | None:
    """Return ``total`` and all products, added exactly; None if a step may truncate something.

    None does if all numbers are multiples of a bit that no group and no sum can lose, as small
    integers are.

    Args:
      a: as of ``_add``, transposed.
      b: as of ``_add``.
      total: float64 ``[m, n]``.
      accumulation: how the instruction adds.
      high: no product has a larger exponent.
    """
    a, b = a.astype(FLOAT64), b.astype(FLOAT64)
    most = float(np.abs(a).max() * np.abs(b).max() * len(a) + np.abs(total).max())
    top = max(high, math.frexp(most)[1] - 1)
    kept = top - min(accumulation.fraction_bits, accumulation.sum_bits)
    if top >= _LARGE or kept < _SMALLEST or _lowest_bit(a) + _lowest_bit(b) < kept:
        return None
    units = total * 2.0**-kept
    return a.T @ b + total if (units == np.rint(units)).all() else None


def _lowest_bit(array: Array) -> int:
    """Return an exponent of 2 of which all these float64 are multiples; not all may be zeros."""
    smallest = float(np.abs(array).min(initial=np.inf, where=array != 0))
    return math.frexp(smallest)[1] - 1 - _bits(array)


def _added(
    a: tuple[Array, Array],
    b: tuple[Array, Array],
    total: Array,
    accumulation: Accumulation,
    least: int,
) -> Array:
    """Add one group of products to ``total``, a float64, and return the sum."""
    bits = accumulation.fraction_bits
    largest = (a[1][:, :, None] + b[1][:, None, :]).max(axis=0)
    np.maximum(largest, _exponents(total, least), out=largest)
    np.maximum(largest, np.int16(_LEAST_OF_GROUP), out=largest)
    scale = np.ldexp(1.0, bits - largest.astype(np.int32))
    # What is scaled has a fraction of what is cut off, and conversion to integers truncates.
    products = a[0][:, :, None] * b[0][:, None, :]
    # Where a larger scale is asked for, all products in the range of float32 are zeros.
    products *= np.minimum(scale, 2.0**100).astype(FLOAT32) if a[0].dtype == FLOAT32 else scale
    # A product is less than 2 ** (bits + 2).
    whole = np.int32 if accumulation.step << (bits + 2) <= 1 << 31 else np.int64
    terms = products.astype(whole).sum(axis=0, dtype=whole)
    sums = np.trunc(total * scale) + terms
    sums = np.ldexp(sums, largest.astype(np.int32) - bits)
    _keep(sums, accumulation.sum_bits)
    if int(largest.min()) - bits < _SMALLEST:
        sums = np.ldexp(np.trunc(np.ldexp(sums, -_SMALLEST)), _SMALLEST)
    if int(largest.max()) >= _LARGE:
        sums[np.abs(sums) >= 2.0**128] *= np.inf
    return sums


def _keep(sums: Array, bits: int) -> None:
    """Truncate float64 to so many bits below the exponent, in place."""
    sums.view(np.int64)[...] &= np.int64(-1) << np.int64(52 - bits)


def _exponents(array: Array, least: int) -> Array:
    """Return the exponents of float32 or float64, as int16: at least ``least``; zeros have none."""
    if array.dtype == FLOAT32:
        exponents = ((array.view(np.int32) >> 23) & 0xFF).astype(np.int16) - np.int16(127)
    else:
        exponents = ((array.view(np.int64) >> 52) & 0x7FF).astype(np.int16) - np.int16(1023)
    np.maximum(exponents, np.int16(least), out=exponents)
    exponents[array == 0] = _NONE
    return exponents


def chip_product(
    lhs: Dtype,
    rhs: Dtype,
    accumulation: Accumulation,
    read: Unary | None = None,
    out: Dtype = FLOAT32,
) -> Product:
    """Return how tensor cores compute ``a @ b + c``.

    A product with an infinite operand is infinite, or NaN; a finite one may be larger than any
    float32. A NaN has the bits that Hopper gives all of them.

    Args:
      lhs: dtype of the first operand.
      rhs: dtype of the second operand.
      accumulation: how the instruction adds.
      read: gives what the instruction reads of a float32 operand; None for all of it.
      out: dtype of the sums: float32, or float16, which a step rounds to, to nearest.
    """
    least = least_exponent(lhs), least_exponent(rhs), least_exponent(out)
    # What the instruction reads of each operand, in float32.
    widen = [
        read if read and dtype == FLOAT32 else widening(dtype, FLOAT32) for dtype in (lhs, rhs)
    ]
    if out == FLOAT16:
        accumulation = replace(accumulation, sum_bits=_ALL_BITS)

    def evaluate(a: Array, b: Array, c: Array | None) -> Array:
        a, b, depth = widen[0](a), widen[1](b), a.shape[1]
        if accumulation.order:
            terms = _ordered(depth, accumulation.order)
            a, b = a[:, terms], b[terms]
        left, right = _finite(a), _finite(b)
        is_special = left is not a or right is not b
        step = accumulation.step if is_special or out == FLOAT16 else max(depth, 1)
        sums = c
        with np.errstate(over="ignore", invalid="ignore"):
            for start in range(0, max(depth, 1), step):
                group = slice(start, start + step)
                before = 0 if sums is None else sums
                sums = truncated_product(left[:, group], right[group], sums, accumulation, least)
                if is_special:
                    special = _special_sums(a[:, group], b[group])
                    sums = np.where(special == 0, sums, before + special)
                sums = sums.astype(out) + out.type(0)  # a sum that is rounded to -0 is 0
        assert sums is not None
        bits = sums.view(np.uint32 if out == FLOAT32 else np.uint16)
        bits[np.isnan(sums)] = np.iinfo(bits.dtype).max >> 1
        return sums

    return evaluate


def _ordered(depth: int, order: tuple[int, ...]) -> Array:
    """Return the order of so many products; behind whole groups it is that of the operands."""
    terms, size = np.arange(depth), len(order)
    whole = depth // size * size
    terms[:whole] = (np.arange(0, whole, size)[:, None] + np.array(order)).ravel()
    return terms


def _finite(array: Array) -> Array:
    """Return an array with zeros for NaN and infinities; the same one if it has none."""
    finite = np.isfinite(array)
    return array if finite.all() else np.where(finite, array, np.float32(0))


def _special_sums(a: Array, b: Array) -> Array:
    """Return what infinite and NaN products add to sums: zeros, signed infinities, or NaN."""

    def meet(of_rows: Array, of_columns: Array) -> Array:
        return (of_rows.astype(FLOAT32) @ of_columns.astype(FLOAT32)) > 0

    infinite_a, infinite_b = np.isinf(a), np.isinf(b)
    nan = meet(np.isnan(a), np.ones(b.shape)) | meet(np.ones(a.shape), np.isnan(b))
    nan |= meet(infinite_a, b == 0) | meet(a == 0, infinite_b)
    above, below = (
        meet(infinite_a & (a > 0), sign * b > 0)
        | meet(infinite_a & (a < 0), sign * b < 0)
        | meet(a > 0, infinite_b & (sign * b > 0))
        | meet(a < 0, infinite_b & (sign * b < 0))
        for sign in (1, -1)
    )
    sums = np.where(above, np.inf, 0.0) - np.where(below, np.inf, 0.0)
    return np.where(nan, np.nan, sums)


def fused_product(a: Array, b: Array, c: Array | None = None) -> Array:
    """Return ``a @ b + c`` by fused multiply-adds of float32, in order, rounded to nearest.

    Float64 has each product, and rounds its sum with the one before. Rounded again to float32,
    that is the nearest number unless it lies on a tie of float32 that the exact sum does not.
    """
    wide_a, wide_b = np.ascontiguousarray(a.T, np.float64), b.astype(np.float64)
    total = np.zeros((a.shape[0], b.shape[1])) if c is None else c.astype(np.float64)
    for left, right in zip(wide_a, wide_b, strict=True):
        product = np.multiply.outer(left, right)
        exact = product + total
        tie = (exact.view(np.int64) & 0x1FFFFFFF) == 0x10000000
        if tie.any():
            exact = np.where(tie, _off_the_tie(product, total, exact), exact)
        total = exact.astype(np.float32).astype(np.float64)
    return total.astype(np.float32)


def _off_the_tie(x: Array, y: Array, rounded: Array) -> Array:
    """Return ``x + y`` as float64, moved to the side of its rounding error (Knuth's two-sum)."""
    back = rounded - x
    error = (x - (rounded - back)) + (y - back)
    away = np.where(error > 0, np.inf, -np.inf)
    return np.where(error != 0, np.nextafter(rounded, away), rounded)
