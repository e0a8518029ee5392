"""`matmul`: a grid of blocks, summed in float32 or int32."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu.matmul import matmul

from published.failures import TPU, fails
from pytest_pallas import KernelSpec, Linear, Permuted
from pytest_pallas import strategies as pst


def reference(x: Any, y: Any, *, out_dtype: Any = None) -> Any:
    wide = jnp.promote_types(x.dtype, jnp.int32 if x.dtype.kind == "i" else jnp.float32)
    product = jnp.matmul(x, y, preferred_element_type=wide)
    return product.astype(x.dtype if out_dtype is None else out_dtype)


TUNING = {"block_shape": (64, 128), "block_k": 128}

MATMUL = KernelSpec(
    name="matmul",
    kernel=matmul,
    reference=reference,
    backends=TPU,
    inputs=pst.arguments(
        pst.arrays(
            "m k, k n",
            dtype=pst.floats("bfloat16", "float32"),
            multiple_of={"m": 64, "k": 128, "n": 128},
            unequal=("m", "k", "n"),
        ),
        tuning=TUNING,
    ),
    exact=True,
    relations=(Linear(0), Linear(1), Permuted({0: 1, 1: 0})),
)

MATMUL_INT8 = KernelSpec(
    name="matmul_int8",
    kernel=matmul,
    reference=reference,
    backends=TPU,
    inputs=pst.arguments(
        pst.arrays(
            "m k, k n", dtype="int8", multiple_of={"m": 64, "k": 128, "n": 128}, values="full"
        ),
        options={"out_dtype": jnp.int32},
        tuning=TUNING,
    ),
    exact=True,
)

MATMUL_ANY_SIZE = KernelSpec(
    name="matmul_any_size",
    kernel=matmul,
    reference=reference,
    backends=TPU,
    inputs=pst.arguments(
        pst.arrays("m k, k n", dims={"m": [63, 65, 100], "k": [129, 200], "n": [130, 200]}),
        tuning=TUNING,
    ),
    exact=True,
    checks=("forward",),
    xfail=fails("tpu-sim", "what is over after the last whole block is left out", "forward"),
)
