"""Specs of ``blackwell_scaled_matmul``."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.mosaic_gpu._claims import BLACKWELL
from reference_kernels.mosaic_gpu.blackwell_scaled_matmul import (
    _FORMATS,
    blackwell_scaled_matmul,
    reference,
)


def _inputs(block: int, *formats: tuple[str, str]) -> Any:
    return pst.arguments(
        pst.arrays(
            "m k, n k, m s, n s; k = b*s",
            dtype=pst.dtype_pairs(*((each, each, scale, scale) for each, scale in formats)),
            dims={"m": [128, 256], "n": [128, 384], "b": block, "s": [256 // block, 768 // block]},
        ),
        tuning={"stages": st.sampled_from([2, 3])},
    )


def _typical(block: int, *formats: tuple[str, str]) -> tuple[pst.Arguments, ...]:
    return tuple(
        pst.shaped(
            "m k, n k, m s, n s",
            dtype=[each, each, scale, scale],
            dims={"m": 4096, "k": 4096, "n": 8192, "s": 4096 // block},
        )
        for each, scale in formats
    )


def _spec(name: str, block: int, *formats: tuple[str, str]) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel={"gpu": blackwell_scaled_matmul},
        reference=reference,
        inputs=_inputs(block, *formats),
        backends=BLACKWELL,
        exact=True,
        relations=(Permuted({0: 0, 2: 0}, output=0), Permuted({1: 0, 3: 0}, output=1)),
        typical=_typical(block, *formats),
        file=__file__,
        family="mosaic_gpu",
    )


SPEC_MX = _spec("blackwell_matmul_mx", 32, *(each for each in _FORMATS if _FORMATS[each] == 32))
SPEC_NV = _spec("blackwell_matmul_nv", 16, *(each for each in _FORMATS if _FORMATS[each] == 16))
