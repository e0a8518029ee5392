"""Specs of ``row_layer_norm``."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted, Relation
from reference_kernels.mosaic_gpu._claims import TMA
from reference_kernels.mosaic_gpu._norms_spec import EQUIVALENT
from reference_kernels.mosaic_gpu.row_layer_norm import row_layer_norm
from reference_kernels.reductions.layer_norm import reference


def _negated(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    del rng
    x, w, b = arguments.args
    return dataclasses.replace(arguments, args=(-x, w, -b))


_DTYPES = pst.dtype_pairs(
    ("float32", "float32", "float32"),
    ("bfloat16", "float32", "float32"),
    ("bfloat16", "bfloat16", "bfloat16"),
    ("float16", "float32", "float32"),
)

SPEC = KernelSpec(
    name="row_layer_norm",
    kernel={"gpu": row_layer_norm},
    backends=("gpu-interpret", *TMA),
    reference=reference,
    inputs=pst.arguments(
        # Of 15 rows in blocks of 8: a block, a group of 4, and 3 that are left.
        pst.arrays("m n, n, n", dtype=_DTYPES, dims={"m": [1, 8, 15], "n": [40, 256, 2176]}),
        options={"eps": st.sampled_from([1e-5, 0.25])},
        tuning={"block_rows": st.sampled_from([4, 8]), "blocks": st.sampled_from([2, 3])},
    ),
    differentiable=(0, 1, 2),
    relations=(
        Linear((1, 2)),
        Permuted({0: 0}, output=0),
        Permuted({0: 1, 1: 0, 2: 0}, output=1),
        Relation("odd in x and b", _negated, expect=lambda outputs, _: -outputs, exact=True),
    ),
    equivalent=EQUIVALENT,
    typical=(
        pst.shaped(
            "m n, n, n", dtype=("bfloat16", "float32", "float32"), dims={"m": 8192, "n": 4096}
        ),
    ),
)

SPEC_OVERLAP = dataclasses.replace(
    SPEC,
    name="row_layer_norm_overlap",
    kernel={"gpu": functools.partial(row_layer_norm, overlap=True)},
    backends=TMA,  # JAX interprets no griddepcontrol
    equivalent=(),  # which are of the gradient
)
