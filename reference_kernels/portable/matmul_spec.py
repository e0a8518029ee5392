"""Spec of ``matmul``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.matmul.matmul import reference
from reference_kernels.portable._claims import BACKENDS
from reference_kernels.portable.matmul import portable_matmul

SPEC = KernelSpec(
    name="portable_matmul",
    kernel=portable_matmul,
    backends=BACKENDS,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m k, k n",
            dtype=pst.floats("bfloat16", "float32"),
            around={"m": 16, "k": 128, "n": 128},
        ),
        tuning={"block_m": st.sampled_from([16, 32]), "block_n": 128, "block_k": 128},
    ),
    exact=True,
    relations=(Linear(0), Linear(1), Permuted({1: 1}, output=1), Permuted({0: 1, 1: 0})),
    typical=(pst.shaped("m k, k n", dtype="bfloat16", dims={"m": 1000, "k": 1000, "n": 1000}),),
)
