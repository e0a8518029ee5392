"""Spec of ``ampere_matmul``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.relations import Linear, Permuted
from pytest_pallas.spec import KernelSpec
from reference_kernels.mosaic_gpu._claims import ANY
from reference_kernels.mosaic_gpu.ampere_matmul import ampere_matmul
from reference_kernels.mosaic_gpu.hopper_matmul import reference

SPEC = KernelSpec(
    name="ampere_matmul",
    kernel={"gpu": ampere_matmul},
    backends=ANY,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m k, k n",
            dtype=pst.floats("bfloat16", "float16"),
            around={"m": 64, "n": 64, "k": 32},
            max_bytes=2**17,
        ),
        tuning={
            "block_m": 64,
            "block_n": st.sampled_from([64, 128]),
            "block_k": st.sampled_from([32, 64]),
            "stages": st.sampled_from([2, 3]),
        },
    ),
    exact=True,
    relations=(Linear(0), Linear(1), Permuted({0: 0}, output=0), Permuted({0: 1, 1: 0})),
    typical=(pst.shaped("m k, k n", dtype="bfloat16", dims={"m": 4096, "k": 4096, "n": 4096}),),
)
