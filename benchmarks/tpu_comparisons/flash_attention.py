"""Flash attention beside ``jax.experimental.pallas.ops.tpu.flash_attention``.

Both sides compute ``HEADS`` heads with the same blocks. In our kernels what happens once for a
block of queries (or of keys), clearing and rounding the sums, is a loop over slabs of rows; it runs
in one of ``LENGTH / BLOCK`` rounds, which ``trips`` says. The bundled kernels have that as straight
code, so all of it counts in every round of theirs, up to 340 bundles of about 1600.

Causal: our kernels have two bodies, with the mask for blocks on the diagonal and without it for
those below, and a round takes one of them. The count adds both, so a round is two units of work,
one of each kind. Of real rounds most are of the cheap kind. Spills are those of both bodies.
"""

from __future__ import annotations

from typing import Any

import jax
from jax.experimental.pallas.ops.tpu import flash_attention as bundled

from reference_kernels.attention._flash_blocks import SLAB, Blocks
from reference_kernels.attention.flash_attention import Settings, attend
from reference_kernels.attention.flash_attention_backward import (
    key_value_gradients,
    query_gradient,
)
from tpu_comparisons.rows import Row, Side

HEADS, LENGTH, BLOCK = 8, 2048, 512

#: How often a loop over the slabs of a block runs in a round, on average.
_SLABS = (BLOCK / SLAB) / (LENGTH / BLOCK)


def _struct(*shape: int, dtype: str = "bfloat16") -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def _blocks(causal: bool) -> Blocks:
    return Blocks(LENGTH, LENGTH, BLOCK, BLOCK, causal)


def _name(kind: str, d: int, causal: bool) -> str:
    return f"flash_attention {kind} d={d}{' causal' if causal else ''}"


def _forward(
    d: int, *, causal: bool = False, segments: bool = False, dtype: str = "bfloat16"
) -> Row:
    ours, theirs = _struct(HEADS, LENGTH, d, dtype=dtype), _struct(1, HEADS, LENGTH, d, dtype=dtype)
    settings = Settings(_blocks(causal), d**-0.5, split_queries=True)
    sizes = bundled.BlockSizes(BLOCK, BLOCK, BLOCK, 1)

    def call(q: Any, k: Any, v: Any, *ids: Any) -> Any:
        return attend(q, k, v, ids or None, settings)

    def their_call(q: Any, k: Any, v: Any, *ids: Any) -> Any:
        segment_ids = bundled.SegmentIds(*ids) if ids else None
        # Float32 operands are not rounded first on either side.
        with jax.default_matmul_precision("highest" if dtype == "float32" else "default"):
            return bundled.flash_attention(
                q, k, v, None, segment_ids, causal=causal, sm_scale=d**-0.5, block_sizes=sizes
            )

    ids = (_struct(1, LENGTH, dtype="int32"),) * 2 if segments else ()
    kind = f"forward{' segments' if segments else ''}{' float32' if dtype == 'float32' else ''}"
    return Row(
        name=_name(kind, d, causal),
        unit=f"block of {BLOCK} x {BLOCK} scores",
        ours=Side(
            call=call,
            args=(*3 * (ours,), *ids),
            work=2 if causal else 1,
            trips={0: _SLABS, 1: _SLABS},
        ),
        theirs=Side(call=their_call, args=(*3 * (theirs,), *ids), work=1),
    )


def _backward(kind: str, d: int, *, causal: bool = False) -> Row:
    x, per_query = _struct(HEADS, LENGTH, d), _struct(HEADS, LENGTH, dtype="float32")
    x4, per_query4 = _struct(1, *x.shape), _struct(1, *per_query.shape, dtype="float32")
    kernel = query_gradient if kind == "dq" else key_value_gradients

    def call(q: Any, k: Any, v: Any, log_sums: Any, delta: Any, do: Any) -> Any:
        return kernel(q, k, v, None, log_sums, delta, do, _blocks(causal), d**-0.5)

    def their_call(q: Any, k: Any, v: Any, *saved: Any) -> Any:
        operands = (q, k, v, None, None, *saved)  # l, m, do, di
        settings = {
            "block_q_major": BLOCK,
            "block_k_major": BLOCK,
            "block_k": BLOCK,
            "sm_scale": d**-0.5,
            "causal": causal,
            "mask_value": bundled.DEFAULT_MASK_VALUE,
            "debug": False,
        }
        if kind == "dq":
            return bundled._flash_attention_bwd_dq(*operands, **settings)[0]
        return bundled._flash_attention_bwd_dkv(*operands, block_q=BLOCK, **settings)

    return Row(
        name=_name(kind, d, causal),
        unit=f"block of {BLOCK} x {BLOCK} scores",
        ours=Side(
            call=call,
            args=(x, x, x, per_query, per_query, x),
            work=2 if causal else 1,
            trips={0: _SLABS, 1: _SLABS},
        ),
        theirs=Side(
            call=their_call, args=(x4, x4, x4, per_query4, per_query4, x4, per_query4), work=1
        ),
    )


ROWS = [
    *(_forward(d, causal=causal) for causal in (False, True) for d in (64, 128, 256)),
    _forward(128, segments=True),
    _forward(128, causal=True, segments=True),
    _forward(128, dtype="float32"),
    *(
        _backward(kind, d, causal=causal)
        for kind in ("dq", "dkv")
        for causal in (False, True)
        for d in (64, 128, 256)
    ),
]
