"""Spec of ``hopper_conv2d``."""

from __future__ import annotations

from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels import _gpu
from reference_kernels.matmul.conv2d import reference
from reference_kernels.mosaic_gpu._claims import WGMMA
from reference_kernels.mosaic_gpu.hopper_conv2d import hopper_conv2d

# Not "gpu-interpret", which cannot; before JAX 0.12, none of them.
SPEC = KernelSpec(
    name="hopper_conv2d",
    kernel={"gpu": hopper_conv2d},
    backends=WGMMA if _gpu.has("im2col_ref") else (),
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "b h w c, p q c d",
            dtype=pst.floats("bfloat16", "float16"),
            # A block of 64 pixels holds parts of lines and of images, or several images.
            dims={
                "b": [1, 3],
                "h": [4, 5, 13],
                "w": [5, 8, 17],
                "c": [3, 64, 130],
                "p": [1, 3, 4],
                "q": [1, 2, 5],
                "d": [8, 129],
            },
        ),
        options={"padding": st.sampled_from(["SAME", "VALID"])},
        tuning={
            "block_m": 64,
            "block_n": st.sampled_from([64, 128, 192]),
            "stages": st.sampled_from([2, 3]),
        },
    ),
    exact=True,
    vmappable=False,  # im2col_ref wants a reference as it is, and vmap slices it (JAX 0.12.0.1)
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
            dims={"b": 32, "h": 56, "w": 56, "c": 128, "p": 3, "q": 3, "d": 256},
        ),
    ),
)
