"""Specs of ``blackwell_mixed_matmul``."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.mosaic_gpu._claims import BLACKWELL
from reference_kernels.mosaic_gpu.blackwell_mixed_matmul import blackwell_mixed_matmul, reference

_BACKENDS = ("gpu-interpret", *BLACKWELL)
_DIMS: dict[str, Any] = {"m": [1, 129], "k": [1, 65, 250], "n": [64, 100]}
_TUNING = {"block_n": 64, "stages": st.sampled_from([2, 3])}
_LARGE: dict[str, Any] = {"m": 4096, "k": 4096, "n": 4096}

SPEC = KernelSpec(
    name="blackwell_mixed_matmul",
    kernel={"gpu": blackwell_mixed_matmul},
    backends=_BACKENDS,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("m k, k n, m", dtype=("int8", "bfloat16", "float32"), dims=_DIMS),
        tuning=_TUNING,
    ),
    relations=(
        Linear(1),
        Linear(2),
        Permuted({0: 1, 1: 0}),
        Permuted({0: 0, 2: 0}, output=0),
        Permuted({1: 1}, output=1),
    ),
    typical=(pst.shaped("m k, k n, m", dtype=("int8", "bfloat16", "float32"), dims=_LARGE),),
)

SPEC_COPIED = KernelSpec(
    name="blackwell_mixed_matmul_copied",
    kernel={"gpu": blackwell_mixed_matmul},
    backends=_BACKENDS,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("m k, k n", dtype=pst.floats("bfloat16"), dims=_DIMS), tuning=_TUNING
    ),
    exact=True,
    relations=(Linear(0), Linear(1), Permuted({0: 1, 1: 0})),
    typical=(pst.shaped("m k, k n", dtype="bfloat16", dims=_LARGE),),
)
