"""Specs of ``row_softmax``."""

from __future__ import annotations

import dataclasses
import functools

import jax.numpy as jnp
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.mosaic_gpu._claims import TMA
from reference_kernels.mosaic_gpu.row_softmax import row_softmax
from reference_kernels.reductions.softmax import reference


def _with_rows_of_each_kind(drawn: pst.Drawn) -> pst.Drawn:
    """Of three rows, one is all ``-inf``, one 64 times as large, and one half ``-inf``.

    exp overflows at 89: without the maximum, the second has no softmax.
    """
    x = drawn[0].copy()
    x[::3] = -jnp.inf
    x[1::3] *= 64
    x[2::3, ::2] = -jnp.inf
    return pst.Drawn((x,), {**drawn.recipe, "rows": "of each kind"}, declared=drawn.declared)


_DTYPE = pst.floats("bfloat16", "float32", "float16")
_ANY = pst.arguments(
    pst.arrays("m n", dtype=_DTYPE, dims={"m": [1, 8, 11], "n": [40, 256, 2176]}),
    tuning={"block_rows": st.sampled_from([4, 6])},
)

#: A block of 8 rows, a group of 4 and 3 that are left: there are rows of each kind in all of them.
_MASKED = pst.arguments(
    pst.arrays("m n", dtype=_DTYPE, dims={"m": 15, "n": [40, 256]}).map(_with_rows_of_each_kind),
    tuning={"block_rows": 8},
)

SPEC = KernelSpec(
    name="row_softmax",
    kernel={"gpu": row_softmax},
    backends=("gpu-interpret", *TMA),
    reference=reference,
    inputs=st.one_of(_ANY, _MASKED),
    differentiable=(0,),
    relations=(Permuted({0: 0}, output=0), Permuted({0: 1}, output=1)),
    typical=(
        pst.shaped("m n", dtype="bfloat16", dims={"m": 8192, "n": 8192}),
        pst.shaped("m n", dtype="float32", dims={"m": 8192, "n": 1024}),
    ),
)

SPEC_OVERLAP = dataclasses.replace(
    SPEC,
    name="row_softmax_overlap",
    kernel={"gpu": functools.partial(row_softmax, overlap=True)},
    backends=tuple(each for each in SPEC.backends if each != "gpu-interpret"),  # griddepcontrol
)
