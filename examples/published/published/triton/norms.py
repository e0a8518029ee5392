"""`softmax`, `layer_norm` and `rms_norm`: a program a row."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import strategies as st

from published.bundled import triton
from published.failures import GPU, fails
from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst

softmax = triton("softmax").softmax
layer_norm = triton("layer_norm").layer_norm
rms_norm = triton("rms_norm").rms_norm


def _wide(x: Any) -> Any:
    return x.astype(jnp.promote_types(x.dtype, jnp.float32))


def softmax_reference(x: Any) -> Any:
    return jax.nn.softmax(_wide(x), axis=-1).astype(x.dtype)


def layer_norm_reference(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    wide = _wide(x)
    centered = wide - wide.mean(-1, keepdims=True)
    return _scaled(centered, weight, bias, eps).astype(x.dtype)


def rms_norm_reference(x: Any, weight: Any, bias: Any, *, eps: float = 1e-5) -> Any:
    return _scaled(_wide(x), weight, bias, eps).astype(x.dtype)


def _scaled(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return x / jnp.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight + bias


FLOATS = pst.floats("float32", "bfloat16", "float16")


def _softmax(name: str, dtype: Any, **rest: Any) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel={"gpu": softmax},
        reference=softmax_reference,
        backends=GPU,
        inputs=pst.arrays("m n", around={"n": 128}, dims={"m": [1, 3, 8]}, dtype=dtype),
        **rest,
    )


def _norm(name: str, dtype: Any, *, eps: Any = None, tuning: Any = None, **rest: Any) -> KernelSpec:
    change = rest.pop("change", lambda arguments: arguments)
    kernel, reference = {
        "layer": (layer_norm, layer_norm_reference),
        "rms": (rms_norm, rms_norm_reference),
    }[name.split("_")[0]]
    return KernelSpec(
        name=name,
        kernel={"gpu": kernel},
        reference=reference,
        backends=GPU,
        inputs=pst.arguments(
            pst.arrays(
                "b m n, n, n; n >= 2",
                dtype=dtype,
                around={"n": 128},
                dims={"b": [1, 2], "m": [1, 17]},
            ),
            options={"eps": st.sampled_from([1e-5, 0.5]) if eps is None else eps},
            tuning={} if tuning is None else tuning,
        ).map(change),
        differentiable=(0, 1, 2),
        **rest,
    )


EPS = "the gradient by XLA is that for eps=1e-5, whatever eps is"

SOFTMAX = _softmax("softmax", FLOATS)
LAYER_NORM = _norm("layer_norm", "float32")
LAYER_NORM_NARROW = _norm("layer_norm_narrow", pst.floats("bfloat16", "float16"))
RMS_NORM = _norm("rms_norm", "float32")
RMS_NORM_NARROW = _norm("rms_norm_narrow", pst.floats("bfloat16", "float16"))
LAYER_NORM_XLA = _norm(
    "layer_norm_xla",
    "float32",
    eps=0.5,
    tuning={"backward_pass_impl": "xla"},
    checks=("gradient",),
    xfail=fails("gpu-sim", EPS, "gradient"),
)
RMS_NORM_XLA = _norm(
    "rms_norm_xla",
    "float32",
    eps=0.5,
    tuning={"backward_pass_impl": "xla"},
    checks=("gradient",),
    xfail=fails("gpu-sim", EPS, "gradient"),
)


def _beside_zero(arguments: pst.Arguments) -> pst.Arguments:
    """Elements around 77, whose mean float16 and bfloat16 have no exact number for."""
    x, *rest = arguments.args
    x = (x.astype(np.float32) + 77).astype(x.dtype)
    return dataclasses.replace(arguments, args=(x, *rest), kin=None)


LAYER_NORM_BESIDE_ZERO = _norm(
    "layer_norm_beside_zero",
    pst.floats("bfloat16", "float16"),
    checks=("forward", "gradient"),
    change=_beside_zero,
    xfail=fails("gpu-sim", "the mean is kept for the gradient in 16 bits", "gradient"),
)
