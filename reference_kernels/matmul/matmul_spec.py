"""Specs of ``matmul``."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels._gaps import BATCHES, batches_fail, without
from reference_kernels._tpu import ROWS
from reference_kernels.matmul.matmul import batched_matmul, matmul, reference
from reference_kernels.matmul.matmul_naive import matmul_naive

_DTYPE = pst.floats("bfloat16", "float32")
_AROUND = {"m": 16, "k": 128, "n": 128}
_ARRAYS = pst.arrays("m k, k n", dtype=_DTYPE, around=_AROUND)
_BLOCKS = {"block_m": st.sampled_from([ROWS, 128]), "block_n": 128, "block_k": 128}

#: Rows of ``x``, and the terms of every sum.
_PERMUTED = (Permuted({0: 0}, output=0), Permuted({0: 1, 1: 0}))

_LARGE = {"m": 2048, "k": 2048, "n": 2048}
_TYPICAL = pst.shaped("m k, k n", dtype="bfloat16", dims=_LARGE)
_TYPICAL_FLOAT32 = pst.shaped("m k, k n", dtype="float32", dims=_LARGE)

SPEC = KernelSpec(
    name="matmul",
    kernel=matmul,
    reference=reference,
    inputs=pst.arguments(_ARRAYS, tuning=_BLOCKS | {"round_each_step": True}),
    exact=True,
    differentiable=(0, 1),
    batch_axes=(0, None),
    relations=(Linear(0), Linear(1), *_PERMUTED),
    implementations={"matmul_naive": matmul_naive},
    typical=(_TYPICAL, _TYPICAL_FLOAT32),
)

SPEC_ACTIVATION = KernelSpec(
    name="matmul_activation",
    kernel=matmul,
    xfail=batches_fail("vmap"),
    reference=reference,
    inputs=pst.arguments(
        _ARRAYS,
        # Smooth ones only: at the kink of relu, rounding decides the gradient.
        options={"activation": st.sampled_from([jax.nn.silu, jax.nn.gelu, jnp.tanh])},
        tuning=_BLOCKS,
    ),
    differentiable=(0, 1),
    relations=_PERMUTED,
    typical=(dataclasses.replace(_TYPICAL, options={"activation": jax.nn.gelu}),),
)

SPEC_TRANSPOSED = KernelSpec(
    name="matmul_transposed",
    kernel=matmul,
    reference=reference,
    inputs=pst.arguments(
        pst.arrays("m k, n k", dtype=_DTYPE, around=_AROUND),
        options={"transpose_rhs": True},
        tuning=_BLOCKS | {"round_each_step": False},
    ),
    exact=True,
    differentiable=(0, 1),
    batch_axes=(0, None),
    relations=(
        Linear(0),
        Linear(1),
        Permuted({0: 0}, output=0),
        Permuted({1: 0}, output=1),
        Permuted({0: 1, 1: 1}),
    ),
    typical=(
        dataclasses.replace(
            pst.shaped("m k, n k", dtype="bfloat16", dims=_LARGE), options={"transpose_rhs": True}
        ),
    ),
)

SPEC_BATCHED = KernelSpec(
    name="matmul_batched",
    kernel=batched_matmul,
    backends=without(BATCHES),
    reference=jax.vmap(reference),
    inputs=pst.arguments(
        pst.arrays("b m k, b k n", dtype=_DTYPE, around=_AROUND, dims={"b": [1, 2, 3]}),
        tuning=_BLOCKS,
    ),
    exact=True,
    differentiable=(0, 1),
    batch_axes=(0, 0),
    relations=(Linear(0), Linear(1), Permuted({0: 0, 1: 0}, output=0, exact=True)),
    typical=(pst.shaped("b m k, b k n", dtype="bfloat16", dims=_LARGE | {"b": 4}),),
)
