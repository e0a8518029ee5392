"""`flash_attention`: forward and backward, causal, with segments and a bias."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax.experimental.pallas.ops.tpu.flash_attention import (
    BlockSizes,
    SegmentIds,
    flash_attention,
)

from published.failures import TPU, fails
from pytest_pallas import KernelSpec, Linear, Permuted
from pytest_pallas import strategies as pst


def blocks(**sizes: int) -> BlockSizes:
    """The default sizes, of 128, and others."""
    names = (
        "block_q",
        "block_k_major",
        "block_k",
        "block_q_major_dkv",
        "block_k_major_dkv",
        "block_k_dkv",
        "block_q_dkv",
        "block_k_major_dq",
        "block_k_dq",
        "block_q_dq",
    )
    return BlockSizes(**({"block_b": 1} | dict.fromkeys(names, 128) | sizes))


def attend(q: Any, k: Any, v: Any, bias: Any = None, ids: Any = None, **options: Any) -> Any:
    segments = None if ids is None else SegmentIds(*ids)
    return flash_attention(q, k, v, bias, segments, **options)


def reference(
    q: Any,
    k: Any,
    v: Any,
    bias: Any = None,
    ids: Any = None,
    *,
    causal: bool = False,
    sm_scale: float = 1.0,
) -> Any:
    """The bias is added before the scale, as in the kernel."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k, preferred_element_type=wide)
    scores = (scores if bias is None else scores + bias) * sm_scale
    seen = jnp.ones(scores.shape[-2:], bool)
    if causal:
        seen = jnp.tril(seen)
    if ids is not None:
        seen = seen & (ids[0][:, None, :, None] == ids[1][:, None, None, :])
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bhkd->bhqd", weights, v, preferred_element_type=wide).astype(q.dtype)


OPTIONS = {"causal": st.booleans(), "sm_scale": st.sampled_from([1.0, 0.125])}
SHAPES = "b h q d, b h k d, b h k d"
DIMS = {"b": [1, 3], "h": [1, 2], "d": [64, 128]}


def _arrays(shapes: str, *, queries: list[int], keys: list[int], **rest: Any) -> Any:
    rest.setdefault("dtype", pst.floats("bfloat16", "float32"))
    return pst.arrays(shapes, dims=DIMS | {"q": queries, "k": keys}, **rest)


def _spec(name: str, inputs: Any, **rest: Any) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel=attend,
        reference=reference,
        backends=TPU,
        inputs=inputs,
        **rest,
    )


FLASH = _spec(
    "flash_attention",
    pst.arguments(
        _arrays(SHAPES, queries=[128, 129, 200, 256, 300], keys=[128, 256, 384]),
        options=OPTIONS,
        tuning={
            "block_sizes": st.sampled_from(
                [blocks(), blocks(block_b=2), blocks(block_q=64), blocks(block_q=32, block_b=3)]
            )
        },
    ).filter(lambda call: call.tuning["block_sizes"].block_b <= call.args[0].shape[0]),
    relations=(
        Linear(2),
        Permuted({1: 2, 2: 2}, when=lambda call: not call.options["causal"]),
    ),
)
FLASH_WIDE = _spec(
    "flash_attention_wide_blocks",
    pst.arguments(
        _arrays(SHAPES, queries=[128, 200, 256], keys=[256, 512]),
        options=OPTIONS,
        tuning={
            "block_sizes": st.sampled_from(
                [blocks(block_k_major=256), blocks(block_k_major=256, block_k=256)]
            )
        },
    ),
    checks=("forward", "grid", "padding"),
)
FLASH_BIAS = _spec(
    "flash_attention_bias",
    pst.arguments(
        _arrays(f"{SHAPES}, b h q k", queries=[128, 256], keys=[128, 256], dtype="float32"),
        options=OPTIONS,
    ),
    differentiable=(0, 1, 2, 3),
    checks=("forward", "gradient", "grid", "padding"),
)


def _segmented(drawn: Any) -> Any:
    """As many keys as queries, in the same segments."""
    length, batch = drawn.recipe["q"], drawn.recipe["b"]
    ids = pst.segment_ids(length, batch=batch, contiguous=False, around=128)
    return {"bias": None, "ids": ids.map(lambda each: (each, each))}


FLASH_SEGMENTS = _spec(
    "flash_attention_segments",
    pst.arguments(
        pst.arrays(
            "b h q d, b h q d, b h q d",
            dtype="float32",
            dims=DIMS | {"q": [128, 256, 384]},
        ),
        then=_segmented,
        options=OPTIONS,
    ),
    differentiable=(0, 1, 2),
    checks=("forward", "gradient", "grid", "padding", "jit"),
)
FLASH_GRADIENT = _spec(
    "flash_attention_gradient",
    pst.arguments(
        _arrays(SHAPES, queries=[128, 256], keys=[128, 256, 384], dtype="float32"),
        options=OPTIONS,
        tuning={
            "block_sizes": st.sampled_from(
                [blocks(), blocks(block_q_dkv=64, block_q_major_dkv=64, block_q_dq=64)]
            )
        },
    ),
    differentiable=(0, 1, 2),
    checks=("gradient",),
)

DIAGONAL = "a block whose first key is the last query's own position is left out"

#: Values of which every key has a weight that shows.
SEEN: Any = {"dtype": "float32", "values": "uniform"}

FLASH_ONE_QUERY = _spec(
    "flash_attention_one_query",
    pst.arguments(
        _arrays(SHAPES, queries=[1], keys=[256, 384], **SEEN),
        options={"causal": True},
        tuning={"block_sizes": blocks(block_q=1)},
    ),
    checks=("forward",),
    xfail=fails("tpu-sim", DIAGONAL, "forward"),
)
FLASH_LAST_OF_A_BLOCK = _spec(
    "flash_attention_last_of_a_block",
    pst.arguments(
        _arrays(SHAPES, queries=[129], keys=[256, 384], **SEEN),
        options={"causal": True},
        tuning={"block_sizes": blocks(block_q=129)},
    ),
    checks=("forward",),
    xfail=fails("tpu-sim", DIAGONAL, "forward"),
)
FLASH_BIAS_RAGGED = _spec(
    "flash_attention_bias_ragged",
    pst.arguments(
        _arrays(f"{SHAPES}, b h q k", queries=[129, 200, 300], keys=[512]),
        options={"causal": True},
    ),
    checks=("forward",),
    xfail=fails(
        "tpu-sim", "a block of the bias is fetched from behind its end", "forward", hardware=False
    ),
)
