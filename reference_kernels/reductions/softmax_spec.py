"""Spec of ``softmax``."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.reductions.softmax import reference, softmax


def _with_masked_entries(drawn: pst.Drawn) -> pst.Drawn:
    """Every third row of ``x`` gets ``-inf`` in its even columns; every sixth is all ``-inf``."""
    x = np.array(drawn[0])
    x[2::3, ::2] = -np.inf
    x[5::6] = -np.inf
    return pst.Drawn((x,), {**drawn.recipe, "masked": True}, declared=drawn.declared)


_ARRAYS = pst.arrays(
    "m n",
    dtype=pst.floats("bfloat16", "float32"),
    around={"m": 16, "n": 128},
    # exp overflows at 89, which only wide values reach.
    values=("normal", "integers", "wide"),
)

SPEC = KernelSpec(
    name="softmax",
    kernel=softmax,
    reference=reference,
    inputs=pst.arguments(
        st.one_of(_ARRAYS, _ARRAYS.map(_with_masked_entries)),
        tuning={"block_rows": 16},
    ),
    differentiable=(0,),
    batch_axes=(0,),
    relations=(Permuted({0: 0}, output=0), Permuted({0: 1}, output=1)),
    typical=(pst.shaped("m n", dtype="float32", dims={"m": 4096, "n": 2048}),),
)
