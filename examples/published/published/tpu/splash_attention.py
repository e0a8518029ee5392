"""`splash_attention`: masks that are known before, several heads of queries a head of keys."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st
from jax.experimental.pallas.ops.tpu import splash_attention as splash
from jax.experimental.pallas.ops.tpu.splash_attention.splash_attention_kernel import BlockSizes

from published.failures import TPU, fails
from pytest_pallas import KernelSpec, Linear
from pytest_pallas import strategies as pst

BACKWARD = ("block_q_dkv", "block_kv_dkv", "block_kv_dkv_compute", "block_q_dq", "block_kv_dq")


def blocks(**sizes: Any) -> BlockSizes:
    """Sizes of 128, and others; a fused backward kernel has none for the queries' gradient."""
    fused = sizes.get("use_fused_bwd_kernel", False)
    names = ("block_q", "block_kv", "block_kv_compute", *BACKWARD[: 3 if fused else 5])
    chosen: dict[str, Any] = dict.fromkeys(names, 128)
    return BlockSizes(**(chosen | sizes))


def mask_of(kind: str, queries: int, keys: int) -> splash.Mask:
    """A mask by its name."""
    shape = (queries, keys)
    if kind == "random":
        seen = np.random.default_rng([queries, keys]).random(shape) < 0.3
        seen[:, 0] = True  # every query sees a key
        return splash.NumpyMask(seen)
    if kind == "local":
        return splash.LocalMask(shape, window_size=(100, 30), offset=0)
    if kind == "causal_offset":
        return splash.CausalMask(shape, offset=37)
    return {"causal": splash.CausalMask, "full": splash.FullMask}[kind](shape)


def attend(
    q: Any,
    k: Any,
    v: Any,
    ids: Any = None,
    sinks: Any = None,
    *,
    mask: str,
    soft_cap: float | None = None,
    block_sizes: BlockSizes | None = None,
) -> Any:
    multi_query = k.ndim == 2
    make = splash.make_splash_mqa if multi_query else splash.make_splash_mha
    masks = splash.MultiHeadMask([mask_of(mask, q.shape[1], k.shape[-2])] * q.shape[0])
    kernel = make(
        masks,
        head_shards=1,
        q_seq_shards=1,
        block_sizes=blocks() if block_sizes is None else block_sizes,
        attn_logits_soft_cap=soft_cap,
    )
    segments = None if ids is None else splash.SegmentIds(*ids)
    return kernel(q, k, v, segments, sinks)


def reference(
    q: Any,
    k: Any,
    v: Any,
    ids: Any = None,
    sinks: Any = None,
    *,
    mask: str,
    soft_cap: float | None = None,
) -> Any:
    """A sink is one more key of its head, which has no value."""
    wide = jnp.promote_types(q.dtype, jnp.float32)
    repeats = 1 if k.ndim == 2 else q.shape[0] // k.shape[0]
    k, v = (
        jnp.broadcast_to(x, (q.shape[0], *x.shape))
        if x.ndim == 2
        else jnp.repeat(x, repeats, axis=0)
        for x in (k, v)
    )
    scores = jnp.einsum("hqd,hkd->hqk", q, k, preferred_element_type=wide)
    if soft_cap is not None:
        scores = soft_cap * jnp.tanh(scores / soft_cap)
    seen = jnp.asarray(mask_of(mask, q.shape[1], k.shape[1])[:, :])
    if ids is not None:
        seen &= ids[0][:, None] == ids[1][None, :]
    scores = jnp.where(seen, scores, -jnp.inf)
    if sinks is not None:
        sink = jnp.broadcast_to(sinks[:, None, None], (*scores.shape[:2], 1)).astype(wide)
        scores = jnp.concatenate([scores, sink], axis=-1)
    weights = jax.nn.softmax(scores, axis=-1)[..., : k.shape[1]]
    weights = jnp.where(seen, weights, 0)  # a row without keys is NaN
    return jnp.einsum("hqk,hkd->hqd", weights, v, preferred_element_type=wide).astype(q.dtype)


