"""Spec of ``staged_map``."""

from __future__ import annotations

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.mpmd.staged_map import reference, staged_map
from reference_kernels.sparsecore._subcores_spec import BACKENDS

SPEC = KernelSpec(
    name="staged_map",
    kernel=staged_map,
    reference=reference,
    inputs=pst.arguments(
        # Up to five chunks, so that both slots are filled again.
        pst.arrays("n", dtype=pst.dtypes("float32", "int32"), dims={"n": [1, 79]}),
        tuning={"block": 8, "cores": 1, "subcores": 2},
    ),
    backends=BACKENDS,
    exact=True,
    relations=(Permuted({0: 0}, output=0, exact=True),),
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    typical=(pst.shaped("n", dtype="float32", dims={"n": 2**20}),),
)
