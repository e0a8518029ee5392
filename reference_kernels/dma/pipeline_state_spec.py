"""Specs of ``pipeline_state``."""

from __future__ import annotations

from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, ExpectedFailure, KernelSpec, Linear, Permuted
from reference_kernels._gaps import OUTLIVING, without
from reference_kernels.dma.pipeline_state import (
    add_in_place,
    add_one_by_parts,
    add_one_prefetched,
    reference,
    reference_add,
)

_DTYPES = pst.dtypes("bfloat16", "int32")
_DIMS = {"p": [2, 5], "m": [1, 17], "n": 129}
_TYPICAL = {"p": 32, "m": 256, "n": 512}

SPEC_PARTS = KernelSpec(
    name="add_one_by_parts",
    kernel=add_one_by_parts,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("p m n", dtype=_DTYPES, dims={"p": [2, 6], "m": [1, 17], "n": 129}),
        tuning={"parts": 2},
    ),
    exact=True,
    relations=(Permuted({0: 0}, output=0, exact=True),),
    vmappable=False,  # vmap gives HBM operands blocks, which the TPU interpreter refuses
    typical=(pst.shaped("p m n", dtype="bfloat16", dims=_TYPICAL),),
    equivalent=(
        EquivalentMutant(
            operator="alias",
            change="added",
            source="return pl.pallas_call(",
            reason="each matrix is stored where it came from, after it was loaded",
        ),
    ),
)

# JAX 0.11.2 fetches into a buffer of this type that it is still storing, which is a race.
if hasattr(pltpu.BufferedRef, "out_buffer_count"):  # JAX 0.12
    SPEC_IN_PLACE = KernelSpec(
        name="add_in_place",
        kernel=add_in_place,
        reference=reference_add,
        inputs=pst.arrays("p m n, p m n", dtype=_DTYPES, dims=_DIMS),
        exact=True,
        relations=(Linear((0, 1)), Permuted({0: 0, 1: 0}, output=0, exact=True)),
        vmappable=False,
        typical=(pst.shaped("p m n, p m n", dtype="bfloat16", dims=_TYPICAL),),
    )

#: JAX 0.11 cannot trace buffers that outlive a kernel.
_UNTRACED = (
    {}
    if hasattr(pltpu.BufferedRef, "out_buffer_count")
    else {"tpu-sim": ExpectedFailure(reason="JAX cannot trace its buffers", jax="0.11.2")}
)

SPEC_PREFETCHED = KernelSpec(
    name="add_one_prefetched",
    kernel=add_one_prefetched,
    reference=reference,
    inputs=pst.arguments(pst.arrays("p m n", dtype=_DTYPES, dims=_DIMS), tuning={"ahead": 2}),
    exact=True,
    vmappable=False,
    typical=(pst.shaped("p m n", dtype="bfloat16", dims=_TYPICAL),),
    backends=without(OUTLIVING),
    xfail={
        **_UNTRACED,
        "tpu-compile:v4": ExpectedFailure(reason="Invalid memory space: 1", jax="0.12.0.1"),
    },
)
