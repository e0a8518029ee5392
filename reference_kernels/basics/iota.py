"""A table of numbers made from the position in the grid: ``o[i, j] = 10 i + j``.

Output: int32 ``(rows, columns)``; there is no input. Each program of the grid knows its place by
``pl.program_id`` and computes the indices of its own block from it, as every kernel must that masks
or generates by position.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require


def _iota_kernel(o_ref: Any, *, block: tuple[int, int]) -> None:
    i = pl.program_id(0) * block[0] + jax.lax.broadcasted_iota(jnp.int32, block, 0)
    j = pl.program_id(1) * block[1] + jax.lax.broadcasted_iota(jnp.int32, block, 1)
    o_ref[...] = 10 * i + j


def iota(*, rows: int, columns: int, block_rows: int = 256, block_columns: int = 512) -> jax.Array:
    """The int32 table ``10 i + j`` of shape ``(rows, columns)``.

    Args:
      rows: number of rows.
      columns: number of columns.
      block_rows: rows of a block.
      block_columns: columns of a block. The default block takes 512 kB, or 1 MB with its double.

    Raises:
      ValueError: a size is not a positive integer.
    """
    _require.positive(
        rows=rows, columns=columns, block_rows=block_rows, block_columns=block_columns
    )
    block = (min(block_rows, rows), min(block_columns, columns))
    return pl.pallas_call(
        functools.partial(_iota_kernel, block=block),
        out_shape=jax.ShapeDtypeStruct((rows, columns), jnp.int32),
        grid=(pl.cdiv(rows, block[0]), pl.cdiv(columns, block[1])),
        out_specs=pl.BlockSpec(block, lambda i, j: (i, j)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )()


def reference(*, rows: int, columns: int) -> jax.Array:
    """The int32 table ``10 i + j`` of shape ``(rows, columns)``."""
    return 10 * jnp.arange(rows, dtype=jnp.int32)[:, None] + jnp.arange(columns, dtype=jnp.int32)
