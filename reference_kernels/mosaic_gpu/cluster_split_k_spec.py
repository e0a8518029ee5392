"""Specs of ``cluster_split_k``."""

from __future__ import annotations

import functools

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec
from reference_kernels import _gpu
from reference_kernels.mosaic_gpu import _products_spec as products
from reference_kernels.mosaic_gpu._claims import WGMMA
from reference_kernels.mosaic_gpu.cluster_split_k import _NEW, Transport, cluster_split_k
from reference_kernels.mosaic_gpu.hopper_matmul import reference


def _spec(by: Transport) -> KernelSpec:
    return KernelSpec(
        name=f"cluster_split_k_{by}",
        kernel={"gpu": functools.partial(cluster_split_k, by=by)},
        backends=WGMMA if _gpu.has(_NEW) else (),
        reference=reference,
        inputs=pst.arguments(
            # Also fewer steps than there are blocks.
            products.operands({"m": 64, "n": 64}, k=[1, 65, 200, 640]),
            tuning={
                "cluster": st.sampled_from([1, 2, 4]),
                "block_n": st.sampled_from([128, 256]),
                "stages": st.sampled_from([2, 3]),
            },
        ),
        exact=True,
        relations=products.RELATIONS,
        typical=(
            pst.shaped(
                "m k, k n",
                dtype="bfloat16",
                dims={"m": 128, "k": 16384, "n": 2048},
                tuning={"cluster": 4},
            ),
        ),
    )


SPEC = _spec("push")

SPEC_PULL = _spec("pull")
