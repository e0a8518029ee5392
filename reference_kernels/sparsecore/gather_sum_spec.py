"""Spec of ``gather_sum``."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.sparsecore._subcores_spec import BACKENDS, CLEARED
from reference_kernels.sparsecore.gather_sum import gather_sum, reference


def _unused(x: Any, idx: Any, segments: Any, *, count: int) -> tuple[Any, None, None]:
    """Rows of ``x`` that no index names."""
    del segments, count  # rows of dropped segments are gathered, too
    ignored = np.ones(np.shape(x), bool)
    ignored[np.clip(idx, 0, len(ignored) - 1)] = False
    return ignored, None, None


@st.composite
def _inputs(draw: st.DrawFn) -> pst.Arguments:
    """Segments that may be empty, unsorted or out of range, and repeated rows."""
    drawn = draw(
        pst.arrays(
            "rows d",
            dtype=pst.dtypes("float32", "int32"),
            # Something for each of two SparseCores.
            dims={"rows": [2, 17], "d": [20, 45]},
            # Whatever the order of the additions, their sum is the same.
            values=["integers", "rows"],
        )
    )
    [x] = drawn
    m, count = draw(st.sampled_from([40, 13, 1])), draw(st.sampled_from([1, 25]))
    idx = draw(pst.indices(m, size=x.shape[0], dtype="int32"))
    segments = draw(pst.indices(m, size=count, dtype="int32"))
    if m > 1 and draw(st.booleans()):
        segments[draw(st.integers(0, m - 1))] = draw(st.sampled_from([-1, count]))
    return pst.Arguments(
        args=(x, idx, segments),
        options={"count": count},
        tuning={"chunk": 8, "cores": draw(st.sampled_from([1, 2])), "subcores": 2},
        recipe={**drawn.recipe, "idx": idx.tolist(), "segments": segments.tolist(), "count": count},
        declared=drawn.declared,
    )


SPEC = KernelSpec(
    name="gather_sum",
    kernel=gather_sum,
    reference=reference,
    inputs=_inputs(),
    backends=BACKENDS,
    exact=True,
    relations=(
        Linear(0),
        Permuted({1: 0, 2: 0}),
        Permuted({0: 1}, output=1),
    ),
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    equivalent=(CLEARED,),
    ignored=_unused,
    typical=(
        pst.shaped(
            "rows d, m, m",
            dtype=["float32", "int32", "int32"],
            dims={"rows": 2**20, "d": 128, "m": 2**16},
            options={"count": 4096},
        ),
    ),
)
