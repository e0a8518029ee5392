"""Spec of ``ampere_matmul``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec
from reference_kernels.mosaic_gpu import _products_spec as products
from reference_kernels.mosaic_gpu._claims import ANY
from reference_kernels.mosaic_gpu.ampere_matmul import ampere_matmul
from reference_kernels.mosaic_gpu.hopper_matmul import reference

SPEC = KernelSpec(
    name="ampere_matmul",
    kernel={"gpu": ampere_matmul},
    backends=ANY,
    reference=reference,
    inputs=pst.arguments(
        products.operands({"m": 64, "n": 64, "k": 32}),
        tuning={
            "block_m": 64,
            "block_n": st.sampled_from([64, 128]),
            "block_k": st.sampled_from([32, 64]),
            "stages": st.sampled_from([2, 3]),
        },
    ),
    exact=True,
    relations=products.RELATIONS,
    typical=(products.large(),),
)
