"""Specs of ``kernel_matmul``."""

from __future__ import annotations

from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels.matmul.matmul import reference
from reference_kernels.refs.kernel_matmul import kernel_matmul

_ARRAYS = pst.arrays(
    "m k, k n",
    dtype=pst.floats("bfloat16", "float32"),
    dims={"m": [1, 16, 33], "k": [128, 129], "n": [127, 257]},
)
_BLOCKS = {"block_m": 16, "block_n": 128, "block_k": 128}
_RELATIONS = (
    Linear(0),
    Linear(1),
    Permuted({0: 0}, output=0),
    Permuted({0: 1, 1: 0}),
)
_TYPICAL = (pst.shaped("m k, k n", dtype="bfloat16", dims={"m": 2048, "k": 2048, "n": 2048}),)
_EQUIVALENT = (
    EquivalentMutant(
        operator="guard",
        change="always",
        source="@pl.when(step == pl.num_programs(2) - 1)",
        reason="sums that are not complete go to the block that the last step overwrites",
    ),
)

SPEC = KernelSpec(
    name="kernel_matmul",
    kernel=kernel_matmul,
    reference=reference,
    inputs=pst.arguments(_ARRAYS, tuning=_BLOCKS),
    exact=True,
    batch_axes=(0, None),
    relations=_RELATIONS,
    vmappable=False,  # JAX 0.11.2 cannot vmap a pl.kernel with scratch
    typical=_TYPICAL,
    equivalent=_EQUIVALENT,
)

SPEC_CORES = KernelSpec(
    name="kernel_matmul_on_cores",
    kernel=kernel_matmul,
    reference=reference,
    inputs=pst.arguments(
        _ARRAYS,
        tuning={**_BLOCKS, "mesh": pltpu.TensorCoreMesh(axis_name="core", num_cores=2)},
    ),
    # The chips with two cores that act as one device; interpret cannot reach another core.
    backends=("tpu-sim", "tpu-interpret", "tpu-compile:v4", "tpu-compile:v5p", "tpu"),
    exact=True,
    vmappable=False,
    typical=_TYPICAL,
    equivalent=_EQUIVALENT,
)
