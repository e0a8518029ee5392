"""Specs of ``emit_pipeline``."""

from __future__ import annotations

from hypothesis import strategies as st
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Permuted
from reference_kernels.dma.emit_pipeline import add_one_pipelined, reference

_ARRAYS = pst.arrays(
    "m n",
    dtype=pst.dtypes("bfloat16", "float32", "int32"),
    # Up to six whole blocks, so that every buffer of two cores is used again.
    dims={"m": [1, 15, 16, 17, 109], "n": [1, 129]},
)

_PERMUTED = tuple(Permuted({0: axis}, output=axis, exact=True) for axis in (0, 1))

_TYPICAL = (pst.shaped("m n", dtype="bfloat16", dims={"m": 4096, "n": 1024}),)

_EQUIVALENT = (
    EquivalentMutant(
        operator="alias",
        change="added",
        source="return pl.pallas_call(",
        reason="each block is stored where it came from, after it was loaded",
    ),
    EquivalentMutant(
        operator="guard",
        change="always",
        source="@pl.when(pl.program_id(0) == cores - 1)",
        reason="every core would compute the last rows, from the same x to the same o",
    ),
)

SPEC = KernelSpec(
    name="add_one_pipelined",
    kernel=add_one_pipelined,
    reference=reference,
    inputs=pst.arguments(
        _ARRAYS,
        tuning={
            "block_rows": 16,
            "buffering": st.sampled_from([pl.Buffered(1), pl.Buffered(3, use_lookahead=True)]),
            "cores": st.sampled_from([1, 2]),
        },
    ),
    exact=True,
    relations=_PERMUTED,
    vmappable=False,  # vmap gives HBM operands blocks, which the TPU interpreter refuses
    typical=_TYPICAL,
    equivalent=_EQUIVALENT,
)

SPEC_CORES = KernelSpec(
    name="add_one_pipelined_on_cores",
    kernel=add_one_pipelined,
    reference=reference,
    inputs=pst.arguments(_ARRAYS, tuning={"block_rows": 16, "cores": 2, "core_parallel": True}),
    # Only v5p has two cores that one kernel can ask for.
    backends=("tpu-sim:v5p", "interpret", "tpu-interpret", "tpu-compile:v5p"),
    exact=True,
    relations=_PERMUTED,
    vmappable=False,
    typical=_TYPICAL,
    equivalent=_EQUIVALENT,
)
