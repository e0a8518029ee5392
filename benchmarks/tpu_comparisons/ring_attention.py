"""Ring attention on eight devices, beside the bundled flash attention of one.

No kernel that is bundled with JAX does what ours does. What can be compared is a block of scores:
``jax.experimental.pallas.ops.tpu.flash_attention`` with the same blocks, on a device that had all
keys already. Ours does the same products, from a pipeline of the kernel's own, and reads and writes
maximum, sum and accumulator of a block of queries in HBM once in a round of the ring.

Not causal, our largest loop is that of the rounds of the ring, and the pipeline a loop in it.
Causal, it is the pipeline of the own shard, with two bodies, as in ``flash_attention``, so that a
round of it is two units of work; the later rounds are those of the row above.

A device sends its own keys and values, and in later rounds those that it received: seven shards on
eight devices, one for each that it misses, which is the least. With a causal mask that is what the
last device receives, and the one before it sends.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.experimental.pallas.ops.tpu import flash_attention as bundled

from reference_kernels.attention._flash_blocks import SLAB
from reference_kernels.parallel.ring_attention import ring_attention_on_mesh
from tpu_comparisons.rows import Row, Side
from tpu_comparisons.wire import mesh

# Queries that do not fit in VMEM: small ones would be put there by XLA, and be copied by a loop.
DEVICES, HEADS, LENGTH, BLOCK, D = 8, 8, 65536, 512, 128

#: How often a loop over the slabs of a block runs in a round of the pipeline, on average.
_SLABS = (BLOCK / SLAB) / (LENGTH / BLOCK)

#: Blocks of scores in a round of the ring.
_BLOCKS = HEADS * (LENGTH // BLOCK) ** 2

#: Bytes of the keys and values of all devices but one, in bfloat16.
_OTHERS = (DEVICES - 1) * 2 * 2 * HEADS * LENGTH * D


def _row(*, causal: bool) -> Row:
    shard = jax.ShapeDtypeStruct((DEVICES, HEADS, LENGTH, D), "bfloat16")
    one = jax.ShapeDtypeStruct((1, HEADS, LENGTH, D), "bfloat16")
    sizes = bundled.BlockSizes(BLOCK, BLOCK, BLOCK, 1)

    def their_call(q: Any, k: Any, v: Any) -> Any:
        return bundled.flash_attention(q, k, v, causal=causal, sm_scale=D**-0.5, block_sizes=sizes)

    return Row(
        name=f"ring_attention d={D}{' causal' if causal else ''}",
        unit=f"block of {BLOCK} x {BLOCK} scores",
        ours=Side(
            call=functools.partial(
                ring_attention_on_mesh, mesh=mesh(x=DEVICES), axis_name="x", causal=causal
            ),
            args=(shard, shard, shard),
            work=2 if causal else _BLOCKS,
            trips={0: _SLABS} if causal else {0: _BLOCKS, 1: _SLABS},
            steps=DEVICES - 1,
            wire_bytes=_OTHERS,
        ),
        theirs=Side(call=their_call, args=(one, one, one), work=1, steps=0, wire_bytes=0),
        wire_bound=_OTHERS,
    )


ROWS = [_row(causal=causal) for causal in (False, True)]
