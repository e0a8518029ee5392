"""Spec of ``reduce_rows``."""

from __future__ import annotations

from typing import get_args

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels import _gpu
from reference_kernels.mosaic_gpu._claims import ANY
from reference_kernels.mosaic_gpu.reduce_rows import _NEW, Operation, reduce_rows, reference

SPEC = KernelSpec(
    name="reduce_rows",
    kernel={"gpu": reduce_rows},
    backends=ANY if _gpu.has(*_NEW) else (),
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n",
            dtype=pst.floats("bfloat16", "float32", "float16"),
            dims={"m": [1, 8, 11], "n": [40, 256, 2176]},
        ),
        options={"op": st.sampled_from(get_args(Operation))},
        tuning={
            "block_rows": st.sampled_from([None, 4, 6]),
            "accumulators": st.sampled_from([1, 4]),
        },
    ),
    relations=(Permuted({0: 0}, output=0), Permuted({0: 1})),
    typical=(
        pst.shaped("m n", dtype="bfloat16", dims={"m": 8192, "n": 8192}),
        pst.shaped("m n", dtype="float32", dims={"m": 8192, "n": 1024}),
    ),
)
