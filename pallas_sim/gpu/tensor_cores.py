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

``tensor_product`` computes products of Mosaic GPU's instructions, ``dot_product`` those of Triton,
and ``scaled_product`` those with a scale for each block of elements. Between them are functions for
2:4 sparse operands with their metadata, and for the layouts of scales.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from pallas_sim.chips import Accumulation, Accumulations
from pallas_sim.dtypes import (
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
from pallas_sim.errors import SimulationError
from pallas_sim.products import Product, chip_product, fused_product, multiplier

#: Bits of a row of an operand that one instruction contracts (PTX ISA 9.0, 9.7.16.2.1).
_INSTRUCTION_BITS = 256


#: The dtypes of the sums of ``wgmma``, by that of its second operand.
_WGMMA_SUMS = {
    **dict.fromkeys(("bfloat16", "float32"), ("float32",)),
    **dict.fromkeys(("float16", "float8_e4m3fn", "float8_e5m2"), ("float32", "float16")),
    "int8": ("int32",),
}


#: Bytes of a row that the smallest swizzle spans. JAX has no ``wgmma`` without one.
_SWIZZLE = 32


def require_accumulator(shape: Sequence[int], name: str = "the accumulator") -> None:
    """Reject an accumulator of ``wgmma`` that no Hopper has.

    Args:
      shape: of the accumulator.
      name: of its reference.

    Raises:
      SimulationError: the message has the shape, and what is allowed.
    """
    rows, columns = shape
    if rows % 64 or columns % 8:
        raise SimulationError(
            f"{name} of wgmma is {list(shape)}: its rows must be a multiple of 64, which one "
            "instruction computes, and its columns a multiple of 8"
        )


def require_wgmma(sums: Any, lhs: Any, rhs: Any) -> None:
    """Reject a product that ``wgmma`` does not compute (PTX ISA 9.0, 9.7.15.2).

    Args:
      sums: the accumulator.
      lhs: the first operand.
      rhs: the second operand.

    Raises:
      SimulationError: the message has the shapes or dtypes, and what is allowed.
    """
    require_accumulator(sums.shape)
    if sums.shape[1] > 256:
        raise SimulationError(
            f"wgmma of {sums.shape[1]} columns: one instruction computes at most 256; divide them "
            "among several accumulators"
        )
    allowed = _WGMMA_SUMS.get(rhs.dtype.name)
    if allowed is None or sums.dtype.name not in allowed:
        raise SimulationError(
            f"wgmma of {lhs.dtype.name} and {rhs.dtype.name} into {sums.dtype.name}: "
            + (
                f"its sums are {' or '.join(allowed)}"
                if allowed
                else f"its operands are {', '.join(_WGMMA_SUMS)}"
            )
        )
    least = _SWIZZLE // rhs.dtype.itemsize
    if lhs.shape[1] % least:
        raise SimulationError(
            f"wgmma of {lhs.shape[1]} terms of {rhs.dtype.name}: they must be a multiple of "
            f"{least}, which are {_SWIZZLE} bytes; pad both operands with zeros"
        )


def require_wgmma_operand(name: str, part: Any, terms: int) -> None:
    """Reject an operand in shared memory whose rows ``wgmma`` cannot read.

    Args:
      name: of its reference.
      part: the operand, as a view of the memory.
      terms: its axis along which products are added up.

    Raises:
      SimulationError: the message has the shape, and what is allowed.
    """
    if min(part.shape) < 2:
        return  # its rows may be along either axis
    along = int(abs(part.strides[0]) > abs(part.strides[1]))  # the axis of a row in memory
    size = part.dtype.itemsize
    if size != 2 and along != terms:
        raise SimulationError(
            f"wgmma of {name} {list(part.shape)}, whose rows in memory are along axis {along}: of "
            f"{part.dtype.name}, they must be along the terms, axis {terms}; only operands of 16 "
            "bits may be the other way. Store it transposed, and use plgpu.transpose_ref"
        )
    if part.shape[along] * size % _SWIZZLE:
        raise SimulationError(
            f"wgmma of {name} {list(part.shape)}: a row in memory has {part.shape[along]} elements "
            f"of {part.dtype.name}, and it must be a multiple of {_SWIZZLE} bytes"
        )


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
    """Return the function by which tensor cores multiply matrices and add another one.

    Args:
      lhs: dtype of the first operand.
      rhs: dtype of the second operand.
      out: dtype of the sums: float32, float16 or int32.
      depth: length of the contracted dimension.
      sparse: whether half of the first operand is known to be zero, so that an instruction
        contracts twice as many elements.
      accumulation: how the chip adds; None for sums of float32 in any order. Sums of integers
        are not affected, nor those of float16 where it does not say how they are rounded.

    Raises:
      SimulationError: tensor cores have no such product.
    """
    lhs, rhs, out = np.dtype(lhs), np.dtype(rhs), np.dtype(out)
    _require(lhs, rhs, out)
    if out == np.int32:
        integers = multiplier(lhs, rhs, out, depth)
        return lambda a, b, c: _added(integers(a, b), c)
    if out == FLOAT16:
        if accumulation is not None and accumulation.float16:
            return chip_product(lhs, rhs, accumulation, out=out)
        return _in_steps(lhs, rhs, depth, instruction_depth(lhs) * (1 + sparse))
    product = multiplier(lhs, rhs, out, depth)

    def usual(a: Array, b: Array, c: Array | None) -> Array:
        return _added(product(to_tf32(a), to_tf32(b)) if rounds else product(a, b), c)

    rounds = FLOAT32 in (lhs, rhs)
    if accumulation is None or out != FLOAT32:
        return usual
    return chip_product(lhs, rhs, accumulation, to_tf32)


#: Precisions with which Triton multiplies any operands as bfloat16 or float16.
_PRESETS = {"BF16_BF16_F32": BFLOAT16, "F16_F16_F32": FLOAT16}


def dot_product(
    lhs: Any, rhs: Any, out: Any, precision: Any, accumulations: Accumulations, *, whole: bool
) -> Product | None:
    """Return the function by which Triton's ``dot`` multiplies on a chip; None if not known.

    Triton makes what a kernel adds to a product in float32 the first value of the accumulator.

    JAX's lowering (``_dot_general_lowering`` in ``jax/_src/pallas/triton/lowering.py``) requests
    TF32 products of float32, unless both precisions are ``HIGHEST``, and sums in float32, unless
    the result is float16, float64 or int32. Triton rounds float32 to TF32, half away from zero;
    products of ``HIGHEST`` are fused multiply-adds of float32, one after the other. On Hopper sums
    of float16 are those of ``wgmma``, if its tiles divide the product.

    Args:
      lhs: dtype of the first operand.
      rhs: dtype of the second operand.
      out: dtype of the result.
      precision: the parameter of ``dot_general``.
      accumulations: how the chip adds; empty if sums are those of float32.
      whole: whether the product has whole tiles of ``wgmma``: 64 rows and 8 columns.
    """
    lhs, rhs, out = np.dtype(lhs), np.dtype(rhs), np.dtype(out)
    if not accumulations or lhs != rhs or out == FLOAT64 or not is_float(out):
        return None
    dtype, exact = dot_operands(lhs, precision)
    if dtype is None:
        return None
    if out == FLOAT16:
        by_wgmma = accumulations.get(("wgmma", lhs.name))
        if by_wgmma is None or not by_wgmma.float16 or lhs == BFLOAT16 or dtype != lhs or not whole:
            return None
        return chip_product(lhs, rhs, by_wgmma, out=out)
    take, narrow = converter(lhs, dtype), converter(FLOAT32, out)
    if exact:
        return lambda a, b, c: narrow(fused_product(take(a), take(b), c))
    accumulation = accumulations.get(("dot", "tf32" if dtype == FLOAT32 else dtype.name))
    if accumulation is None:
        return None
    if accumulation.operands:
        dtype = np.dtype(accumulation.operands)
        take = converter(lhs, dtype)
    product = chip_product(dtype, dtype, accumulation, rounded_to_tf32)
    return lambda a, b, c: narrow(product(take(a), take(b), c))


def dot_operands(dtype: Dtype, precision: Any) -> tuple[Dtype | None, bool]:
    """Return the dtype of operands of Triton's ``dot``, and whether float32 stays exact."""
    if precision is None:
        return dtype, False
    if isinstance(precision, tuple):
        names = {str(getattr(one, "name", one)) for one in precision}
        return dtype, dtype == FLOAT32 and not names & {"HIGH", "DEFAULT"}
    name = str(getattr(precision, "name", ""))
    if name in ("DEFAULT", "TF32_TF32_F32", "F32_F32_F32"):
        return (dtype if name == "DEFAULT" else FLOAT32), name == "F32_F32_F32"
    return _PRESETS.get(name), False


def rounded_to_tf32(array: Array) -> Array:
    """Round float32 numbers to the nearest tf32 ones, half away from zero."""
    nearest = ((array.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)).view(FLOAT32)
    return np.where(np.isfinite(array), nearest, array)


def to_tf32(array: Array) -> Array:
    """Truncate float32 numbers to tf32, as tensor cores read them: without the lower 13 bits."""
    if array.dtype != FLOAT32:
        return array
    return (array.view(np.uint32) & np.uint32(0xFFFFE000)).view(FLOAT32)


def instruction_depth(dtype: Any) -> int:
    """Return the elements of a row that one instruction contracts: 16 of bfloat16, 32 of float8."""
    # float6 takes a byte for each element.
    width = bit_width(np.dtype(dtype))
    return _INSTRUCTION_BITS // (width if width in (4, 8, 16, 32) else 8)


def _require(lhs: Dtype, rhs: Dtype, out: Dtype) -> None:
    """Reject products that no tensor core computes."""
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


# Compressed operands of tensor cores: structured sparsity, and scales for blocks.


def expand(values: Array, positions: Array) -> Array:
    """Return a sparse matrix with its zeros.

    Args:
      values: ``[m, k // 2]``, the elements that are stored.
      positions: ``[m, g, 2]``, which two of the four parts of each of ``g`` groups they are.

    Returns:
      ``[m, k]``, of the dtype of ``values``.
    """
    rows, groups, _ = positions.shape
    width = values.shape[1] // (2 * groups)  # of a part: 1, or 2 where pairs are stored
    parts = np.zeros((rows, groups, 4, width), values.dtype)
    stored = values.reshape(rows, groups, 2, width)
    row, group = np.ogrid[:rows, :groups]
    for which in (1, 0):  # the first goes last, so that it stays if both have the same position
        parts[row, group, positions[..., which].astype(np.intp)] = stored[:, :, which]
    return parts.reshape(rows, -1)


def disordered(positions: Array) -> Array:
    """Mark the groups whose metadata PTX leaves undefined: ``[m, g]`` of bool.

    Args:
      positions: see ``expand``.
    """
    first, second = positions[..., 0].astype(np.int8), positions[..., 1].astype(np.int8)
    return first >= second


def from_tensor_memory(metadata: Array, dtype: Any) -> Array:
    """Return metadata from tensor memory in the order of the groups.

    For elements of 16 bits, a tile of 16 rows and 16 numbers in tensor memory holds two groups of 8
    rows: the second 8 numbers of a row lie in the row 8 further down, and the second 8 rows in the
    second 8 columns (PTX ISA 9.0, "sparsity selector for kind f16"). For those of 8 bits a row is a
    row. For those of 4 bits JAX has no order, so the same is taken.

    Args:
      metadata: ``[m, k]`` of numbers below 4, as tensor memory holds them.
      dtype: of the elements.

    Returns:
      ``[m, k // 2, 2]``.
    """
    rows, columns = metadata.shape
    if bit_width(np.dtype(dtype)) == 16:
        tiles = metadata.reshape(rows // 16, 2, 8, columns // 16, 2, 8)
        metadata = tiles.transpose(0, 4, 2, 3, 1, 5)
    return metadata.reshape(rows, columns // 2, 2)


def metadata_of_copy(copied: Array) -> Array:
    """Return ``[1, t, 128, 64]`` as ``async_copy_sparse_metadata_to_tmem`` writes it."""
    _, tiles, rows, width = copied.shape
    return copied[0].transpose(1, 0, 2).reshape(rows, tiles * width)


#: Returns ``a @ b + c`` for ``a [m, k]``, ``b [k, n]``, ``c [m, n]`` or None, and the scales of
#: both, ``[m, s]`` and ``[n, s]``.
ScaledProduct = Callable[[Array, Array, Array | None, Array, Array], Array]

_E8M0 = np.dtype(ml_dtypes.float8_e8m0fnu)
_E4M3 = np.dtype(ml_dtypes.float8_e4m3fn)

#: Elements of a block, by the bits of an element and the dtype of the scales.
_BLOCKS = {
    (8, _E8M0): (32,),
    (6, _E8M0): (32,),
    (4, _E8M0): (32, 16),
    (4, _E4M3): (16,),
}


@cache
def scaled_product(
    lhs: Any, rhs: Any, scale: Any, depth: int, scales: int, *, sparse: bool = False
) -> ScaledProduct:
    """Return the function by which tensor cores multiply matrices with scales.

    Args:
      lhs: dtype of the first operand.
      rhs: dtype of the second operand.
      scale: dtype of the scales of both.
      depth: length of the contracted dimension.
      scales: how many scales a row has.
      sparse: whether the first operand is 2:4 sparse, where a block has twice as many elements.

    Raises:
      SimulationError: tensor cores have no such product.
    """
    lhs, rhs, scale = np.dtype(lhs), np.dtype(rhs), np.dtype(scale)
    width = max(bit_width(lhs), bit_width(rhs))
    blocks = [size * (1 + sparse) for size in _BLOCKS.get((width, scale), ())]
    if not scales or depth % scales or depth // scales not in blocks:
        sizes = " or ".join(map(str, blocks)) or "no number of"
        raise SimulationError(
            f"tensor cores scale blocks of {sizes} elements of {lhs} and {rhs} by {scale}, but "
            f"{depth} elements have {scales} scales"
        )
    block = depth // scales

    def evaluate(a: Array, b: Array, c: Array | None, a_scale: Array, b_scale: Array) -> Array:
        # Float64 holds every product of an element and a scale. It neither overflows nor loses a
        # bit if one scale is very large and the other one very small.
        left = a.astype(np.float64) * np.repeat(scale_values(a_scale), block, axis=1)
        right = b.astype(np.float64) * np.repeat(scale_values(b_scale), block, axis=1).T
        return _added((left @ right).astype(FLOAT32), c)

    return evaluate


def scale_values(scales: Array) -> Array:
    """Convert scales to float64. The tensor core ignores the sign of those of e4m3."""
    values = scales.astype(np.float64)
    return np.abs(values) if scales.dtype == _E4M3 else values


def scales_of_copy(copied: Array) -> Array:
    """Return scales in shared memory as ``async_copy_scales_to_tmem`` writes them.

    A tile of 128 rows and 4 scales is copied as 32 rows of 16 bytes: row ``r`` has the scales of
    the rows ``r``, ``r + 32``, ``r + 64`` and ``r + 96`` (PTX ISA 9.0, "scale factor A layout 1X").

    Args:
      copied: ``[t, s // 4, 32, 16]``.

    Returns:
      ``[128 t, s]``.
    """
    tiles, columns, _, _ = copied.shape
    parts = copied.reshape(tiles, columns, 32, 4, 4)
    return parts.transpose(0, 3, 2, 1, 4).reshape(tiles * 128, columns * 4)


def paired_scales_of_copy(copied: Array) -> Array:
    """Do what ``scales_of_copy`` does for the second operand of a pair of blocks of 64 rows.

    Args:
      copied: ``[1, s // 4, 64, 16]``: 32 rows of each half of the columns of the product, and in a
        row of 16 bytes the scales of the columns ``c``, ``c + 32``, ``c + 64`` and ``c + 96`` of
        that half.

    Returns:
      ``[256, s]``: 128 rows for each half, of which the first ones count.
    """
    _, columns, _, _ = copied.shape
    parts = copied.reshape(columns, 2, 32, 4, 4)
    return parts.transpose(1, 3, 2, 0, 4).reshape(256, columns * 4)
