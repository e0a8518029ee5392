"""Specs of ``gather``."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.sparsecore._subcores_spec import BACKENDS
from reference_kernels.sparsecore.gather import gather, gather_pipelined, reference


def _never_gathered(x: Any, idx: Any) -> tuple[Any, None]:
    """Rows of ``x`` that no index names."""
    ignored = np.ones(np.shape(x), bool)
    ignored[np.clip(idx, 0, len(ignored) - 1)] = False
    return ignored, None


@st.composite
def _inputs(draw: st.DrawFn, *dtypes: str) -> pst.Arguments:
    """A table, and indices of which one may be out of range."""
    drawn = draw(
        pst.arrays("rows d", dtype=pst.dtypes(*dtypes), dims={"rows": [1, 17], "d": [8, 13]})
    )
    [x] = drawn
    m = draw(st.sampled_from([1, 40]))  # five chunks for two subcores use a slot again
    idx = draw(pst.indices(m, size=x.shape[0], dtype="int32"))
    if draw(st.booleans()):
        idx[draw(st.integers(0, m - 1))] = draw(st.sampled_from([-1, x.shape[0]]))
    return pst.Arguments(
        args=(x, idx),
        tuning={"chunk": 8, "cores": 2, "subcores": 1},
        recipe={**drawn.recipe, "m": m, "idx": idx.tolist()},
        declared=drawn.declared,
    )


_RELATIONS = (
    Linear(0),
    Permuted({1: 0}, output=0, exact=True),
    Permuted({0: 1}, output=1, exact=True),
)

SPEC = KernelSpec(
    name="gather",
    kernel=gather,
    reference=reference,
    inputs=_inputs("float32", "bfloat16"),
    backends=BACKENDS,
    exact=True,
    relations=_RELATIONS,
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    ignored=_never_gathered,
    typical=tuple(
        pst.shaped("rows d, m", dtype=[dtype, "int32"], dims={"rows": 2**20, "d": d, "m": 2**16})
        for dtype, d in (("float32", 128), ("bfloat16", 64))
    ),
)

SPEC_PIPELINED = KernelSpec(
    name="gather_pipelined",
    kernel=gather_pipelined,
    reference=reference,
    inputs=_inputs("float32", "int32"),
    backends=BACKENDS,
    exact=True,
    relations=_RELATIONS,
    vmappable=False,
    ignored=_never_gathered,
    typical=(
        pst.shaped(
            "rows d, m", dtype=["float32", "int32"], dims={"rows": 2**20, "d": 128, "m": 2**16}
        ),
    ),
)
