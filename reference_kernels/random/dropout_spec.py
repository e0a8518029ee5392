"""Specs of ``dropout``."""

from __future__ import annotations

import jax.numpy as jnp
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec
from reference_kernels._gaps import RANDOM, without
from reference_kernels.random.dropout import filled, reference

SPEC = KernelSpec(
    name="dropout",
    kernel=filled,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype=pst.floats(), dims={"m": [1, 7, 16, 17, 33], "n": [1, 127, 129]}),
        then={"dropout_seed": st.sampled_from([0, 1, -5, 2**31 - 1]).map(jnp.int32)},
        options={"rate": st.sampled_from([0.0, 0.1, 0.5, 0.99]), "sampler": "bits"},
        tuning={"block_rows": 16},
    ),
    differentiable=(0,),
    vmappable=False,  # a scalar for each row of a batch makes blocks of SMEM
    equivalent=(
        EquivalentMutant(
            operator="comparison",
            change="lt -> le",
            source="round((1 - rate) * 2**24)",
            reason="keeps one of 2^24 words more: the rate is 6e-8 less, which no test can tell",
        ),
    ),
    typical=(
        pst.shaped(
            "m n, ",
            dtype=("bfloat16", "int32"),
            dims={"m": 4096, "n": 1024},
            options={"rate": 0.1},
        ),
    ),
    backends=without(RANDOM),
)

SPEC_BERNOULLI = KernelSpec(
    name="dropout_bernoulli",
    kernel=filled,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype=pst.floats(), dims={"m": [1, 16, 17], "n": [1, 127, 129]}),
        then={"dropout_seed": st.sampled_from([0, -5]).map(jnp.int32)},
        options={"rate": st.sampled_from([0.1, 0.5]), "sampler": "bernoulli"},
        tuning={"block_rows": 16},
    ),
    vmappable=False,
    typical=(
        pst.shaped(
            "m n, ",
            dtype=("bfloat16", "int32"),
            dims={"m": 4096, "n": 1024},
            options={"rate": 0.1, "sampler": "bernoulli"},
        ),
    ),
    backends=without(RANDOM),
)