OPTIONS = {
    "mask": st.sampled_from(["causal", "full", "local", "random", "causal_offset"]),
    "soft_cap": st.sampled_from([None, 3.0]),
}
TUNING = {
    "block_sizes": st.sampled_from(
        [
            blocks(),
            blocks(block_kv=256, block_kv_dkv=256),
            blocks(block_kv=256, block_kv_compute=256, use_fused_bwd_kernel=True),
            blocks(block_q=256, block_q_dkv=256, block_q_dq=256, block_kv_dq=256),
        ]
    )
}
DIMS = {"g": [1, 2], "r": [1, 3], "q": [256, 512], "k": [256, 512], "d": [64, 128]}
GROUPED = "h q d, g k d, g k d; h = g*r, q <= k"


def _spec(
    name: str, shapes: str, *, dtype: Any = None, then: Any = None, **rest: Any
) -> KernelSpec:
    options = rest.pop("options", OPTIONS)
    # Backward, scores beyond 100 would be compared with logarithms of sums that are not exact.
    values: dict[str, Any] = {"values": "normal"} if "differentiable" in rest else {}
    return KernelSpec(
        name=name,
        kernel=attend,
        reference=reference,
        backends=TPU,
        vmappable=False,
        inputs=pst.arguments(
            pst.arrays(
                shapes,
                dtype=pst.floats("bfloat16", "float32") if dtype is None else dtype,
                dims={
                    name: sizes
                    for name, sizes in DIMS.items()
                    if name in re.findall("[a-z]", shapes)
                },
                max_elements=2**17,
                **values,
            ),
            then={} if then is None else then,
            options=options,
            tuning=TUNING,
        ),
        **rest,
    )


def _segments(drawn: Any) -> Any:
    ids = pst.segment_ids(drawn.recipe["q"], contiguous=False, around=128)
    return {"ids": ids.map(lambda each: (each, each))}


#: In JAX 0.11 the sums are outputs of one block for all heads, and heads run on two cores.
RACES = (
    fails("tpu-sim", "heads on two cores have the same sums", "races", "schedule", hardware=False)
    if jax.__version_info__ < (0, 12)
    else {}
)

SPLASH = _spec("splash_attention", GROUPED, relations=(Linear(2),), xfail=RACES)
SPLASH_GRADIENT = _spec(
    "splash_attention_gradient",
    GROUPED,
    dtype="float32",
    differentiable=(0, 1, 2),
    checks=("gradient",),
)
SPLASH_ONE_HEAD = _spec(
    "splash_attention_one_head_of_keys",
    "h q d, k d, k d; h = r, q <= k",
    dtype="float32",
    differentiable=(0, 1, 2),
    checks=("forward", "gradient"),
)
SPLASH_SEGMENTS = _spec(
    "splash_attention_segments",
    "h q d, g q d, g q d; h = g*r",
    dtype="float32",
    then=_segments,
    options=OPTIONS | {"mask": st.sampled_from(["causal", "full"])},
    differentiable=(0, 1, 2),
    checks=("forward", "gradient"),
)


def _sinks(drawn: Any) -> Any:
    heads = drawn.recipe["h"]
    sinks = st.sampled_from([-3.0, 0.0, 4.0]).map(lambda x: np.full(heads, x, np.float32))
    return {"ids": None, "sinks": sinks}


SPLASH_SINKS = _spec(
    "splash_attention_sinks",
    GROUPED,
    dtype="float32",
    then=_sinks,
    differentiable=(0, 1, 2, 4),
    checks=("forward", "gradient"),
)
SPLASH_NO_KEYS = _spec(
    "splash_attention_no_keys",
    "h q d, g k d, g k d; h = g*r, q > k",
    dtype="float32",
    options={"mask": "local"},
    checks=("forward",),
    xfail=fails(
        "tpu-sim",
        "a block of queries that see no key is NaN; in other blocks they see all",
        "forward",
    ),
)
