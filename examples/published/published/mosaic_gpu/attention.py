"""Flash attention on Hopper, forward and backward, and with Pallas' pipeline."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
from hypothesis import strategies as st
from jax.experimental.pallas.ops.gpu import attention_mgpu

from published.failures import HOPPER, fails
from pytest_pallas import KernelSpec, Permuted
from pytest_pallas import strategies as pst

#: It asks which CUDA is installed; here there may be none.
CUDA = SimpleNamespace(cuda_runtime_get_version=lambda: 13_000)


def attend(q: Any, k: Any, v: Any, *, pipeline: bool = False, **config: Any) -> Any:
    defaults: dict[str, Any] = {"block_q": 64, "block_kv": 64, "max_concurrent_steps": 2}
    tuning = attention_mgpu.TuningConfig(**(defaults | config))
    name = "attention_with_pipeline_emitter" if pipeline else "attention"
    with mock.patch.object(attention_mgpu, "cuda_versions", CUDA):
        return getattr(attention_mgpu, name)(q, k, v, tuning)


def reference(q: Any, k: Any, v: Any, *, causal: bool = False) -> Any:
    wide = jnp.promote_types(q.dtype, jnp.float32)
    repeats = q.shape[2] // k.shape[2]
    k, v = (jnp.repeat(x, repeats, axis=2) for x in (k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=wide)
    if causal:
        scores = jnp.where(jnp.tri(*scores.shape[-2:], dtype=bool), scores, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v, preferred_element_type=wide).astype(q.dtype)


BACKWARD = {"block_q_dkv": 64, "block_kv_dkv": 64, "block_q_dq": 64, "block_kv_dq": 64}


def _spec(
    name: str, shapes: str, *, dims: Any, options: Any = None, tuning: Any = None, **rest: Any
) -> KernelSpec:
    values, dtype = rest.pop("values", None), rest.pop("dtype", "float16")
    return KernelSpec(
        name=name,
        kernel={"gpu": attend},
        reference=reference,
        backends=HOPPER,
        inputs=pst.arguments(
            pst.arrays(
                shapes,
                dtype=dtype,
                dims=DIMS | dims,
                **({} if values is None else {"values": values}),
            ),
            options={} if options is None else options,
            tuning=TUNING if tuning is None else tuning,
        ),
        vmappable=False,
        **rest,
    )


SHAPES = "b q h d, b k g d, b k g d; h = g*r"
DIMS = {"b": [1, 2], "g": [1, 2], "r": [1, 2], "d": 64}
TUNING = {"max_concurrent_steps": st.sampled_from([2, 3]), "use_schedule_barrier": st.booleans()}

ATTENTION = _spec(
    "hopper_attention",
    SHAPES,
    dims={"q": [128, 256], "k": [128, 192]},
    relations=(Permuted({1: 1, 2: 1}),),
)
ATTENTION_BFLOAT16 = _spec(
    "hopper_attention_bfloat16",
    SHAPES,
    dtype="bfloat16",
    dims={"q": [128, 256], "k": [128, 192]},
    tuning={"pipeline": st.booleans()},
    checks=("forward",),
    xfail=fails("gpu-sim", "bfloat16 is accepted, but buffers are float16", "forward"),
)
ATTENTION_CAUSAL = _spec(
    "hopper_attention_causal",
    f"{SHAPES}; q <= k",
    dims={"q": [128, 256], "k": [128, 256]},
    options={"causal": True},
    tuning={"max_concurrent_steps": 2},
    checks=("forward", "races"),
)
ATTENTION_CAUSAL_AHEAD = _spec(
    "hopper_attention_causal_ahead",
    f"{SHAPES}; q = k",
    dims={"k": [256]},
    options={"causal": True},
    tuning={"max_concurrent_steps": st.sampled_from([3, 4])},
    checks=("forward",),
    xfail=fails(
        "gpu-sim", "keys are fetched that the first queries do not see", "forward", hardware=False
    ),
)
ATTENTION_CAUSAL_MORE_QUERIES = _spec(
    "hopper_attention_causal_more_queries",
    f"{SHAPES}; q > k",
    dims={"q": [256], "k": [64, 128]},
    options={"causal": True},
    tuning={"max_concurrent_steps": 2},
    checks=("forward",),
    xfail=fails("gpu-sim", "the loop over keys ends behind the last key", "forward"),
)
ATTENTION_GRADIENT = _spec(
    "hopper_attention_gradient",
    SHAPES,
    dims={"q": [128], "k": [128], "b": 1},
    tuning=BACKWARD,
    values="normal",
    differentiable=(0, 1, 2),
    checks=("gradient",),
)
ATTENTION_PIPELINE = _spec(
    "hopper_attention_pipeline",
    SHAPES,
    dims={"q": [128, 256], "k": [128, 192]},
    tuning={"pipeline": True},
    checks=("forward", "races"),
)
