"""Specs of ``hopper_matmul_pipelined``."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec
from reference_kernels.mosaic_gpu import _products_spec as products
from reference_kernels.mosaic_gpu._claims import WGMMA
from reference_kernels.mosaic_gpu.hopper_matmul import reference
from reference_kernels.mosaic_gpu.hopper_matmul_pipelined import hopper_matmul_pipelined


def _inputs(**tuning: Any) -> Any:
    return pst.arguments(
        products.operands({"m": 128, "n": 64}, **products.TERMS),
        # A part of the output, and so many that their slots are used again.
        tuning={
            "block_n": st.sampled_from([64, 192]),
            "stages": st.sampled_from([2, 3]),
            **tuning,
        },
    )


SPEC = KernelSpec(
    name="hopper_matmul_pipelined",
    kernel={"gpu": functools.partial(hopper_matmul_pipelined, specialize=False)},
    backends=("gpu-interpret", *WGMMA),
    reference=reference,
    inputs=_inputs(block_m=64),
    exact=True,
    relations=products.RELATIONS,
    typical=(products.large(),),
)

SPEC_OVERLAP = dataclasses.replace(
    SPEC,
    name="hopper_matmul_pipelined_overlap",
    kernel={"gpu": functools.partial(hopper_matmul_pipelined, specialize=False, overlap=True)},
    backends=WGMMA,  # JAX interprets no griddepcontrol
    relations=(),
)

SPEC_SPECIALIZED = dataclasses.replace(
    SPEC,
    name="hopper_matmul_pipelined_specialized",
    kernel={"gpu": hopper_matmul_pipelined},
    # Few programs, so that each gets several tiles.
    inputs=_inputs(programs=st.sampled_from([1, 2])),
)
