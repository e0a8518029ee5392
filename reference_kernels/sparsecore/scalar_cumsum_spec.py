"""Spec of ``scalar_cumsum``."""

from __future__ import annotations

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear
from reference_kernels.sparsecore._subcores_spec import BACKENDS
from reference_kernels.sparsecore.scalar_cumsum import reference, scalar_cumsum

SPEC = KernelSpec(
    name="scalar_cumsum",
    kernel=scalar_cumsum,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("n", dtype=pst.dtypes("int32", "float32"), dims={"n": [1, 16, 17, 61]}),
        tuning={"chunk": 16},
    ),
    backends=(*BACKENDS, "tpu-interpret"),
    exact=True,
    relations=(Linear(0),),
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    equivalent=(
        EquivalentMutant(
            operator="arithmetic",
            change="sub -> add",
            source="store(i - _SLOTS).wait()",
            reason="a wait needs the slot, which i + _SLOTS has too, and the size of a copy, not "
            "its place",
        ),
    ),
    typical=(pst.shaped("n", dtype="int32", dims={"n": 65536}),),
)
