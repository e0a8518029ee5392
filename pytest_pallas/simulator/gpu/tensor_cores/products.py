"""Products of tensor cores: ``d = a @ b + c`` as ``mma``, ``wgmma`` and ``tcgen05.mma`` compute it.

Operands are float16, bfloat16, float32, float8 (e4m3, e5m2), float6, float4 or integers of 8 and 4
bits; the sums are float32, float16 or int32. ``mma`` also has float64 (PTX ISA 9.0, 9.7.14
"Warp-level matrix multiply-accumulate", 9.7.15 "wgmma", 9.7.16.2 "tcgen05: data types and matrix
shapes").

- Products of floats of at most 16 bits are exact in float32, where they are added. PTX leaves the
  order and the rounding of these sums open.
- float32 operands are tf32: the tensor core does not read the lower 13 bits of a float32, so that
  numbers are truncated (for that reason, CUTLASS rounds them before: ``round_half_ulp_truncate``
  in ``numeric_conversion.h``).
- An instruction contracts 256 bits of a row. Sums of float16 are rounded after each instruction.
- Sums of integers wrap around: Pallas never sets ``.satfinite``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from pytest_pallas.errors import SimulationError
from pytest_pallas.simulator.arithmetic.dtypes import (
    FLOAT16,
    FLOAT32,
    FLOAT64,
    Array,
    Dtype,
    bit_width,
    is_float,
    is_integer,
)
from pytest_pallas.simulator.arithmetic.products import multiplier

#: Gives ``a @ b + c`` for ``a [m, k]``, ``b [k, n]`` and ``c [m, n]``, or ``a @ b`` for None.
TensorProduct = Callable[[Array, Array, Array | None], Array]

#: Bits of a row of an operand that one instruction contracts (PTX ISA 9.0, 9.7.16.2.1).
_INSTRUCTION_BITS = 256

#: The bits that sums of float8 products keep on Hopper: "the Tensor Core only uses the highest 14
#: bits of each mantissa product for addition, and truncates bits exceeding this range", after
#: aligning 32 products to the largest exponent (DeepSeek-AI, "DeepSeek-V3 Technical Report",
#: arXiv:2412.19437, sections 3.3.2 and 3.5.2).
HOPPER_FLOAT8_BITS = 14

_FLOAT8: frozenset[Dtype] = frozenset(
    np.dtype(each) for each in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)
)


@cache
def tensor_product(
    lhs: Any,
    rhs: Any,
    out: Any,
    depth: int,
    *,
    sparse: bool = False,
    float8_bits: int | None = None,
) -> TensorProduct:
    """How tensor cores multiply matrices of these dtypes, and add the product to another matrix.

    Args:
      lhs: dtype of the first operand.
      rhs: dtype of the second operand.
      out: dtype of the sums: float32, float16 or int32.
      depth: length of the contracted dimension.
      sparse: whether half of the first operand is known to be zero: then an instruction contracts
        twice as many elements.
      float8_bits: how many bits sums of float8 products keep; None for all of float32. Hopper
        keeps ``HOPPER_FLOAT8_BITS``.

    Raises:
      SimulationError: tensor cores have no such product.
    """
    lhs, rhs, out = np.dtype(lhs), np.dtype(rhs), np.dtype(out)
    _require(lhs, rhs, out)
    if out == np.int32:
        integers = multiplier(lhs, rhs, out, depth)
        return lambda a, b, c: _added(integers(a, b), c)
    if float8_bits is not None and {lhs, rhs} <= _FLOAT8:
        return _truncating(depth, instruction_depth(lhs) * (1 + sparse), float8_bits, out)
    if out == FLOAT16:
        return _in_steps(lhs, rhs, depth, instruction_depth(lhs) * (1 + sparse))
    product = multiplier(lhs, rhs, out, depth)
    if FLOAT32 in (lhs, rhs):
        return lambda a, b, c: _added(product(to_tf32(a), to_tf32(b)), c)
    return lambda a, b, c: _added(product(a, b), c)


def to_tf32(array: Array) -> Array:
    """The tf32 numbers that tensor cores read for float32 ones: without their lower 13 bits."""
    if array.dtype != FLOAT32:
        return array
    return (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(FLOAT32)


def instruction_depth(dtype: Any) -> int:
    """Elements of a row that one instruction contracts: 16 of bfloat16, 32 of float8."""
    # float6 takes a byte for each element.
    width = bit_width(np.dtype(dtype))
    return _INSTRUCTION_BITS // (width if width in (4, 8, 16, 32) else 8)


def _require(lhs: Dtype, rhs: Dtype, out: Dtype) -> None:
    """Reject what no tensor core multiplies."""
    widths = {lhs.itemsize, rhs.itemsize}
    if all(map(is_float, (lhs, rhs))):
        same = lhs == rhs or widths == {1}
        sums = {
            FLOAT64: lhs == FLOAT64,
            FLOAT32: widths <= {1, 2, 4},
            FLOAT16: widths == {1} or lhs == FLOAT16,
        }
        known = same and sums.get(out, False)
    else:
        narrow = bit_width(lhs) == bit_width(rhs) and bit_width(lhs) in (4, 8)
        known = is_integer(lhs) and is_integer(rhs) and narrow and out == np.int32
    if not known:
        raise SimulationError(f"tensor cores have no product of {lhs} and {rhs} with sums of {out}")


def _added(product: Array, c: Array | None) -> Array:
    return product if c is None else product + c


def _in_steps(lhs: Dtype, rhs: Dtype, depth: int, step: int) -> TensorProduct:
    """Sums of float16: each instruction adds its products in float32, and rounds once."""
    product = multiplier(lhs, rhs, FLOAT32, min(step, depth))

    def evaluate(a: Array, b: Array, c: Array | None) -> Array:
        total = c
        for start in range(0, a.shape[1], step):
            part = product(a[:, start : start + step], b[start : start + step])
            total = _added(part, None if total is None else total.astype(FLOAT32)).astype(FLOAT16)
        return np.zeros((a.shape[0], b.shape[1]), FLOAT16) if total is None else total

    return evaluate


def _truncating(depth: int, step: int, bits: int, out: Dtype) -> TensorProduct:
    """Sums that keep so many bits: see ``HOPPER_FLOAT8_BITS``.

    An instruction aligns its products and the sum so far to the largest exponent among them,
    cuts off what is below ``bits`` bits, and adds exactly.
    """

    def evaluate(a: Array, b: Array, c: Array | None) -> Array:
        wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
        total = np.zeros((a.shape[0], b.shape[1])) if c is None else c.astype(np.float64)
        for start in range(0, depth, step):
            left = wide_a[:, start : start + step, None]
            terms = left * wide_b[None, start : start + step]
            terms = np.concatenate([terms, total[:, None]], axis=1)
            total = _truncated(terms, bits).sum(axis=1)
            total = total.astype(out).astype(np.float64)
        return total.astype(out)

    return evaluate


def _truncated(terms: Array, bits: int) -> Array:
    """Terms ``[m, t, n]`` without what is below ``bits`` bits of the largest one of axis 1."""
    finite = np.where(np.isfinite(terms), terms, 0.0)
    _, exponents = np.frexp(np.abs(finite).max(axis=1, keepdims=True))
    unit = np.ldexp(1.0, exponents - bits)
    return np.where(np.isfinite(terms), np.trunc(finite / unit) * unit, terms)
