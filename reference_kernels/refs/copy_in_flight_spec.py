"""Spec of ``copy_in_flight``."""

from __future__ import annotations

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec
from reference_kernels._gaps import OUTLIVING, without
from reference_kernels.refs.copy_in_flight import copy_in_flight, reference

#: The checks that trace or run the kernel in an interpreter.
SPEC = KernelSpec(
    name="copy_in_flight",
    kernel=copy_in_flight,
    reference=reference,
    inputs=pst.arrays(
        "m n, k",
        dtype=[pst.dtypes("bfloat16", "float32", "int32"), "float32"],
        dims={"m": [1, 16, 33], "n": [1, 130], "k": [1, 128]},
    ),
    vmappable=False,  # a semaphore has no batch axis
    backends=without(OUTLIVING),
    typical=(
        pst.shaped(
            "m n, k", dtype=["bfloat16", "float32"], dims={"m": 4096, "n": 4096, "k": 2**20}
        ),
    ),
)
