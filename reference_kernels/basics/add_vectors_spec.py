"""Specs of ``add_vectors``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.basics.add_vectors import add_blocks, add_vectors, reference

_NUMBERS = pst.dtypes("bfloat16", "float32", "int32")

_RELATIONS = (Linear((0, 1)), Permuted({0: 0, 1: 0}, output=0, exact=True))

SPEC_WHOLE = KernelSpec(
    name="add_vectors",
    kernel=add_vectors,
    reference=reference,
    inputs=pst.arrays("n, n", dtype=_NUMBERS, around=128),
    exact=True,
    vmappable=False,  # vmap makes blocks of one row of a matrix, which a TPU refuses
    relations=_RELATIONS,
    typical=(pst.shaped("n, n", dtype="float32", dims={"n": 8192}),),
)

SPEC_BLOCKS = KernelSpec(
    name="add_blocks",
    kernel=add_blocks,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("n, n", dtype=_NUMBERS, around=256),
        tuning={"block": st.sampled_from([256, 512])},
    ),
    exact=True,
    vmappable=False,  # as above
    batch_axes=(0, 0),
    relations=_RELATIONS,
    implementations={"add_vectors": add_vectors},
    typical=(pst.shaped("n, n", dtype="float32", dims={"n": 1_000_000}),),
)
