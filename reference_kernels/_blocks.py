"""The size of a block along a dimension."""

from __future__ import annotations

from jax.experimental import pallas as pl

#: Rows of a whole tile of 16-bit elements; whole tiles of 32-bit ones too.
ROWS = 16

#: Elements in the last dimension of a tile.
LANES = 128


def fit(block: int, size: int, tile: int) -> int:
    """``block``, but not more than ``size`` rounded up to whole tiles.

    A block of a single row would be legal for an array of one row, but Mosaic turns a product with
    it into a sum of products, which fails for bfloat16 (JAX 0.12.0.1).
    """
    return min(block, pl.cdiv(size, tile) * tile)
