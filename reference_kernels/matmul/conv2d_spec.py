"""Spec of ``conv2d``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels._gaps import CONVOLUTION, without
from reference_kernels.matmul.conv2d import conv2d, reference

SPEC = KernelSpec(
    name="conv2d",
    kernel=conv2d,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "b h w c, p q c d",
            dtype=pst.floats("bfloat16", "float32"),
            # A dilated window of 3 by 3 fits into the smallest image.
            dims={
                "b": [1, 2],
                "h": [5, 8, 13],
                "w": [6, 16, 17],
                "c": [3, 128, 130],
                "p": [1, 3],
                "q": [1, 2, 3],
                "d": [8, 129],
            },
        ),
        options={
            "stride": st.sampled_from([1, 2]),
            "dilation": st.sampled_from([1, 2]),
            "padding": st.sampled_from(["SAME", "VALID"]),
        },
    ),
    exact=True,
    batch_axes=(0, None),
    relations=(
        Linear(0),
        Linear(1),
        Permuted({0: 0}, output=0),
        Permuted({1: 3}, output=3),
        Permuted({0: 3, 1: 2}),
    ),
    typical=(
        pst.shaped(
            "b h w c, p q c d",
            dtype="bfloat16",
            dims={"b": 8, "h": 56, "w": 56, "c": 128, "p": 3, "q": 3, "d": 256},
        ),
    ),
    backends=without(CONVOLUTION),
)
