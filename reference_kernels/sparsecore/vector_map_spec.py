"""Spec of ``vector_map``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.sparsecore._subcores_spec import BACKENDS
from reference_kernels.sparsecore.vector_map import BODIES, reference, vector_map

SPEC = KernelSpec(
    name="vector_map",
    kernel=vector_map,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "n", dtype=pst.dtypes("float32", "int32"), dims={"n": [1, 161]}, values=("full", "wide")
        ),
        tuning={
            "method": st.sampled_from(list(BODIES)),
            "block": 32,
            "cores": 2,
            "subcores": 1,
        },
    ),
    backends=BACKENDS,
    exact=2**20,
    relations=(Permuted({0: 0}, output=0, exact=True),),
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    typical=tuple(
        pst.shaped("n", dtype=dtype, dims={"n": 2**20}, tuning={"method": method})
        for dtype, method in (
            ("float32", "loop"),
            ("float32", "parallel_loop"),
            ("int32", "addupdate"),
        )
    ),
)
