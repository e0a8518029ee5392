"""Spec of ``hopper_matmul_persistent``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec
from reference_kernels.mosaic_gpu import _products_spec as products
from reference_kernels.mosaic_gpu._claims import WGMMA
from reference_kernels.mosaic_gpu.hopper_matmul import reference
from reference_kernels.mosaic_gpu.hopper_matmul_persistent import hopper_matmul_persistent

_TUNING = {
    "block_n": 64,
    "stages": st.sampled_from([2, 3]),
    "cluster": st.sampled_from([1, 2]),
    "width": st.sampled_from([1, 2]),
    # Few, so that a cluster gets several tiles.
    "clusters": st.sampled_from([1, 2]),
}

SPEC = KernelSpec(
    name="hopper_matmul_persistent",
    kernel={"gpu": hopper_matmul_persistent},
    backends=("gpu-interpret", *WGMMA),
    reference=reference,
    inputs=pst.arguments(
        products.operands({"m": 128, "n": 64}, **products.TERMS),
        tuning=_TUNING,
    ),
    exact=True,
    differentiable=(0, 1),
    relations=products.RELATIONS,
    equivalent=(
        EquivalentMutant(
            operator="arithmetic",
            change="sub -> add",
            source="- cluster + clusters - 1, clusters)",
            reason="tiles that are too many lie outside of the output, where TMA writes nothing",
        ),
    ),
    typical=(
        products.large(),
        products.large(m=8192, k=8192, n=8192),
    ),
)
