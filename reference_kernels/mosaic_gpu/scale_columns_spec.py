"""Spec of ``scale_columns``."""

from __future__ import annotations

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.mosaic_gpu._claims import ANY
from reference_kernels.mosaic_gpu.scale_columns import reference, scale_columns

SPEC = KernelSpec(
    name="scale_columns",
    kernel={"gpu": scale_columns},
    backends=ANY,
    reference=reference,
    inputs=pst.arrays(
        "m n, n",
        dtype=pst.floats("float32", "bfloat16", "float16"),
        dims={"m": [1, 64, 70], "n": [1, 128, 300]},
    ),
    exact=True,
    vmappable=False,  # pl.kernel has no batching rule
    relations=(Linear(0), Linear(1), Permuted({0: 0}, output=0), Permuted({0: 1, 1: 0}, output=1)),
    typical=(pst.shaped("m n, n", dtype="bfloat16", dims={"m": 8192, "n": 4096}),),
)
