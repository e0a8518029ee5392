"""Spec of ``ragged_row_sum``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.mosaic_gpu._claims import BLACKWELL
from reference_kernels.mosaic_gpu.ragged_row_sum import ragged_row_sum, reference


def _ignored(x: Any, lengths: Any) -> tuple[Any, None]:
    """What is beyond the length of a row."""
    return jnp.arange(x.shape[1]) >= jnp.asarray(lengths)[:, None], None


SPEC = KernelSpec(
    name="ragged_row_sum",
    kernel={"gpu": ragged_row_sum},
    backends=("gpu-interpret", *BLACKWELL),
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n",
            dtype=pst.floats("float32", "bfloat16"),
            dims={"m": [1, 3, 9], "n": [1, 512, 700]},
        ),
        then=lambda drawn: {
            "lengths": pst.lengths(drawn.recipe["m"], max_length=drawn.recipe["n"], around=512)
        },
    ),
    exact=True,
    vmappable=False,  # as with dynamic_scheduling_loop
    relations=(Linear(0), Permuted({0: 0, 1: 0}, output=0)),
    ignored=_ignored,
    typical=(pst.shaped("m n, m", dtype=("bfloat16", "int32"), dims={"m": 8192, "n": 8192}),),
)
