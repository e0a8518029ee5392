"""Spec of ``flash_attention``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.attention._operands import reference
from reference_kernels.portable._claims import BACKENDS
from reference_kernels.portable.flash_attention import largest_block_kv, portable_flash_attention


def _is_not_causal(arguments: pst.Arguments) -> bool:
    return not arguments.options["causal"]


def _blocks(drawn: Any) -> dict[str, Any]:
    d, d_v, dtype = (drawn.recipe[name] for name in ("d", "e", "dtype"))
    most = largest_block_kv(16, d, d_v, jnp.dtype(dtype).itemsize)
    return {"block_q": 16, "block_kv": st.sampled_from([16, most])}


SPEC = KernelSpec(
    name="portable_flash_attention",
    kernel=portable_flash_attention,
    backends=BACKENDS,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "q d, k d, k e",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"q": [1, 17, 32, 33], "k": [1, 16, 33, 129], "d": [40], "e": [24, 128]},
        ),
        options={"causal": st.booleans(), "scale": st.sampled_from([None, 0.5])},
        tuning=_blocks,
    ),
    relations=(
        Linear(2),
        Permuted({0: 0}, output=0, when=_is_not_causal),
        Permuted({1: 0, 2: 0}, when=_is_not_causal),
    ),
    typical=(
        pst.shaped(
            "q d, k d, k e",
            dtype="bfloat16",
            dims={"q": 2048, "k": 2048, "d": 128, "e": 128},
            options={"causal": True},
        ),
    ),
)
