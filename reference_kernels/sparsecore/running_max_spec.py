"""Spec of ``running_max``."""

from __future__ import annotations

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.sparsecore._subcores_spec import BACKENDS
from reference_kernels.sparsecore.running_max import reference, running_max

SPEC = KernelSpec(
    name="running_max",
    kernel=running_max,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "rows n",
            dtype=pst.dtypes("float32", "int32"),
            dims={"rows": [1, 9], "n": [1, 33]},
        ),
        tuning={"block": 2, "cores": 1, "subcores": 2},
    ),
    backends=BACKENDS,
    relations=(Permuted({0: 0}, output=0, exact=True),),
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    typical=(pst.shaped("rows n", dtype="float32", dims={"rows": 8192, "n": 1024}),),
)
