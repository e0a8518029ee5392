"""Random numbers that do not depend on the blocks they are made in.

The matrix is divided into tiles. Tile t, counted row by row, is ``sample(fold_in(key, t))``,
whatever block it lies in: a kernel with other blocks, or the gradient's kernel, which goes through
the matrix in another order, draws the same numbers. ``dropout`` seeds by block and has no such
freedom.

Output: float32 ``(rows, columns)``; the key is one of ``jax.random``.

``pltpu.sample_block`` folds the number of each tile of a block into the key and concatenates the
tiles. Two generators can stand behind it:

- ``threefry``: that of ``jax.random``, computed by the vector unit, some hundred operations for a
  word. The key's two words come in as scalars in SMEM. It gives the numbers of ``reference``
  wherever it runs.
- ``hardware``: that of the chip, by a key from ``pltpu.to_pallas_key``. Cheap, and other numbers on
  each generation of chips, so it has no oracle but itself; interpreters have no references to
  such keys.

A tile must divide every block that is ever to be used: 8 x 128, one register of float32, divides
all. Larger tiles fold in fewer keys.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from reference_kernels import _require

#: Rows and columns of a tile.
TILE = (8, 128)

SAMPLERS = {"uniform": jax.random.uniform, "normal": jax.random.normal}


def _sample_kernel(
    key_ref: Any, o_ref: Any, *, distribution: str, total: tuple[int, int], threefry: bool
) -> None:
    if threefry:
        words = jnp.stack([key_ref[0], key_ref[1]])
        key = jax.random.wrap_key_data(words, impl="threefry2x32")
    else:
        key = key_ref[...]
    o_ref[...] = pltpu.sample_block(
        SAMPLERS[distribution], key, block_size=o_ref.shape, tile_size=TILE, total_size=total
    )


def sample(
    key: jax.Array,
    *,
    rows: int,
    columns: int,
    distribution: str = "uniform",
    generator: str = "threefry",
    block_rows: int = 32,
    block_columns: int = 256,
) -> jax.Array:
    """A matrix of random numbers, the same for all block sizes.

    Args:
      key: a scalar key of ``jax.random.key``, of threefry.
      rows: number of rows.
      columns: number of columns.
      distribution: ``"uniform"`` in [0, 1) or ``"normal"``.
      generator: ``"threefry"`` or ``"hardware"``.
      block_rows: rows of a block, rounded up to a multiple of 8.
      block_columns: columns of a block, rounded up to a multiple of 128.

    Returns:
      ``(rows, columns)``, float32.

    Raises:
      ValueError: ``key`` is not a scalar key of threefry, ``distribution`` or ``generator`` is
        unknown, or a size is not a positive integer.
    """
    _require.positive(
        rows=rows, columns=columns, block_rows=block_rows, block_columns=block_columns
    )
    if str(jnp.result_type(key)) != "key<fry>" or key.shape:
        raise ValueError(f"key must be a scalar key of threefry, but it is {jax.typeof(key)}")
    if distribution not in SAMPLERS:
        known = ", ".join(SAMPLERS)
        raise ValueError(f"distribution must be one of {known}, but it is {distribution!r}")
    if generator not in ("threefry", "hardware"):
        raise ValueError(f"generator must be threefry or hardware, but it is {generator!r}")
    threefry = generator == "threefry"
    total = tuple(pl.align_to(size, tile) for size, tile in zip((rows, columns), TILE, strict=True))
    block = tuple(
        min(pl.align_to(size, tile), most)
        for size, tile, most in zip((block_rows, block_columns), TILE, total, strict=True)
    )
    return pl.pallas_call(
        functools.partial(
            _sample_kernel, distribution=distribution, total=total, threefry=threefry
        ),
        out_shape=jax.ShapeDtypeStruct((rows, columns), jnp.float32),
        grid=(pl.cdiv(rows, block[0]), pl.cdiv(columns, block[1])),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM)],
        out_specs=pl.BlockSpec(block, lambda i, j: (i, j)),
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel")),
    )(jax.random.key_data(key) if threefry else pltpu.to_pallas_key(key))


def reference(
    key: jax.Array,
    *,
    rows: int,
    columns: int,
    distribution: str = "uniform",
    generator: str = "threefry",
) -> jax.Array:
    """All tiles by ``jax.random``, beside and below each other."""
    del generator
    down, across = pl.cdiv(rows, TILE[0]), pl.cdiv(columns, TILE[1])
    keys = jax.vmap(lambda tile: jax.random.fold_in(key, tile))(jnp.arange(down * across))
    # The numbers are float32, whatever the oracle computes in: other bits make other numbers.
    draw = functools.partial(SAMPLERS[distribution], shape=TILE, dtype=jnp.float32)
    tiles = jax.vmap(draw)(keys).reshape(down, across, *TILE)
    whole = jnp.swapaxes(tiles, 1, 2).reshape(down * TILE[0], across * TILE[1])
    return whole[:rows, :columns]


def agreement(key: jax.Array, *, block_rows: int, block_columns: int, **options: Any) -> jax.Array:
    """Where the numbers of these blocks equal those of blocks of one tile: everywhere.

    More cannot be verified of the hardware's numbers, which nothing else computes.
    """
    blocks = {"block_rows": block_rows, "block_columns": block_columns}
    tiles = {"block_rows": TILE[0], "block_columns": TILE[1]}
    return sample(key, **options, **blocks) == sample(key, **options, **tiles)


def full_agreement(_: jax.Array, *, rows: int, columns: int, **options: Any) -> np.ndarray:
    """True everywhere."""
    del options
    return np.ones((rows, columns), np.bool_)
