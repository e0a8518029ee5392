"""``gmm`` and ``tgmm`` beside those of megablox, with the same tiles.

A round is one visit of a tile of rows by a group, for one block of the sums in ``gmm``. With more
than one block of ``k``, megablox has the product twice in its code, for the last block and for the
others, and a round runs one of them; the row with a single block counts what both sides run.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm as megablox_gmm
from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm as megablox_tgmm

from reference_kernels.matmul.grouped_matmul import gmm, tgmm
from tpu_comparisons.rows import Row, Side

M, N, GROUPS = 8192, 2048, 16


def _shaped(*shape: int) -> Any:
    return jax.ShapeDtypeStruct(shape, "bfloat16")


SIZES = jax.ShapeDtypeStruct((GROUPS,), "int32")


def _gmm_row(tiles: tuple[int, int, int], k: int, *, transpose_rhs: bool = False) -> Row:
    block_m, block_k, block_n = tiles
    w = _shaped(GROUPS, N, k) if transpose_rhs else _shaped(GROUPS, k, N)
    ours = functools.partial(
        gmm, block_m=block_m, block_k=block_k, block_n=block_n, transpose_rhs=transpose_rhs
    )

    def theirs(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
        out = megablox_gmm(
            x,
            w,
            sizes,
            preferred_element_type=jnp.bfloat16,
            tiling=tiles,
            transpose_rhs=transpose_rhs,
        )
        # It leaves rows of no group undefined, and ours promises zeros.
        return jnp.where(jnp.arange(M)[:, None] < jnp.sum(sizes), out, 0)

    args = (_shaped(M, k), w, SIZES)
    words = " transposed" if transpose_rhs else ""
    return Row(
        name=f"gmm{words} k={k} {block_m}x{block_n}x{block_k}",
        unit="visit",
        ours=Side(call=ours, args=args, work=1),
        theirs=Side(call=theirs, args=args, work=1),
    )


def _tgmm_row(tiles: tuple[int, int, int], k: int) -> Row:
    block_m, block_k, block_n = tiles
    ours = functools.partial(tgmm, block_m=block_m, block_k=block_k, block_n=block_n)

    def theirs(x: jax.Array, y: jax.Array, sizes: jax.Array) -> jax.Array:
        # It takes x transposed, and transposes it back before its kernel.
        return megablox_tgmm(
            x.swapaxes(0, 1), y, sizes, preferred_element_type=jnp.bfloat16, tiling=tiles
        )

    args = (_shaped(M, k), _shaped(M, N), SIZES)
    return Row(
        name=f"tgmm {block_m}x{block_n}x{block_k}",
        unit="visit",
        ours=Side(call=ours, args=args, work=1),
        theirs=Side(call=theirs, args=args, work=1),
    )


ROWS = [
    _gmm_row((512, 512, 512), 512),
    _gmm_row((512, 512, 512), 2048),
    _gmm_row((512, 512, 1024), 2048),
    _gmm_row((512, 512, 512), 2048, transpose_rhs=True),
    _tgmm_row((512, 512, 512), 2048),
    _tgmm_row((512, 512, 1024), 2048),
]
