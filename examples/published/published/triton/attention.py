"""`mha`: fused attention, forward and backward."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

from published.bundled import triton
from published.failures import GPU, fails
from pytest_pallas import KernelSpec, Linear, Permuted
from pytest_pallas import strategies as pst

bundled = triton("attention")


def blocks(forward_q: int, forward_k: int, *backward: int) -> Any:
    """Sizes of blocks: ``backward`` is (queries, keys) of the kernel of dk and dv, and of dq."""
    names = ("block_q_dkv", "block_kv_dkv", "block_q_dq", "block_kv_dq")
    return bundled.BlockSizes(forward_q, forward_k, **dict(zip(names, backward, strict=False)))


def attend(q: Any, k: Any, v: Any, ids: Any = None, **options: Any) -> Any:
    options.setdefault("block_sizes", blocks(32, 32, 32, 32, 32, 32))
    names = ("sm_scale", "causal", "block_sizes", "backward_pass_impl")
    defaults: dict[str, Any] = {"sm_scale": 1.0, "causal": False, "backward_pass_impl": "triton"}
    return bundled.mha(q, k, v, ids, *((defaults | options)[name] for name in names))


def reference(
    q: Any, k: Any, v: Any, ids: Any = None, *, sm_scale: float = 1.0, causal: bool = False
) -> Any:
    wide = jnp.promote_types(q.dtype, jnp.float32)
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=wide) * sm_scale
    seen = jnp.ones(scores.shape[-2:], bool)
    if causal:
        seen = jnp.tril(seen)
    if ids is not None:
        seen = seen & (ids[:, None, :, None] == ids[:, None, None, :])
    weights = jax.nn.softmax(jnp.where(seen, scores, -jnp.inf), axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v, preferred_element_type=wide).astype(q.dtype)


SHAPES = "b q h d, b k h d, b k h d"
SAME = "b n h d, b n h d, b n h d"
DIMS = {
    "b": [1, 2],
    "h": [1, 3],
    "d": [16, 24, 64],
    "q": [32, 64, 96],
    "k": [32, 64, 96],
    "n": [32, 64, 96],
}
TUNING = {
    "block_sizes": st.sampled_from(
        [
            blocks(32, 32, 32, 32, 32, 32),
            blocks(16, 32, 16, 32, 32, 16),
            blocks(32, 16, 32, 16, 16, 32),
        ]
    )
}


def _spec(
    name: str,
    shapes: str,
    *,
    causal: Any,
    dtype: Any = None,
    tuning: Any = None,
    dims: Any = None,
    **rest: Any,
) -> KernelSpec:
    then, values = rest.pop("then", {}), rest.pop("values", None)
    dims = {key: each for key, each in (DIMS | (dims or {})).items() if key in shapes}
    return KernelSpec(
        name=name,
        kernel={"gpu": attend},
        reference=reference,
        backends=GPU,
        inputs=pst.arguments(
            pst.arrays(
                shapes,
                dtype=pst.floats("bfloat16", "float16", "float32") if dtype is None else dtype,
                dims=dims,
                **({} if values is None else {"values": values}),
            ),
            then=then,
            options={"causal": causal, "sm_scale": st.sampled_from([1.0, 0.25])},
            tuning=TUNING if tuning is None else tuning,
        ),
        **rest,
    )


MHA = _spec("mha", SHAPES, causal=False, relations=(Linear(2), Permuted({1: 1, 2: 1})))
MHA_CAUSAL = _spec("mha_causal", f"{SHAPES}; q <= k", causal=True)
MHA_GRADIENT = _spec(
    "mha_gradient",
    SAME,
    causal=st.booleans(),
    dtype="float32",
    values="normal",  # of scores beyond 100, the sums that are kept as logarithms are not exact
    differentiable=(0, 1, 2),
    checks=("gradient",),
)
MHA_SEGMENTS = _spec(
    "mha_segments",
    SAME,
    causal=st.booleans(),
    dtype="float32",
    then=lambda drawn: {
        "ids": pst.segment_ids(
            drawn.recipe["n"], batch=drawn.recipe["b"], contiguous=False, around=32
        )
    },
    differentiable=(0, 1, 2),
    checks=("forward", "gradient", "padding"),
)
MHA_CAUSAL_MORE_QUERIES = _spec(
    "mha_causal_more_queries",
    f"{SHAPES}; q > k",
    causal=True,
    checks=("forward",),
    xfail=fails("gpu-sim", "the loop over keys ends behind the last key", "forward"),
)
MHA_XLA = _spec(
    "mha_xla",
    SAME,
    causal=st.booleans(),
    dtype="float32",
    tuning={"backward_pass_impl": "xla"},
    differentiable=(0, 1, 2),
    checks=("gradient",),
)
MHA_XLA_NARROW = _spec(
    "mha_xla_narrow",
    SAME,
    causal=False,
    dtype=pst.floats("bfloat16", "float16"),
    tuning={"backward_pass_impl": "xla"},
    differentiable=(0, 1, 2),
    checks=("gradient",),
    xfail=fails("gpu-sim", "the gradient by XLA raises: its output is in float32", "gradient"),
)
MHA_BACKWARD_BLOCKS = _spec(
    "mha_backward_blocks",
    SAME,
    causal=False,
    dtype="float32",
    dims={"n": [96]},
    tuning={"block_sizes": blocks(32, 32, 64, 64, 64, 64)},
    differentiable=(0, 1, 2),
    checks=("gradient",),
    xfail=fails(
        "gpu-sim", "lengths that backward blocks do not divide are not refused", "gradient"
    ),
)
