"""Specs of ``hopper_matmul``."""

from __future__ import annotations

import dataclasses

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.relations import Linear, Permuted
from pytest_pallas.spec import KernelSpec
from reference_kernels.mosaic_gpu._claims import WGMMA
from reference_kernels.mosaic_gpu.hopper_matmul import hopper_matmul, reference

_DTYPE = pst.floats("bfloat16", "float16")
_AROUND = {"m": 64, "n": 64}
_TERMS = {"k": [1, 65, 200, 320]}  # up to five steps: more than there are stages
_MAX_BYTES = 2**17
_BLOCKS = {
    "block_m": 64,
    "block_n": st.sampled_from([64, 128, 192]),  # stored in one part, in two, and in one's place
    "stages": st.sampled_from([2, 3]),
}
_BACKENDS = ("gpu-interpret", *WGMMA)

#: Rows of ``x``, and the terms of every sum.
_PERMUTED = (Permuted({0: 0}, output=0), Permuted({0: 1, 1: 0}))

_LARGE = {"m": 4096, "k": 4096, "n": 4096}

SPEC = KernelSpec(
    name="hopper_matmul",
    kernel={"gpu": hopper_matmul},
    backends=_BACKENDS,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("m k, k n", dtype=_DTYPE, around=_AROUND, dims=_TERMS, max_bytes=_MAX_BYTES),
        options={"out_dtype": st.sampled_from([None, "float32"])},
        tuning=_BLOCKS,
    ),
    exact=True,
    # Its gradient is that of SPEC_ACTIVATION. No batch_axes: under shard_map the interpreter takes
    # the barriers of one device for leftovers of another (JAX 0.12.0.1).
    relations=(Linear(0), Linear(1), *_PERMUTED),
    typical=(
        pst.shaped("m k, k n", dtype="bfloat16", dims=_LARGE),
        pst.shaped("m k, k n", dtype="float16", dims={"m": 8192, "k": 8192, "n": 8192}),
    ),
)

SPEC_ACTIVATION = KernelSpec(
    name="hopper_matmul_activation",
    kernel={"gpu": hopper_matmul},
    backends=_BACKENDS,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("m k, n k", dtype=_DTYPE, around=_AROUND, dims=_TERMS, max_bytes=_MAX_BYTES),
        # Smooth ones only: at the kink of relu, rounding decides the gradient.
        options={
            "activation": st.sampled_from([jax.nn.silu, jax.nn.gelu]),
            "transpose_rhs": True,
        },
        tuning=_BLOCKS,
    ),
    differentiable=(0, 1),
    relations=(Permuted({0: 0}, output=0), Permuted({0: 1, 1: 1})),
    typical=(
        dataclasses.replace(
            pst.shaped("m k, n k", dtype="bfloat16", dims=_LARGE),
            options={"activation": jax.nn.gelu, "transpose_rhs": True},
        ),
    ),
)

SPEC_FLOAT8 = KernelSpec(
    name="hopper_matmul_float8",
    kernel={"gpu": hopper_matmul},
    backends=_BACKENDS,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m k, n k",
            dtype=pst.floats("float8_e4m3fn"),
            around=_AROUND,
            dims={"k": [1, 130, 400, 640]},  # as many steps, of twice as many terms
            max_bytes=_MAX_BYTES,
        ),
        options={"transpose_rhs": True, "out_dtype": st.sampled_from([None, "float32"])},
        tuning=_BLOCKS,
    ),
    exact=True,
    relations=(Permuted({0: 0}, output=0), Permuted({0: 1, 1: 1})),
    typical=(
        dataclasses.replace(
            pst.shaped("m k, n k", dtype="float8_e4m3fn", dims=_LARGE),
            options={"transpose_rhs": True},
        ),
    ),
)
