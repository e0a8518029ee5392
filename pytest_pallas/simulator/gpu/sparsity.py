"""Structured sparsity: matrices of which half of the elements are stored, and where these belong.

A row is divided into groups. Of each four elements two are stored; of elements of 4 bits, each is
two of them: of eight elements, two of four pairs are stored. The metadata has two numbers of 2 bits
for each group: which elements, or pairs, the stored ones are. The first number must be less than
the second one; PTX leaves the rest undefined (PTX ISA 9.0, 9.7.16.2.4 "sparse matrices").

``tcgen05.mma.sp`` reads the metadata from tensor memory, where their order depends on the dtype of
the elements: ``plgpu.format_tcgen05_sparse_metadata`` makes it, ``from_tensor_memory`` undoes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas.simulator.dtypes import Array, bit_width


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
