"""Spec of ``dma_copy``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels.dma.dma_copy import dma_copy, reference

SPEC = KernelSpec(
    name="dma_copy",
    kernel=dma_copy,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n",
            dtype=pst.dtypes("bfloat16", "float32", "int32"),
            around={"m": (16, 48), "n": 128},  # several chunks
        ),
        tuning={"chunk": st.sampled_from([16, 32])},
    ),
    exact=True,
    relations=(Linear(0), Permuted({0: 0}, output=0, exact=True)),
    vmappable=False,  # vmap gives HBM operands blocks, which the TPU interpreter refuses
    typical=(pst.shaped("m n", dtype="bfloat16", dims={"m": 4096, "n": 1024}),),
    equivalent=(
        EquivalentMutant(
            operator="alias",
            change="added",
            source="return pl.pallas_call(",
            reason="rows are stored where they came from, after they were loaded",
        ),
    ),
)
