"""What the products over devices have in common: operands, blocks, one step of a sum."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from reference_kernels import _require
from reference_kernels._tpu import ROWS, fit_axis, precision_for, product
from reference_kernels.matmul.matmul import Blocks


def check_operands(
    x: jax.Array, w: jax.Array, **blocks: int | None
) -> tuple[tuple[int, int, int], Blocks]:
    """The sizes ``(rows, k, n)`` of ``x (rows, k)`` and ``w (k, n)``, and the blocks to use.

    The blocks take at most 14 MB, so that they fit on a v4, which has 16 MB of VMEM.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, or a block size is not positive.
    """
    rows, k = _require.axes("x", x, "rows k")
    w_k, n = _require.axes("w", w, "k n")
    _require.same_size("k", ("x", k), ("w", w_k))
    _require.floating("x", x)
    _require.same_dtype(x=x, w=w)
    given = {name: size for name, size in blocks.items() if size is not None}
    _require.positive(**given)
    columns = 512 if x.dtype.itemsize >= 4 else 1024
    chosen = {"block_m": 512, "block_n": columns, "block_k": 512} | given
    return (rows, k, n), Blocks(chosen["block_m"], chosen["block_n"], chosen["block_k"])


def fit_blocks(blocks: Blocks, rows: int, k: int, n: int) -> Blocks:
    """Blocks of whole tiles, and two or more along the rows if those are more than a tile.

    With two, half of the rows can go around the ring in each direction.
    """
    half = min(blocks.rows, pl.align_to(pl.cdiv(rows, 2), ROWS))
    return Blocks(
        fit_axis(half, rows, last=False),
        fit_axis(blocks.columns, n, last=True),
        fit_axis(blocks.length, k, last=True),
    )


def padded(array: jax.Array, *multiples: int) -> jax.Array:
    """``array`` with zeros behind the end of its last dimensions, up to whole multiples."""
    dims = array.shape[array.ndim - len(multiples) :]
    missing = [-size % multiple for size, multiple in zip(dims, multiples, strict=True)]
    if not any(missing):
        return array
    widths = [(0, 0)] * (array.ndim - len(missing)) + [(0, more) for more in missing]
    return jnp.pad(array, widths)


def add_product(x: Any, w: Any, acc_ref: Any, step: Any) -> None:
    """Add ``x @ w`` to the sum in ``acc_ref``, which begins with step 0."""
    total = product(x, w, (1, 0))
    acc_ref[...] = jnp.where(step == 0, 0.0, acc_ref[...]) + total  # at first it holds anything


def wide_product(x: jax.Array, w: jax.Array) -> jax.Array:
    """``x @ w`` of two batches of matrices, in float32 or wider: for references."""
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.matmul(x, w, precision=precision_for(x.dtype), preferred_element_type=wide)
