"""Splash attention as bundled with JAX: masks on the host, GQA, soft caps, gradients."""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from references import DATA, attention, draw

HEADS, LENGTH, WIDTH = 2, 256, 64

MASKS = {
    "full": splash.FullMask,
    "causal": splash.CausalMask,
    "local": functools.partial(splash.LocalMask, window_size=(37, 5), offset=0),
    "chunked": functools.partial(splash.ChunkedCausalMask, chunk_size=100)
    if hasattr(splash, "ChunkedCausalMask")
    else splash.CausalMask,
}

BLOCKS = splash.BlockSizes(
    block_q=128, block_kv=128, block_q_dkv=128, block_kv_dkv=128, block_q_dq=128, block_kv_dq=128
)

pytestmark = [
    pytest.mark.pallas(backends=["interpret", "tpu-interpret"], reason="written for TPUs"),
]


def kernel(q, k, v, segment_ids=None, sinks=None, *, mask, soft_cap=None, blocks=BLOCKS):
    make = splash.make_splash_mqa_single_device if k.ndim == 2 else splash.make_splash_mha_single_device
    heads = splash.MultiHeadMask([mask((q.shape[1], k.shape[-2]))] * q.shape[0])
    made = make(heads, attn_logits_soft_cap=soft_cap, block_sizes=blocks)
    return made(q, k, v, segment_ids, sinks)


def reference(q, k, v, segment_ids=None, *, mask, soft_cap=None):
    allowed = jnp.asarray(mask((q.shape[1], k.shape[-2]))[:, :])
    if segment_ids is not None:
        allowed &= segment_ids.q[:, None] == segment_ids.kv[None, :]
    k, v = (x[None] if x.ndim == 2 else x for x in (k, v))
    return attention(q, k, v, allowed, soft_cap=soft_cap)


def inputs(rng, data, *, heads=(HEADS,), q_len=LENGTH, kv_len=LENGTH):
    q = draw(rng, (HEADS, q_len, WIDTH), data)
    scale = WIDTH**-0.5 if data[1] == "normal" else 1
    k, v = draw(rng, (*heads, kv_len, WIDTH), data), draw(rng, (*heads, kv_len, WIDTH), data)
    return (q * scale).astype(q.dtype), k, v


@pytest.mark.parametrize("data", DATA, ids="-".join)
@pytest.mark.parametrize("soft_cap", [None, 5.0])
@pytest.mark.parametrize("mask", MASKS)
def test_mha(pallas_check, pallas_rng, data, mask, soft_cap):
    pallas_check(
        kernel,
        *inputs(pallas_rng, data),
        reference=reference,
        options={"mask": MASKS[mask], "soft_cap": soft_cap},
        name="splash_mha",
    )


@pytest.mark.parametrize("data", DATA, ids="-".join)
@pytest.mark.parametrize("q_len, kv_len", [(128, 384), (384, 128)])
def test_mqa(pallas_check, pallas_rng, data, q_len, kv_len):
    pallas_check(
        kernel,
        *inputs(pallas_rng, data, heads=(), q_len=q_len, kv_len=kv_len),
        reference=reference,
        options={"mask": MASKS["causal"]},
        name="splash_mqa",
    )


@pytest.mark.parametrize("data", DATA, ids="-".join)
def test_segments(pallas_check, pallas_rng, data):
    ids = np.repeat([0, 1, 2], [100, 27, 129]).astype(np.int32)
    pallas_check(
        kernel,
        *inputs(pallas_rng, data),
        splash.SegmentIds(ids, ids),
        reference=reference,
        options={"mask": MASKS["causal"]},
        name="splash_mha_segments",
    )


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("data", DATA, ids="-".join)
@pytest.mark.parametrize("mask, soft_cap", [("causal", None), ("local", None), ("full", 5.0)])
def test_gradient(pallas_check, pallas_rng, data, mask, soft_cap, fused):
    blocks = BLOCKS
    if fused:
        blocks = splash.BlockSizes(
            block_q=128, block_kv=128, block_q_dkv=128, block_kv_dkv=128, use_fused_bwd_kernel=True
        )
    pallas_check(
        kernel,
        *inputs(pallas_rng, data),
        reference=reference,
        options={"mask": MASKS[mask], "soft_cap": soft_cap},
        tuning={"blocks": blocks},
        differentiable=(0, 1, 2),
        checks="gradient",
        name="splash_mha",
    )
