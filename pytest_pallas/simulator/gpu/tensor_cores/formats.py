"""Operands of tensor cores that are stored in less: structured sparsity, and scales for blocks."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import ml_dtypes
import numpy as np

from pytest_pallas.sim_errors import SimulationError
from pytest_pallas.simulator.arithmetic.dtypes import FLOAT32, Array, bit_width


def group_size(dtype: Any) -> int:
    """Elements of a row that two numbers of metadata describe: 4, or 8 of those of 4 bits."""
    return 8 if bit_width(np.dtype(dtype)) == 4 else 4


def expand(values: Array, places: Array) -> Array:
    """The matrix with its zeros.

    Args:
      values: ``[m, k // 2]``, the elements that are stored.
      places: ``[m, g, 2]``, which two of the four parts of each of ``g`` groups they are.

    Returns:
      ``[m, k]``, of the dtype of ``values``.
    """
    rows, groups, _ = places.shape
    width = values.shape[1] // (2 * groups)  # of a part: 1, or 2 where pairs are stored
    parts = np.zeros((rows, groups, 4, width), values.dtype)
    stored = values.reshape(rows, groups, 2, width)
    row, group = np.ogrid[:rows, :groups]
    for which in (1, 0):  # the first goes last, so that it stays where both have the same place
        parts[row, group, places[..., which].astype(np.intp)] = stored[:, :, which]
    return parts.reshape(rows, -1)


def disordered(places: Array) -> Array:
    """Which groups have metadata that PTX leaves undefined: ``[m, g]`` of bool.

    Args:
      places: see ``expand``.
    """
    first, second = places[..., 0].astype(np.int8), places[..., 1].astype(np.int8)
    return first >= second


def from_tensor_memory(metadata: Array, dtype: Any) -> Array:
    """The metadata in the order of the groups.

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
    """What ``async_copy_sparse_metadata_to_tmem`` makes of ``[1, t, 128, 64]``: ``[128, 64 t]``."""
    _, tiles, rows, width = copied.shape
    return copied[0].transpose(1, 0, 2).reshape(rows, tiles * width)


#: Gives ``a @ b + c`` for ``a [m, k]``, ``b [k, n]``, ``c [m, n]`` or None, and the scales of both,
#: ``[m, s]`` and ``[n, s]``.
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
    """How tensor cores multiply matrices with scales, and add the product to one of float32.

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
    blocks = [each * (1 + sparse) for each in _BLOCKS.get((width, scale), ())]
    if not scales or depth % scales or depth // scales not in blocks:
        words = " or ".join(map(str, blocks)) or "no number of"
        raise SimulationError(
            f"tensor cores scale blocks of {words} elements of {lhs} and {rhs} by {scale}, but "
            f"{depth} elements have {scales} scales"
        )
    block = depth // scales
    return lambda a, b, c, a_scale, b_scale: _product(a, b, c, a_scale, b_scale, block)


def _product(
    a: Array, b: Array, c: Array | None, a_scale: Array, b_scale: Array, block: int
) -> Array:
    """``a [m, k]``, ``b [k, n]``, ``c [m, n]`` or None, ``a_scale [m, s]``, ``b_scale [n, s]``."""
    # Float64 holds every product of an element and a scale, and neither overflows nor loses a bit
    # where one scale is very large and the other one very small.
    left = a.astype(np.float64) * np.repeat(scale_values(a_scale), block, axis=1)
    right = b.astype(np.float64) * np.repeat(scale_values(b_scale), block, axis=1).T
    product = (left @ right).astype(FLOAT32)
    return product if c is None else product + c


def scale_values(scales: Array) -> Array:
    """Scales as float64. Those of e4m3 are unsigned: the tensor core has no sign for them."""
    values = scales.astype(np.float64)
    return np.abs(values) if scales.dtype == _E4M3 else values


def scales_of_copy(copied: Array) -> Array:
    """What ``async_copy_scales_to_tmem`` makes of the scales in shared memory.

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
    """As ``scales_of_copy``, of the second operand of a pair of blocks with 64 rows each.

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
