"""Spec of ``tma_copy_add``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Permuted
from reference_kernels.mosaic_gpu._claims import TMA
from reference_kernels.mosaic_gpu.tma_copy_add import reference, tma_copy_add

SPEC = KernelSpec(
    name="tma_copy_add",
    kernel={"gpu": tma_copy_add},
    # The TMA is there from Hopper on.
    backends=("gpu-interpret", *TMA),
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n",
            dtype=pst.dtypes("bfloat16", "float32", "int32"),
            around={"m": 8},
            multiple_of={"n": 128},
        ),
        tuning={"block_rows": st.sampled_from([8, 16])},
    ),
    exact=True,
    relations=(Permuted({0: 0}, output=0, exact=True),),
    equivalent=(
        *(
            EquivalentMutant(
                operator="guard",
                change=change,
                source="pl.when(block < whole)",
                reason="TMA leaves out what is beyond the end; the rest is written again, the same",
            )
            for change in ("always", "lt -> le")
        ),
        EquivalentMutant(
            operator="guard",
            change="always",
            source="pl.when(block == whole)",
            reason="the first rows of other blocks are written again, the same: nobody writes x",
        ),
    ),
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 4096, "n": 128}),),
)
