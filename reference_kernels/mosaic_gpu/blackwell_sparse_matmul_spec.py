"""Spec of ``blackwell_sparse_matmul``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.mosaic_gpu._claims import BLACKWELL
from reference_kernels.mosaic_gpu.blackwell_sparse_matmul import blackwell_sparse_matmul, reference

_DTYPES = ("bfloat16", "float16", "float8_e4m3fn")

SPEC = KernelSpec(
    name="blackwell_sparse_matmul",
    kernel={"gpu": blackwell_sparse_matmul},
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m h, m q, n k; h = 2*q, k = 4*q",
            dtype=pst.dtype_pairs(*((each, "int32", each) for each in _DTYPES)),
            dims={"m": [128, 256], "n": [128, 384], "q": [64, 192]},
        ),
        tuning={"stages": st.sampled_from([2, 3])},
    ),
    backends=BLACKWELL,
    exact=True,
    relations=(
        Linear(0),
        Linear(2),
        Permuted({0: 0, 1: 0}, output=0),
        Permuted({2: 0}, output=1),
    ),
    typical=tuple(
        pst.shaped(
            "m h, m q, n k",
            dtype=[each, "int32", each],
            dims={"m": 4096, "h": 2048, "q": 1024, "k": 4096, "n": 8192},
        )
        for each in _DTYPES[::2]
    ),
)
