"""Spec of ``route_rows``."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec
from reference_kernels._gaps import CHOSEN_REFERENCES, without
from reference_kernels.refs.route_rows import reference, route_rows


@st.composite
def _inputs(draw: st.DrawFn) -> pst.Arguments:
    drawn = draw(
        pst.arrays(
            "m n, m n, m n",
            dtype=pst.dtypes("bfloat16", "float32", "int32"),
            dims={"m": [1, 8, 33], "n": [1, 128, 300]},
        )
    )
    x, a, b = drawn
    blocks = pl.cdiv(x.shape[0], 8)
    which = np.array(draw(st.lists(st.integers(0, 1), min_size=blocks, max_size=blocks)), np.int32)
    return pst.Arguments(
        args=(x, which, a, b),
        options={"block_rows": 8},
        recipe={**drawn.recipe, "which": which.tolist()},
        declared=drawn.declared,
    )


SPEC = KernelSpec(
    name="route_rows",
    kernel=route_rows,
    reference=reference,
    inputs=_inputs(),
    exact=True,
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    backends=without(CHOSEN_REFERENCES),
    typical=(
        pst.shaped(
            "m n, 64, m n, m n",
            dtype=["bfloat16", "int32", "bfloat16", "bfloat16"],
            dims={"m": 4096, "n": 1024},
            options={"block_rows": 64},
        ),
    ),
)
