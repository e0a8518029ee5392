"""What the norms have in common: whole rows in a block, and sums over all rows."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from reference_kernels import _require

#: Elements of a block of rows: half a mebibyte of float32.
_BLOCK_ELEMENTS = 128 * 1024


def check(
    x: jax.Array, eps: float, block_rows: int | None, **vectors: jax.Array
) -> tuple[int, int]:
    """The number of rows of ``x`` and their length ``n``, which is that of all ``vectors``.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, ``eps`` is not positive, or
        ``block_rows`` is not a positive integer.
    """
    if x.ndim == 0:
        raise ValueError("x must have the shape (..., n), but it is a scalar")
    _require.nonempty("x", x)
    _require.floating("x", x)
    n = x.shape[-1]
    for name, vector in vectors.items():
        (size,) = _require.axes(name, vector, "n")
        _require.same_size("n", ("x", n), (name, size))
        _require.floating(name, vector)
    if not eps > 0:
        raise ValueError(f"eps must be positive, but it is {eps!r}")
    if block_rows is not None:
        _require.positive(block_rows=block_rows)
    return x.size // n, n


def fit_rows(block_rows: int | None, rows: int, n: int) -> int:
    """Rows in a block: ``block_rows``, or a power of two that makes about half a mebibyte.

    A power of two from 32 on is whole tiles of every dtype, and divides the number of rows of most
    batches, so that no block is cut off at the end.
    """
    default = max(32, pl.next_power_of_2(pl.cdiv(_BLOCK_ELEMENTS, n)))
    return min(block_rows or default, rows)


def add_rows(total_ref: Any, terms: jax.Array, rows: int) -> None:
    """Add the rows of this grid step's block ``terms`` to ``total_ref (1, n)``.

    All steps have the same block of the output, so it stays in VMEM until the last of them. The
    rows of the last block that lie beyond the end are unspecified, and are left out.
    """
    step = pl.program_id(0)

    @pl.when(step == 0)
    def _clear() -> None:
        total_ref[...] = jnp.zeros_like(total_ref)

    block = terms.shape[0]
    if rows % block:
        row = jax.lax.broadcasted_iota(jnp.int32, terms.shape, 0)
        terms = jnp.where(row < rows - step * block, terms, 0.0)
    total_ref[...] += jnp.sum(terms, axis=0, keepdims=True)
