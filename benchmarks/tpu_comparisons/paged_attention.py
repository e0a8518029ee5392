"""Decoding over paged keys and values, beside ``jax.experimental.pallas.ops.tpu.paged_attention``.

A unit is one compute block of one head of keys. Sequences are taken to have 2048 keys, so that the
loop over blocks runs as often as there are blocks in that, all of them whole, and what is done once
a sequence counts with it. The bundled kernel has a grid step for each head, ours one for all heads.

The bundled kernel starts the DMAs of the very first block in a branch inside of its loop, written
out like those of every other block. A count of bundles takes it for run each time, 14 bundles a
DMA: subtract 28 bundles a page from theirs for what a chip does.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.paged_attention import paged_attention as bundled
from jax.experimental.pallas.ops.tpu.paged_attention.quantization_utils import QuantizedTensor

from reference_kernels.attention.paged_attention import paged_attention
from tpu_comparisons.rows import Row, Side

BATCH, KV_HEADS, KEYS, WIDTH, PAGES = 64, 8, 2048, 128, 4096


def _bundled_int8(
    q: Any, k: Any, v: Any, lengths: Any, table: Any, ks: Any, vs: Any, **settings: Any
) -> Any:
    k, v = QuantizedTensor(k, ks[..., None]), QuantizedTensor(v, vs[..., None])
    return bundled(q, k, v, lengths, table, **settings)


def _row(group: int, page_size: int, block: int, *, int8: bool = False) -> Row:
    shape = jax.ShapeDtypeStruct
    pages = shape((KV_HEADS, PAGES, page_size, WIDTH), jnp.int8 if int8 else jnp.bfloat16)
    args = (
        shape((BATCH, KV_HEADS * group, WIDTH), jnp.bfloat16),
        pages,
        pages,
        shape((BATCH,), jnp.int32),
        shape((BATCH, KEYS // page_size), jnp.int32),
    )
    ours = (*args, *((shape((PAGES, KV_HEADS, page_size), jnp.float32),) * 2 if int8 else ()))
    theirs = (*args, *((shape((KV_HEADS, PAGES, page_size), jnp.float32),) * 2 if int8 else ()))
    pages_per_block, blocks = block // page_size, KEYS // block
    # Ours: the loop over pages of the first block, that over blocks, and those for blocks that are
    # not whole: fetch, wait (once more for scales), and clear the tail.
    loops = {0: 0, 1: blocks} | dict.fromkeys(range(2, 8 if int8 else 6), 0)
    return Row(
        name=f"paged_attention g={group} page={page_size} block={block}{' int8' * int8}",
        unit=f"block of {block} keys of one head",
        ours=Side(
            call=functools.partial(paged_attention, pages_per_block=pages_per_block),
            args=ours,
            work=KV_HEADS * blocks,
            trips=loops,
        ),
        theirs=Side(
            call=functools.partial(
                _bundled_int8 if int8 else bundled, pages_per_compute_block=pages_per_block
            ),
            args=theirs,
            work=blocks,
            trips={0: blocks, 1: 0},
        ),
    )


ROWS = [
    _row(8, 16, 512),
    _row(8, 64, 512),
    _row(4, 16, 256),
    _row(8, 128, 512, int8=True),
]
