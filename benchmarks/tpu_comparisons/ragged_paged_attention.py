"""Mixed batches over paged keys, beside ``jax.experimental.pallas.ops.tpu.ragged_paged_attention``.

A unit is a block of queries times a block of keys, of all heads. A block of queries is taken to
meet 16 blocks of keys, all of them whole, so that what is done once a block of queries counts with
a sixteenth. The bundled kernel computes every block of keys of a sequence, ours only those that the
queries may see; that is not in the numbers.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.ragged_paged_attention import ragged_paged_attention as bundled

from reference_kernels.attention.ragged_paged_attention import ragged_paged_attention
from tpu_comparisons.rows import Row, Side

TOKENS, WIDTH, PAGES, SEQS, PAGES_EACH, ROUNDS = 2048, 128, 4096, 64, 128, 16


def _row(heads: int, kv_heads: int, page_size: int, block_q: int, block_pages: int) -> Row:
    shape, whole = jax.ShapeDtypeStruct, jnp.int32
    args = (
        shape((TOKENS, heads, WIDTH), jnp.bfloat16),
        shape((PAGES, page_size, 2 * kv_heads, WIDTH), jnp.bfloat16),
        shape((SEQS,), whole),
        shape((SEQS, PAGES_EACH), whole),
        shape((SEQS + 1,), whole),
        shape((1,), whole),
    )
    scale = WIDTH**-0.5
    return Row(
        name=f"ragged_paged_attention {heads}/{kv_heads} heads, {block_q} x "
        f"{block_pages * page_size}",
        unit="block of queries times block of keys, all heads",
        ours=Side(
            call=functools.partial(
                ragged_paged_attention, scale=scale, block_q=block_q, pages_per_block=block_pages
            ),
            args=args,
            work=ROUNDS,
            # Fetch the first block; blocks of keys; and three for blocks that are not whole.
            trips={0: 0, 1: ROUNDS, 2: 0, 3: 0, 4: 0},
        ),
        theirs=Side(
            call=functools.partial(
                bundled,
                sm_scale=scale,
                num_queries_per_block=block_q,
                num_kv_pages_per_block=block_pages,
            ),
            args=args,
            work=ROUNDS,
            trips={0: 1, 1: ROUNDS},
        ),
    )


ROWS = [_row(32, 8, 16, 32, 8), _row(8, 1, 16, 32, 32), _row(16, 2, 32, 64, 8)]
