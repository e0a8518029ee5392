"""Spec of ``matmul_explicit_mxu``."""

from __future__ import annotations

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.matmul.matmul import reference
from reference_kernels.matmul.matmul_explicit_mxu import matmul_explicit_mxu

SPEC = KernelSpec(
    name="matmul_explicit_mxu",
    kernel=matmul_explicit_mxu,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("m k, k n", dtype="bfloat16", around={"m": 16, "k": 256, "n": 256}),
        tuning={"block_m": 32},
    ),
    # JAX's interpreters cannot control the matrix units.
    backends=("tpu-sim", "tpu-compile:v6e", "tpu-compile:tpu7x"),
    exact=True,
    relations=(
        Linear(0),
        Linear(1),
        Permuted({0: 0}, output=0),
        Permuted({1: 1}, output=1),
        Permuted({0: 1, 1: 0}),
    ),
    typical=(pst.shaped("m k, k n", dtype="bfloat16", dims={"m": 2048, "k": 2048, "n": 2048}),),
)
