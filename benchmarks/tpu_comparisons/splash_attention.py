"""Splash attention beside that of JAX: full, causal, local window and soft cap, three head sizes.

Blocks are 512 x 512, heads are bfloat16, and a round of the grid visits one block. JAX's kernel
compares positions in every block that it visits, ours only in those where something is hidden, by
a version of the code for each kind. So a row says which kind of block it is about, and its lengths
are such that only that kind occurs: one block on the diagonal for ``causal``, and for ``window`` a
window of 300 keys, less than a block. Of a long causal mask the cost of most blocks is that of
``full``; the row ``causal long`` has both versions in its code, and counts it as two blocks.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernels
from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask as masks

from reference_kernels.attention.splash_attention import Mask, splash_attention
from tpu_comparisons.rows import Row, Side

_HEADS = 4
_BLOCK = 512


def _bundled(mask: Any, soft_cap: float | None, q: Any, k: Any, v: Any) -> Any:
    every_head = masks.MultiHeadMask([mask((q.shape[1], k.shape[1]))] * q.shape[0])
    sizes = kernels.BlockSizes(block_q=_BLOCK, block_kv=_BLOCK, block_kv_compute=_BLOCK)
    splash = kernels.make_splash_mha_single_device(
        every_head, attn_logits_soft_cap=soft_cap, block_sizes=sizes
    )
    return splash(q, k, v)


def _ours(mask: Mask, soft_cap: float | None, q: Any, k: Any, v: Any) -> Any:
    settings = {"scale": 1.0, "block_q": _BLOCK, "block_kv": _BLOCK}
    return splash_attention(q, k, v, mask=mask, soft_cap=soft_cap, **settings)


def _row(
    name: str,
    length: int,
    d: int,
    ours: Mask,
    theirs: Any,
    *,
    soft_cap: float | None = None,
    work: float = 1,
) -> Row:
    args = (jax.ShapeDtypeStruct((_HEADS, length, d), "bfloat16"),) * 3
    return Row(
        name=f"splash_attention {name} d={d}",
        unit="block of 512 x 512 scores",
        ours=Side(call=functools.partial(_ours, ours, soft_cap), args=args, work=work),
        theirs=Side(call=functools.partial(_bundled, theirs, soft_cap), args=args, work=1),
    )


_CAUSAL = (Mask(right=0), masks.CausalMask)
_WINDOW = (
    Mask(left=300, right=0),
    functools.partial(masks.LocalMask, window_size=(300, 0), offset=0),
)

ROWS = [
    row
    for d in (64, 128, 256)
    for row in (
        _row("full", 4 * _BLOCK, d, Mask(), masks.FullMask),
        _row("causal", _BLOCK, d, *_CAUSAL),
        _row("window", 4 * _BLOCK, d, *_WINDOW),
        _row("causal cap", _BLOCK, d, *_CAUSAL, soft_cap=30.0),
        _row("causal long", 4 * _BLOCK, d, *_CAUSAL, work=2),
    )
]
