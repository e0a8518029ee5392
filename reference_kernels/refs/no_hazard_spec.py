"""Spec of ``no_hazard``."""

from __future__ import annotations

import functools

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels._gaps import ASSUMPTIONS, without
from reference_kernels.refs.no_hazard import exp_in_place, reference

SPEC = KernelSpec(
    name="exp_in_place",
    kernel=exp_in_place,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", around={"m": 8}, dims={"n": [1, 128, 130]}),
        tuning={"block_rows": 16},
    ),
    batch_axes=(0,),
    relations=(Permuted({0: 0}, output=0),),
    implementations={"no_promise": functools.partial(exp_in_place, promise=False)},
    backends=without(ASSUMPTIONS),
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 4096, "n": 128}),),
)
