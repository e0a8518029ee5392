"""Spec of ``ragged_copy``."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear
from reference_kernels._gaps import KNOWN_LATE, without
from reference_kernels.dma.ragged_copy import ragged_copy, reference


@st.composite
def _inputs(draw: st.DrawFn) -> pst.Arguments:
    """Runs that lie one after another in ``into``, in any order, and anywhere in ``x``."""
    drawn = draw(
        pst.arrays(
            "m h d, l h d",
            dtype=pst.dtypes("bfloat16", "float32", "int32"),
            dims={"m": [9, 40], "l": 50, "h": 2, "d": [5, 128]},
        )
    )
    m, length = len(drawn[0]), len(drawn[1])
    groups = 3
    sizes = np.asarray(draw(pst.group_sizes(groups, total=min(m, length), around=8)), np.int32)
    starts = np.array([draw(st.integers(0, m - int(size))) for size in sizes], np.int32)
    into_starts = np.zeros(groups, np.int32)
    next_row = draw(st.integers(0, length - int(sizes.sum())))
    for group in draw(st.permutations(range(groups))):
        into_starts[group] = next_row
        next_row += sizes[group]
    runs = {"starts": starts, "into_starts": into_starts, "sizes": sizes}
    return pst.Arguments(
        args=(*drawn, *runs.values()),
        tuning={"block": 8},
        recipe={**drawn.recipe, **{name: values.tolist() for name, values in runs.items()}},
        declared=drawn.declared,
    )


def _unread(*args: Any, **_: Any) -> tuple[Any, ...]:
    """Rows of ``x`` that are in no run, and rows of ``into`` that are overwritten."""

    def covered(array: Any, starts: Any, sizes: Any) -> np.ndarray:
        row = np.arange(len(array))[:, None]
        inside = ((row >= starts) & (row < starts + sizes)).any(axis=1)
        return np.broadcast_to(inside[:, None, None], array.shape)

    x, into, starts, into_starts, sizes = args
    return ~covered(x, starts, sizes), covered(into, into_starts, sizes), None, None, None


SPEC = KernelSpec(
    name="ragged_copy",
    kernel=ragged_copy,
    reference=reference,
    inputs=_inputs(),
    exact=True,
    relations=(Linear((0, 1)),),
    ignored=_unread,
    vmappable=False,  # vmap gives HBM operands blocks, which the TPU interpreter refuses
    typical=(
        pst.shaped(
            "m h d, l h d, g, g, g",
            dtype=["bfloat16", "bfloat16", "int32", "int32", "int32"],
            dims={"m": 4096, "l": 8192, "h": 8, "d": 128, "g": 16},
        ),
    ),
    backends=without(KNOWN_LATE),
)
