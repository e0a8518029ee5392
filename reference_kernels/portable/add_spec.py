"""Spec of ``add``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.portable._claims import BACKENDS
from reference_kernels.portable.add import portable_add, reference

SPEC = KernelSpec(
    name="portable_add",
    kernel=portable_add,
    backends=BACKENDS,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("n, n", dtype=pst.dtypes("bfloat16", "float32", "int32"), around=256),
        tuning={"block": st.sampled_from([256, 512])},
    ),
    exact=True,
    vmappable=False,  # vmap makes blocks of one row of a matrix, which a TPU refuses
    relations=(Linear((0, 1)), Permuted({0: 0, 1: 0}, output=0, exact=True)),
    typical=(pst.shaped("n, n", dtype="float32", dims={"n": 1_000_000}),),
)
