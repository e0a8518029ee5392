"""Products of tensor cores: ``d = a @ b + c`` as ``mma``, ``wgmma`` and ``tcgen05.mma`` compute it.

Operands are float16, bfloat16, float32, float8 (e4m3, e5m2), float6, float4 or integers of 8 and 4
bits; the sums are float32, float16 or int32. ``mma`` also has float64 (PTX ISA 9.0, 9.7.14
"Warp-level matrix multiply-accumulate", 9.7.15 "wgmma", 9.7.16.2 "tcgen05: data types and matrix
shapes").

- Products of floats of at most 16 bits are exact in float32, where they are added. PTX leaves the
  order and the rounding of these sums open. An ``Accumulation`` says how a chip adds
  (``arithmetic.accumulation``); without one, these are sums of float32 in any order.
- float32 operands are tf32: the tensor core does not read the lower 13 bits of a float32, so that
  numbers are truncated (for that reason, CUTLASS rounds them before: ``round_half_ulp_truncate``
  in ``numeric_conversion.h``).
- An instruction contracts 256 bits of a row. Sums of float16 are rounded after each instruction.
- Sums of integers wrap around: Pallas never sets ``.satfinite``.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from pytest_pallas.accumulation import Accumulation, Accumulations
from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.arithmetic.accumulation import Product, chip_product, fused_product
from pytest_pallas.simulator.arithmetic.dtypes import (
    BFLOAT16,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    Array,
    Dtype,
    bit_width,
    converter,
    is_float,
    is_integer,
)
from pytest_pallas.simulator.arithmetic.products import Multiply, multiplier

#: Bits of a row of an operand that one instruction contracts (PTX ISA 9.0, 9.7.16.2.1).
_INSTRUCTION_BITS = 256


@cache
def tensor_product(
    lhs: Any,
    rhs: Any,
    out: Any,
    depth: int,
    *,
    sparse: bool = False,
    accumulation: Accumulation | None = None,
) -> Product:
    """How tensor cores multiply matrices of these dtypes, and add the product to another matrix.

    Args:
      lhs: dtype of the first operand.
      rhs: dtype of the second operand.
      out: dtype of the sums: float32, float16 or int32.
      depth: length of the contracted dimension.
      sparse: whether half of the first operand is known to be zero: then an instruction contracts
        twice as many elements.
      accumulation: how the chip adds in float32; None for sums of float32. Sums of other dtypes
        are not affected.

    Raises:
      SimulationError: tensor cores have no such product.
    """
    lhs, rhs, out = np.dtype(lhs), np.dtype(rhs), np.dtype(out)
    _require(lhs, rhs, out)
    if out == np.int32:
        integers = multiplier(lhs, rhs, out, depth)
        return lambda a, b, c: _added(integers(a, b), c)
    if out == FLOAT16:
        return _in_steps(lhs, rhs, depth, instruction_depth(lhs) * (1 + sparse))
    product = multiplier(lhs, rhs, out, depth)
    usual: Product = lambda a, b, c: _added(product(a, b), c)  # noqa: E731
    if FLOAT32 in (lhs, rhs):
        usual = lambda a, b, c: _added(product(to_tf32(a), to_tf32(b)), c)  # noqa: E731
    if accumulation is None or out != FLOAT32:
        return usual
    return chip_product(lhs, rhs, accumulation, usual, to_tf32)


#: Operands that Triton multiplies as bfloat16 or float16 with sums of float32, whatever they are.
_PRESETS = {"BF16_BF16_F32": BFLOAT16, "F16_F16_F32": FLOAT16}


def dot_product(
    lhs: Any, rhs: Any, out: Any, depth: int, precision: Any, accumulations: Accumulations
) -> Multiply | None:
    """How Triton's ``dot`` multiplies matrices on a chip, or None where that is not known.

    JAX's lowering (``_dot_general_lowering`` in ``jax/_src/pallas/triton/lowering.py``) asks for
    TF32 products of float32, unless both precisions are ``HIGHEST``, and adds in float32, unless
    the result is float16, float64 or int32. Triton rounds float32 to TF32, half away from zero;
    products of ``HIGHEST`` are fused multiply-adds of float32, one after the other.

    Args:
      lhs: dtype of the first operand.
      rhs: dtype of the second operand.
      out: dtype of the result.
      depth: length of the contracted dimension.
      precision: the parameter of ``dot_general``.
      accumulations: how the chip adds; empty if sums are those of float32.
    """
    lhs, rhs, out = np.dtype(lhs), np.dtype(rhs), np.dtype(out)
    if not accumulations or lhs != rhs or out in (FLOAT16, FLOAT64) or not is_float(out):
        return None
    dtype, exact = dot_operands(lhs, precision)
    if dtype is None:
        return None
    take, narrow = converter(lhs, dtype), converter(FLOAT32, out)
    if exact:
        return lambda a, b: narrow(fused_product(take(a), take(b)))
    accumulation = accumulations.get(("dot", "tf32" if dtype == FLOAT32 else dtype.name))
    if accumulation is None:
        return None
    usual = multiplier(dtype, dtype, FLOAT32, depth)
    product = chip_product(dtype, dtype, accumulation, lambda a, b, _: usual(a, b), rounded_to_tf32)
    return lambda a, b: narrow(product(take(a), take(b), None))


def dot_operands(dtype: Dtype, precision: Any) -> tuple[Dtype | None, bool]:
    """The dtype of the operands of Triton's ``dot``, and whether float32 is not rounded to TF32."""
    if precision is None:
        return dtype, False
    if isinstance(precision, tuple):
        names = [str(getattr(each, "name", each)) for each in precision]
        return dtype, dtype == FLOAT32 and not {"HIGH", "DEFAULT"} & set(names)
    name = str(getattr(precision, "name", ""))
    if name in ("DEFAULT", "TF32_TF32_F32", "F32_F32_F32"):
        return (dtype if name == "DEFAULT" else FLOAT32), name == "F32_F32_F32"
    return _PRESETS.get(name), False


def rounded_to_tf32(array: Array) -> Array:
    """The nearest tf32 numbers of float32 ones; of two, that further from zero."""
    nearest = ((array.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(FLOAT32)
    return np.where(np.isfinite(array), nearest, array)


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


def _in_steps(lhs: Dtype, rhs: Dtype, depth: int, step: int) -> Product:
    """Sums of float16: each instruction adds its products in float32, and rounds once."""
    product = multiplier(lhs, rhs, FLOAT32, min(step, depth))

    def evaluate(a: Array, b: Array, c: Array | None) -> Array:
        total = c
        for start in range(0, a.shape[1], step):
            part = product(a[:, start : start + step], b[start : start + step])
            total = _added(part, None if total is None else total.astype(FLOAT32)).astype(FLOAT16)
        return np.zeros((a.shape[0], b.shape[1]), FLOAT16) if total is None else total

    return evaluate
