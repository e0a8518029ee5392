"""Specs of ``hopper_matmul``."""

from __future__ import annotations

import dataclasses

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.mosaic_gpu import _products_spec as products
from reference_kernels.mosaic_gpu._claims import WGMMA
from reference_kernels.mosaic_gpu.hopper_matmul import hopper_matmul, reference

_AROUND = {"m": 64, "n": 64}
_BLOCKS = {
    "block_m": 64,
    "block_n": st.sampled_from([64, 128, 192]),  # stored in one part, in two, and in one's place
    "stages": st.sampled_from([2, 3]),
}
_BACKENDS = ("gpu-interpret", *WGMMA)

SPEC = KernelSpec(
    name="hopper_matmul",
    kernel={"gpu": hopper_matmul},
    backends=_BACKENDS,
    reference=reference,
    inputs=pst.arguments(
        products.operands(_AROUND, **products.TERMS),
        options={"out_dtype": st.sampled_from([None, "float32"])},
        tuning=_BLOCKS,
    ),
    exact=True,
    # Its gradient is that of SPEC_ACTIVATION. No batch_axes: under shard_map the interpreter takes
    # the barriers of one device for leftovers of another (JAX 0.12.0.1).
    relations=products.RELATIONS,
    typical=(
        products.large(),
        products.large("float16", m=8192, k=8192, n=8192),
    ),
)

SPEC_ACTIVATION = KernelSpec(
    name="hopper_matmul_activation",
    kernel={"gpu": hopper_matmul},
    backends=_BACKENDS,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays(
            "m k, n k",
            dtype=products.DTYPE,
            around=_AROUND,
            dims=products.TERMS,
            max_bytes=products.MAX_BYTES,
        ),
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
            pst.shaped("m k, n k", dtype="bfloat16", dims=products.LARGE),
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
            around={"m": 64},
            # As many steps, of twice as many terms; and parts that take turns on their way out.
            dims={"k": [1, 130, 400, 640], "n": [1, 64, 129]},
            max_bytes=products.MAX_BYTES,
        ),
        options={"transpose_rhs": True, "out_dtype": st.sampled_from([None, "float32"])},
        tuning={**_BLOCKS, "block_n": st.sampled_from([64, 192])},
    ),
    exact=True,
    relations=(Permuted({0: 0}, output=0), Permuted({0: 1, 1: 1})),
    typical=(
        dataclasses.replace(
            pst.shaped("m k, n k", dtype="float8_e4m3fn", dims=products.LARGE),
            options={"transpose_rhs": True},
        ),
    ),
)
