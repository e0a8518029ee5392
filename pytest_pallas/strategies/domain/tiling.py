"""Which block sizes a chip accepts, and a few of them for each dim.

For a TPU the rule is that of the Pallas TPU lowering (``_check_block_mappings`` of JAX 0.12): the
last two dims of a block are multiples of 8 and of 128, or the array's own. A block of whole tiles
has 16 rows of 16 bits and 32 of 8; a size counts as legal here if it is one that needs no partial
tile. A block of one dim is the whole array, or a multiple of 1024, or a power of two of at least
128 elements of 32 bits.

For a GPU it is what both of Pallas' GPU lowerings take: powers of two (Triton refuses others), of
at most 256 elements a dim and at least 16 bytes in the last (bounds of the tensor memory
accelerator, cuTensorMapEncodeTiled in the CUDA driver API).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

from pytest_pallas.strategies.dtypes import is_float

#: Rows and columns of a tile of 32-bit elements, and the elements of such a tile.
SUBLANES, LANES = 8, 128
CHUNK = SUBLANES * LANES

#: The bounds of a GPU's tensor memory accelerator: elements a dim, bytes in the last dim.
MOST_ELEMENTS, LEAST_BYTES = 256, 16


def bits(dtype: np.dtype[Any]) -> int:
    """How many bits of memory on a device an element takes; a bool takes 8."""
    if dtype.kind == "b":
        return 8
    return int(ml_dtypes.finfo(dtype).bits if is_float(dtype) else ml_dtypes.iinfo(dtype).bits)


def tile_rows(dtype: np.dtype[Any]) -> int:
    """Rows of a whole TPU tile: 8 for 32 bits and more, 16 for 16 bits, 32 for 8, 64 for 4."""
    return SUBLANES * max(1, 32 // bits(dtype))


def tpu_candidates(
    shape: tuple[int, ...], dtype: np.dtype[Any]
) -> list[tuple[list[int], list[int]]]:
    """For each dim of ``shape`` some sizes that a TPU accepts, and some that it refuses."""
    rank = len(shape)
    if rank == 1:
        return [_one_dim(shape[0], LANES * max(1, 32 // bits(dtype)))]
    tiles = {rank - 1: (LANES, LANES), rank - 2: (tile_rows(dtype), SUBLANES)}
    found: list[tuple[list[int], list[int]]] = []
    for dim, size in enumerate(shape):
        if dim not in tiles:
            found.append((_within({1, 2, size - 1, size}, size), []))
            continue
        tile, rule = tiles[dim]
        legal = {size, *(number * tile for number in _counts(-(-size // tile)))}
        wrong = {rule // 2, rule - 1, rule + 1, tile - 1, tile + 1, tile + rule // 2}
        wrong |= {size - 1, size + 1}
        refused = [block for block in wrong if block > 0 and block != size and block % rule]
        found.append((sorted(legal), sorted(refused)))
    return found


def gpu_candidates(
    shape: tuple[int, ...], dtype: np.dtype[Any]
) -> list[tuple[list[int], list[int]]]:
    """For each dim of ``shape`` some sizes that both GPU lowerings accept, and some not."""
    found: list[tuple[list[int], list[int]]] = []
    for dim, size in enumerate(shape):
        least = max(1, 8 * LEAST_BYTES // bits(dtype)) if dim == len(shape) - 1 else 1
        most = max(least, min(MOST_ELEMENTS, 1 << (size - 1).bit_length()))
        legal = [1 << power for power in range(9) if least <= 1 << power <= most]
        wrong = {most - 1, most + 1, most + most // 2, size}
        refused = [block for block in wrong if block > 0 and block & (block - 1)]
        found.append((legal, sorted(refused)))
    return found


def _one_dim(size: int, least: int) -> tuple[list[int], list[int]]:
    """Sizes for the only dim of an array, where a tile has ``least`` elements."""
    legal = {size}
    legal |= {least << power for power in range(8) if least << power < 2 * max(size, least)}
    if size > CHUNK:
        legal |= {number * CHUNK for number in _counts(-(-size // CHUNK))}
    wrong = {least // 2, least - 1, least + 1, 3 * least // 2 + 1, CHUNK + 1, size - 1, size + 1}
    return sorted(legal), sorted(
        block
        for block in wrong
        if block > 0 and block != size and block % CHUNK and (block < least or block & (block - 1))
    )


def _counts(tiles: int) -> Iterable[int]:
    """Some numbers of tiles that a block may span of so many: powers of two and the extremes."""
    powers = [1 << power for power in range(tiles.bit_length())]
    return {count for count in (*powers, tiles // 2, tiles - 1, tiles) if count > 0}


def _within(sizes: Iterable[int], most: int) -> list[int]:
    return sorted({size for size in sizes if 0 < size <= most})
