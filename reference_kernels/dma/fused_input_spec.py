"""Spec of ``fused_input``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.dma.fused_input import multiply_add_one, reference

_PERMUTED = tuple(Permuted({0: axis, 1: axis}, output=axis, exact=True) for axis in (0, 1))

SPEC = KernelSpec(
    name="multiply_add_one",
    kernel=multiply_add_one,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m n, m n",
            dtype=pst.floats("bfloat16", "float32"),
            around={"m": 16, "n": 128},
        ),
        tuning={"block": (16, 128), "fused": st.booleans()},
    ),
    exact=True,
    batch_axes=(0, 0),
    relations=_PERMUTED,
    typical=(pst.shaped("m n, m n", dtype="bfloat16", dims={"m": 4096, "n": 1024}),),
)
