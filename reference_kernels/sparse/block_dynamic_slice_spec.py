"""Specs of ``block_dynamic_slice``."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear
from reference_kernels.sparse.block_dynamic_slice import (
    block_dynamic_slice,
    reference,
    reference_tiles,
    tile_dynamic_slice,
)


@st.composite
def _inputs(draw: st.DrawFn) -> pst.Arguments:
    """A matrix of a few blocks, a slice of it, and starts that may lie outside."""
    drawn = draw(
        pst.arrays(
            "m n",
            dtype=pst.dtypes("bfloat16", "float32", "int32"),
            dims={"m": [16, 50, 64], "n": [128, 300, 384]},
        )
    )
    sizes = (draw(st.sampled_from([1, 15, 16])), draw(st.sampled_from([1, 127, 128])))
    if drawn[0].shape[0] > 16 and draw(st.booleans()):
        sizes = (33, sizes[1])
    start = st.integers(-1, 4)
    starts = np.array([draw(start), draw(start)], np.int32)
    return pst.Arguments(
        args=(drawn[0], starts),
        options={"sizes": sizes, "block": (16, 128)},
        recipe={**drawn.recipe, "starts": starts.tolist()},
        declared=drawn.declared,
    )


SPEC = KernelSpec(
    name="block_dynamic_slice",
    kernel=block_dynamic_slice,
    reference=reference,
    inputs=_inputs(),
    exact=True,
    relations=(Linear(0),),
    typical=(
        pst.shaped(
            "m n, 2",
            dtype=["bfloat16", "int32"],
            dims={"m": 4096, "n": 4096},
            options={"sizes": (1024, 1024)},
        ),
    ),
)


@st.composite
def _tile_inputs(draw: st.DrawFn) -> pst.Arguments:
    """A matrix of a few tiles and a bit, and starts on and off the tiles, in and out of range."""
    drawn = draw(
        pst.arrays(
            "m n",
            dtype=pst.dtypes("bfloat16", "float32", "int32"),
            dims={"m": [16, 33, 64], "n": [128, 300, 384]},
        )
    )
    sizes = (draw(st.sampled_from([8, 16])), 128)
    starts = [draw(st.sampled_from(each)) for each in ([0, 8, 13, -1, 70], [0, 128, 200, -1, 400])]
    return pst.Arguments(
        args=(drawn[0], np.array(starts, np.int32)),
        options={"sizes": sizes},
        recipe={**drawn.recipe, "starts": starts},
        declared=drawn.declared,
    )


SPEC_TILES = KernelSpec(
    name="tile_dynamic_slice",
    kernel=tile_dynamic_slice,
    reference=reference_tiles,
    inputs=_tile_inputs(),
    exact=True,
    relations=(Linear(0),),
    vmappable=False,  # vmap gives HBM operands blocks, which the TPU interpreter refuses
    typical=(
        pst.shaped(
            "m n, 2",
            dtype=["bfloat16", "int32"],
            dims={"m": 4096, "n": 4096},
            options={"sizes": (1024, 1024)},
        ),
    ),
)
