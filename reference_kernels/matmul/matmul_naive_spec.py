"""Spec of ``matmul_naive``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.matmul.matmul_naive import matmul_naive, reference

SPEC = KernelSpec(
    name="matmul_naive",
    kernel=matmul_naive,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m k, k n",
            dtype=pst.floats("bfloat16", "float32"),
            around={"m": 16, "k": 64, "n": 128},
        ),
        tuning={"block_m": st.sampled_from([16, 32]), "block_n": 128},
    ),
    exact=True,
    relations=(Linear(0), Linear(1), Permuted({1: 1}, output=1), Permuted({0: 1, 1: 0})),
    typical=(pst.shaped("m k, k n", dtype="bfloat16", dims={"m": 1024, "k": 1024, "n": 1024}),),
)
