"""Matrix product ``o = x @ y`` with the matrix unit driven by hand.

Shapes: ``x (m, k)``, ``y (k, n)``, ``o (m, n)``. Dtype: bfloat16; summed in float32.

A matrix unit (MXU) keeps a square tile of ``y`` in its cells and streams rows of ``x`` through it;
every row gives a row of products with the tile. ``jnp.dot`` leaves to the compiler when tiles are
loaded, into which unit, and where results go. Here the kernel says it:

- ``matmul_push_rhs`` stages a tile of ``y``. A unit has two staging registers, so the next tile is
  pushed while the rows of ``x`` still run through the one before it.
- On chips with a result FIFO (up to v6e) ``matmul_lhs_fifo`` streams rows of ``x``, and
  ``matmul_pop_fifo`` takes the products out, in order. The vector unit adds those of all tiles.
- On chips with accumulators (tpu7x) ``matmul_acc_lhs`` adds the products to an accumulator inside
  the unit, and ``matmul_pop`` takes the sum of all tiles out at once.

A tile is 256 by 256. Each unit of a core gets a column of tiles of its own, and all of them the
same rows of ``x``. The result FIFO of v6e has 224 entries, and the compiler refuses a kernel that
overruns it, so the rows are streamed and popped in chunks.

The interpreters have no rule for any of this, so without a TPU only the compiler can be asked.
Chips before v6e are refused. v5e and v5p have no room for a second staged tile, and for v4 the code
of JAX 0.12.0.1 loads a tile along with the first product (``vmatmul.dwg``) rather than before it.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require
from reference_kernels._tpu import ROWS, fit

#: Rows that are streamed before their products are popped.
_CHUNK = 64


def _by_fifo(x: Any, y: Any, acc_ref: Any, units: int, tile: int) -> None:
    """Add ``x @ y`` to ``acc_ref`` on chips with a result FIFO."""
    for step, span in _staged(x, y, units, tile):
        for start in range(0, x.shape[0], _CHUNK):
            rows = slice(start, min(start + _CHUNK, x.shape[0]))
            for unit in range(units):
                load = step % 2 if start == 0 else None
                pltpu.matmul_lhs_fifo(x[rows, span], unit, load_staged_rhs=load)
            for unit in range(units):
                columns = slice(unit * tile, (unit + 1) * tile)
                shape = (rows.stop - rows.start, tile)
                acc_ref[rows, columns] += pltpu.matmul_pop_fifo(shape, jnp.float32, unit)


def _by_accumulators(x: Any, y: Any, acc_ref: Any, units: int, tile: int) -> None:
    """Add ``x @ y`` to ``acc_ref`` on chips whose matrix units have accumulators."""

    def multiply(*accumulators: Any) -> None:
        for step, span in _staged(x, y, units, tile):
            for accumulator in accumulators:
                pltpu.matmul_acc_lhs(accumulator, x[:, span], load_staged_rhs=step % 2)
        for unit, accumulator in enumerate(accumulators):
            acc_ref[:, unit * tile : (unit + 1) * tile] += pltpu.matmul_pop(accumulator)

    shape = (x.shape[0], tile)
    pl.run_scoped(multiply, *(pltpu.ACC(mxu_id=unit)(shape, jnp.float32) for unit in range(units)))


def _staged(x: Any, y: Any, units: int, tile: int) -> Iterator[tuple[int, slice]]:
    """Steps over the tiles of ``k``, each with its tiles of ``y`` in staging register ``step % 2``.

    Those of the next step are pushed as well, so that this goes on while ``x`` streams through.
    """
    spans = [slice(start, start + tile) for start in range(0, x.shape[1], tile)]

    def push(step: int) -> None:
        for unit in range(units):
            columns = slice(unit * tile, (unit + 1) * tile)
            pltpu.matmul_push_rhs(y[spans[step], columns], step % 2, unit)

    push(0)
    for step, span in enumerate(spans):
        if step + 1 < len(spans):
            push(step + 1)
        yield step, span


def _matmul_kernel(
    x_ref: Any,
    y_ref: Any,
    o_ref: Any,
    acc_ref: Any,
    *,
    length: int,
    units: int,
    tile: int,
    accumulators: bool,
) -> None:
    step, last = pl.program_id(2), pl.num_programs(2) - 1

    @pl.when(step == 0)
    def _clear() -> None:
        acc_ref[...] = jnp.zeros_like(acc_ref)

    x, y = x_ref[...], y_ref[...]
    block = x.shape[1]
    if length % block:
        left = length - step * block
        x, y = _first(left, x, 1), _first(left, y, 0)
    multiply = _by_accumulators if accumulators else _by_fifo
    multiply(x, y, acc_ref, units, tile)

    @pl.when(step == last)
    def _round() -> None:
        o_ref[...] = acc_ref[...].astype(o_ref.dtype)


def _first(count: Any, x: jax.Array, axis: int) -> jax.Array:
    """``x`` with zeros after the first ``count`` elements along ``axis``."""
    inside = jax.lax.broadcasted_iota(jnp.int32, x.shape, axis) < count
    return jnp.where(inside, x.astype(jnp.float32), 0.0).astype(x.dtype)


def matmul_explicit_mxu(
    x: jax.Array, y: jax.Array, *, block_m: int = 256, tiles_k: int = 4
) -> jax.Array:
    """``x @ y`` with explicit pushes to the matrix units and pops from them.

    Args:
      x: ``(m, k)``, bfloat16.
      y: ``(k, n)``, bfloat16.
      block_m: rows of a block of the output, rounded up to a multiple of 16.
      tiles_k: how many tiles a program contracts, one after the other.

    Returns:
      ``(m, n)``, bfloat16.

    Raises:
      ValueError: an operand has a wrong rank, size or dtype, a number is not positive, or the
        chip is older than v6e, or there is none and none is named by an abstract mesh.
    """
    m, k, n = _require.product(x, y, block_m=block_m, tiles_k=tiles_k)
    if x.dtype != jnp.bfloat16:
        raise ValueError(f"x must be bfloat16, but its dtype is {x.dtype}; cast it, or use matmul")
    chip = pltpu.get_tpu_info()
    if chip.generation < 6:
        raise ValueError(f"the chip must be a v6e or later, but it is a {chip.chip_version}")
    tile, units = chip.mxu_column_size, chip.num_mxus
    block_m = fit(pl.cdiv(block_m, ROWS) * ROWS, m, ROWS)
    block_k, block_n = tile * min(tiles_k, pl.cdiv(k, tile)), tile * units
    return pl.pallas_call(
        functools.partial(
            _matmul_kernel,
            length=k,
            units=units,
            tile=tile,
            accumulators=chip.num_accumulators > 0,
        ),
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(pl.cdiv(m, block_m), pl.cdiv(n, block_n), pl.cdiv(k, block_k)),
        in_specs=[
            pl.BlockSpec((block_m, block_k), lambda i, j, step: (i, step)),
            pl.BlockSpec((block_k, block_n), lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec((block_m, block_n), lambda i, j, step: (i, j)),
        scratch_shapes=[pltpu.VMEM((block_m, block_n), jnp.float32)],
        compiler_params=pltpu.CompilerParams(
            dimension_semantics=("parallel", "parallel", "arbitrary")
        ),
    )(x, y)
