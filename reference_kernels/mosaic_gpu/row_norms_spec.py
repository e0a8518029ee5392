"""Specs of ``row_norms``."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted, Relation
from reference_kernels.mosaic_gpu._claims import TMA
from reference_kernels.mosaic_gpu._norms_spec import EQUIVALENT
from reference_kernels.mosaic_gpu.row_norms import row_rms_norm
from reference_kernels.reductions.rms_norm import reference


def _negated(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    del rng
    x, w = arguments.args
    return dataclasses.replace(arguments, args=(-x, w))


_DTYPES = pst.dtype_pairs(
    ("float32", "float32"),
    ("bfloat16", "float32"),
    ("bfloat16", "bfloat16"),
    ("float16", "float32"),
)
_ANY = pst.arguments(
    pst.arrays("m n, n", dtype=_DTYPES, dims={"m": [1, 8, 11], "n": [40, 256, 2176]}),
    tuning={"block_rows": st.sampled_from([4, 6]), "blocks": 2},
)

#: A block of 8 rows, a group of 4 and 3 that are left, and an eps that shows in all of them.
#: Backward, the first two of three blocks have none of the rows that are left.
_LARGE_EPS = pst.arguments(
    pst.arrays("m n, n", dtype=_DTYPES, dims={"m": 15, "n": [40, 256]}),
    options={"eps": 0.25},
    tuning={"block_rows": 8, "blocks": 3},
)

SPEC = KernelSpec(
    name="row_rms_norm",
    kernel={"gpu": row_rms_norm},
    backends=("gpu-interpret", *TMA),
    reference=reference,
    inputs=st.one_of(_ANY, _LARGE_EPS),
    differentiable=(0, 1),
    relations=(
        Linear(1),
        Permuted({0: 0}, output=0),
        Permuted({0: 1, 1: 0}, output=1),
        Relation("odd in x", _negated, expect=lambda outputs, _: -outputs, exact=True),
    ),
    equivalent=EQUIVALENT,
    typical=(pst.shaped("m n, n", dtype=("bfloat16", "float32"), dims={"m": 8192, "n": 4096}),),
)

SPEC_OVERLAP = dataclasses.replace(
    SPEC,
    name="row_rms_norm_overlap",
    kernel={"gpu": functools.partial(row_rms_norm, overlap=True)},
    equivalent=(),  # which are of the gradient
    backends=tuple(each for each in SPEC.backends if each != "gpu-interpret"),  # griddepcontrol
)
