"""Spec of ``right_permute``."""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels._gaps import REACHING, without
from reference_kernels._mesh_spec import ONE_AXIS
from reference_kernels.collectives.right_permute import reference, right_permute_on_mesh


def _inputs(mesh: jax.sharding.Mesh) -> Any:
    return pst.arguments(
        pst.arrays(
            "devices m n",
            dtype=pst.dtypes("bfloat16", "float32", "int32"),
            dims={"devices": mesh.size, "m": [1, 8, 9, 16], "n": [1, 128, 130]},
        ),
        options={"axis_name": st.sampled_from(mesh.axis_names)},
    )


def _typical(mesh: jax.sharding.Mesh) -> Any:
    dims = {"devices": mesh.size, "m": 256, "n": 1024}
    return [
        pst.shaped("devices m n", dtype="bfloat16", dims=dims, options={"axis_name": axis})
        for axis in mesh.axis_names
    ]


SPEC = KernelSpec(
    name="right_permute",
    kernel=right_permute_on_mesh,
    reference=reference,
    inputs=_inputs,
    meshes=(ONE_AXIS, "x y"),
    backends=without(REACHING),
    exact=True,
    relations=(Linear(0), Permuted({0: 1}, output=1, exact=True)),
    vmappable=False,  # a remote DMA under vmap of a shard_map is not supported by Pallas
    typical=_typical,
)
