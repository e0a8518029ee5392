"""Spec of ``all_gather_matmul``."""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels._gaps import REACHING, without
from reference_kernels.collective_matmul.all_gather_matmul import (
    all_gather_matmul_on_mesh,
    reference,
)


def _inputs(mesh: jax.sharding.Mesh) -> Any:
    return pst.arguments(
        pst.arrays(
            "devices m k, devices k n",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"devices": mesh.size, "m": [1, 48], "k": [1, 129], "n": [129]},
        ),
        options={"axis_name": st.sampled_from(mesh.axis_names)},
        tuning={"block_m": 16, "block_n": 128, "block_k": 128},
    )


def _typical(mesh: jax.sharding.Mesh) -> Any:
    dims = {"devices": mesh.size, "m": 1024, "k": 4096, "n": 1024}
    return [
        pst.shaped("devices m k, devices k n", dtype=dtype, dims=dims, options={"axis_name": axis})
        for dtype in ("bfloat16", "float32")
        for axis in mesh.axis_names
    ]


SPEC = KernelSpec(
    name="all_gather_matmul",
    kernel=all_gather_matmul_on_mesh,
    reference=reference,
    inputs=_inputs,
    meshes=({"x": 1}, "x"),  # others are in the tests
    backends=without(REACHING),
    exact=True,
    relations=(Linear(0), Linear(1), Permuted({0: 2, 1: 1}), Permuted({1: 2}, output=2)),
    vmappable=False,  # a remote DMA under vmap of a shard_map is not supported by Pallas
    typical=_typical,
)
