"""Specs of ``halo_stencil``."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, ExpectedFailure, KernelSpec, Linear, Permuted
from reference_kernels._gaps import WINDOWS_BEFORE, without
from reference_kernels._tpu import ROWS
from reference_kernels.sparse.halo_stencil import halo_stencil, halo_stencil_padded, reference


def _beyond(x: Any, rows: Any) -> tuple[Any, None]:
    """Rows of ``x`` that do not count."""
    return np.broadcast_to((np.arange(len(x)) >= rows)[:, None], np.shape(x)), None


def _counts(m: int) -> st.SearchStrategy[int]:
    """Numbers of rows that count: any, or whole blocks, which are followed by rows that do not."""
    return st.one_of(st.integers(0, m), st.sampled_from(range(0, m + 1, ROWS)))


#: Sums of "full" numbers have more bits than bfloat16, and three are exact in float32.
_VALUES = ("integers", "full", "normal")

_BLOCKS = {"block_rows": st.sampled_from([16, 32])}  # One strip, or two.

_INPUTS = pst.arguments(
    pst.arrays(
        "m n",
        dtype=pst.floats("bfloat16", "float32"),
        values=_VALUES,
        # Up to four blocks, so that one has whole halos.
        dims={"m": [1, 15, 16, 17, 48, 61, 96], "n": [1, 129]},
    ),
    then=lambda drawn: {"rows": _counts(drawn.recipe["m"]).map(np.int32)},
    tuning=_BLOCKS,
)

SPEC = KernelSpec(
    name="halo_stencil",
    kernel=halo_stencil,
    reference=reference,
    inputs=_INPUTS,
    exact=2**20,
    differentiable=(),
    relations=(Linear(0), Permuted({0: 1}, output=1, exact=True)),
    ignored=_beyond,
    vmappable=False,
    typical=(pst.shaped("m n, ", dtype=["bfloat16", "int32"], dims={"m": 8192, "n": 1024}),),
)

_UNPADDED = ExpectedFailure(reason="windows cannot begin before the array", jax="0.12.0.1")

SPEC_PADDED = KernelSpec(
    name="halo_stencil_padded",
    kernel=halo_stencil_padded,
    reference=reference,
    # All rows count: where none does, no window matters.
    inputs=pst.arguments(
        pst.arrays(
            "m n",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"m": [17, 96], "n": 129},
            values="full",
        ),
        then=lambda drawn: {"rows": st.just(np.int32(drawn.recipe["m"]))},
        tuning=_BLOCKS,
    ),
    exact=2**20,
    equivalent=tuple(
        EquivalentMutant(
            operator="arithmetic",
            source=source,
            reason="windows have padding on both sides, so the two numbers are the same",
        )
        for source in ("jnp.maximum(here - ROWS, 0)", "jnp.minimum(here + block, last_tile)")
    ),
    backends=without(WINDOWS_BEFORE),
    xfail={
        **{f"tpu-compile:{chip}": _UNPADDED for chip in ("v4", "v5e", "v5p", "v6e", "tpu7x")},
    },
)
