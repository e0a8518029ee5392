"""Specs of ``heads``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp

from pytest_pallas import strategies as pst
from pytest_pallas.spec import ExpectedFailure, KernelSpec, Linear, Permuted
from reference_kernels.basics.heads import (
    merge_heads,
    merge_reference,
    split_heads,
    split_reference,
    transpose,
)

_DTYPES = pst.dtypes("float32", "bfloat16", "int8")

_TOKENS = {"s": [1, 7, 31, 32, 33, 65], "d": [64, 128], "heads": [1, 2, 3]}


def _split_heads(name: str, tokens: Mapping[str, list[int]], **more: Any) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel=split_heads,
        reference=split_reference,
        inputs=pst.arguments(
            pst.arrays("s w; w = heads*d", dtype=_DTYPES, dims=tokens),
            options=lambda drawn: {"heads": drawn.recipe["heads"]},
            tuning={"block_tokens": 32},
        ),
        exact=True,
        relations=(Linear(0), Permuted({0: 0}, output=1, exact=True)),
        **more,
    )


SPEC_SPLIT = _split_heads(
    "split_heads",
    _TOKENS | {"d": [128]},
    typical=(
        pst.shaped("s w", dtype="bfloat16", dims={"s": 4096, "w": 2048}, options={"heads": 16}),
    ),
)

SPEC_SPLIT_NARROW = _split_heads(
    "split_heads_narrow",
    _TOKENS | {"d": [64], "heads": [3, 4]},
    xfail={
        "tpu-compile:v4": ExpectedFailure(
            reason="v4 cannot split columns into three or more heads of 64", jax="0.12.0.1"
        )
    },
)

SPEC_MERGE = KernelSpec(
    name="merge_heads",
    kernel=merge_heads,
    reference=merge_reference,
    inputs=pst.arguments(
        pst.arrays("heads s d", dtype=_DTYPES, dims=_TOKENS), tuning={"block_tokens": 32}
    ),
    exact=True,
    relations=(Linear(0), Permuted({0: 1}, output=0, exact=True)),
    typical=(pst.shaped("heads s d", dtype="bfloat16", dims={"s": 4096, "heads": 16, "d": 128}),),
)

SPEC_TRANSPOSE = KernelSpec(
    name="transpose",
    kernel=transpose,
    reference=jnp.transpose,
    inputs=pst.arguments(
        pst.arrays("m n", dtype=_DTYPES, around=128, max_dim=257, unequal=True),
        tuning={"block": 128},
    ),
    exact=True,
    batch_axes=(1,),
    relations=(
        Linear(0),
        Permuted({0: 1}, output=0, exact=True),
        Permuted({0: 0}, output=1, exact=True),
    ),
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 4096, "n": 2048}),),
)
