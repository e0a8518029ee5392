"""Specs of ``split_k``."""

from __future__ import annotations

import dataclasses
import functools

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.mosaic_gpu import _products_spec as products
from reference_kernels.mosaic_gpu._claims import WGMMA
from reference_kernels.mosaic_gpu.split_k import Addition, reference, split_k_matmul

_LONG = pst.shaped("m k, k n", dtype="bfloat16", dims={"m": 128, "k": 65536, "n": 512})


def _spec(name: str, by: Addition) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel={"gpu": functools.partial(split_k_matmul, by=by)},
        backends=WGMMA,
        reference=reference,
        inputs=pst.arguments(
            products.operands({"m": 128, "n": 64}, **products.TERMS),
            tuning={
                "block_n": st.sampled_from([64, 128]),
                "splits": st.sampled_from([1, 2, 3]),
                "stages": 2,
                "cluster": st.sampled_from([1, 2]),
            },
        ),
        exact=True,
        vmappable=by == "sum",  # a reference that is written has no axis of a batch
        deterministic=by == "sum",  # otherwise blocks add in any order
        relations=(Permuted({0: 1, 1: 0}),),
        typical=(dataclasses.replace(_LONG, tuning={"splits": 32}),),
    )


SPEC = _spec("split_k_matmul", "sum")

SPEC_TMA = _spec("split_k_matmul_tma", "tma")

SPEC_ATOMIC = _spec("split_k_matmul_atomic", "atomic")
