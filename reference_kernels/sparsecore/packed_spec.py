"""Specs of ``packed``."""

from __future__ import annotations

from typing import Any

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.sparsecore._subcores_spec import BACKENDS
from reference_kernels.sparsecore.packed import abs_packed, add_packed, reference, reference_abs


def _inputs(shapes: str) -> Any:
    return pst.arguments(
        pst.arrays(shapes, dtype="bfloat16", dims={"n": [1, 155]}),
        tuning={"block": 32, "cores": 1, "subcores": 2},
    )


SPEC = KernelSpec(
    name="add_packed",
    kernel=add_packed,
    reference=reference,
    inputs=_inputs("n, n"),
    backends=BACKENDS,
    relations=(Permuted({0: 0, 1: 0}, output=0, exact=True),),
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    typical=(pst.shaped("n, n", dtype="bfloat16", dims={"n": 2**20}),),
)

SPEC_ABS = KernelSpec(
    name="abs_packed",
    kernel=abs_packed,
    reference=reference_abs,
    inputs=_inputs("n"),
    backends=BACKENDS,
    relations=(Permuted({0: 0}, output=0, exact=True),),
    vmappable=False,
    typical=(pst.shaped("n", dtype="bfloat16", dims={"n": 2**20}),),
)
