"""Spec of ``fused_gather``."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels.sparse.fused_gather import fused_gather, reference


def _never_gathered(x: Any, idx: Any, w: Any) -> tuple[Any, None, None]:
    """Rows of ``x`` that no index names."""
    del w
    ignored = np.ones(np.shape(x), bool)
    ignored[np.clip(idx, 0, len(ignored) - 1)] = False
    return ignored, None, None


@st.composite
def _inputs(draw: st.DrawFn) -> pst.Arguments:
    """A table of an odd or even number of rows, and indices of which one may be out of range."""
    drawn = draw(
        pst.arrays(
            "rows k, k n",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"rows": [1, 2, 17], "k": [1, 128, 129], "n": [1, 129]},
        )
    )
    x, w = drawn
    m = draw(st.sampled_from([1, 33, 65]))  # three blocks use a slot again
    idx = draw(pst.indices(m, size=x.shape[0], dtype="int32"))
    if draw(st.booleans()):
        idx[draw(st.integers(0, m - 1))] = draw(st.sampled_from([-1, x.shape[0]]))
    return pst.Arguments(
        args=(x, idx, w),
        tuning={"block_m": 32, "block_n": 128},
        recipe={**drawn.recipe, "m": m, "idx": idx.tolist()},
        declared=drawn.declared,
    )


SPEC = KernelSpec(
    name="fused_gather",
    kernel=fused_gather,
    reference=reference,
    inputs=_inputs(),
    exact=True,
    batch_axes=(None, 0, None),
    relations=(
        Linear(0),
        Linear(2),
        Permuted({1: 0}, output=0, exact=True),
        Permuted({0: 1, 2: 0}),
        Permuted({2: 1}, output=1, exact=True),
    ),
    vmappable=False,  # vmap gives HBM operands blocks, which the TPU interpreter refuses
    ignored=_never_gathered,
    equivalent=(
        EquivalentMutant(
            operator="load",
            source="half = (words >> (16 * halves[slot, here, :1]))",
            part="axis 2",
            reason="every lane of a row of halves holds the same number",
        ),
    ),
    typical=tuple(
        pst.shaped(
            "rows k, m, k n",
            dtype=[dtype, "int32", dtype],
            dims={"rows": 65536, "m": 8192, "k": k, "n": 2048},
        )
        for dtype, k in (("bfloat16", 2048), ("float32", 1024))
    ),
)
