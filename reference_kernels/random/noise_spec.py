"""Spec of ``noise``."""

from __future__ import annotations

import jax.numpy as jnp
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec
from reference_kernels._gaps import RANDOM, without
from reference_kernels.random.noise import SAMPLERS, outside, reference

SPEC = KernelSpec(
    name="noise",
    kernel=outside,
    reference=reference,
    inputs=pst.arguments(
        st.sampled_from([0, 1, -5]).map(lambda seed: (jnp.int32(seed),)),
        options={
            "rows": st.sampled_from([1, 7, 17, 48]),
            "columns": st.sampled_from([1, 127, 128, 129]),
            "kind": st.sampled_from(list(SAMPLERS)),
        },
        tuning={"block_rows": 16},
    ),
    vmappable=False,
    equivalent=(
        EquivalentMutant(
            operator="index_map",
            change="one further",
            source="out_specs=pl.BlockSpec(",
            reason="blocks of random numbers change places, and nothing says which one is where",
        ),
    ),
    typical=tuple(
        pst.shaped(
            "", dtype="int32", dims={}, options={"rows": 4096, "columns": 1024, "kind": kind}
        )
        for kind in SAMPLERS
    ),
    backends=without(RANDOM),
)
