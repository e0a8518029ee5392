"""Spec of ``all_gather``."""

from __future__ import annotations

from typing import Any, get_args

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels._gaps import REACHING, without
from reference_kernels._mesh_spec import ENTERED, ONE_AXIS
from reference_kernels.collectives.all_gather import Schedule, all_gather_on_mesh, reference


def _inputs(mesh: jax.sharding.Mesh) -> Any:
    return pst.arguments(
        pst.arrays(
            "devices m n",
            dtype=pst.dtypes("bfloat16", "float32", "int32"),
            dims={"devices": mesh.size, "m": [1, 9, 16, 17], "n": [1, 130, 256]},
        ),
        options={
            "axis_name": st.sampled_from(mesh.axis_names),
            "axis": st.sampled_from([0, 1]),
            "tiled": st.booleans(),
        },
        tuning={"schedule": st.sampled_from(get_args(Schedule))},
    )


def _typical(mesh: jax.sharding.Mesh) -> Any:
    dims = {"devices": mesh.size, "m": 1024, "n": 2048}
    return [
        pst.shaped(
            "devices m n",
            dtype="bfloat16",
            dims=dims,
            options={"axis_name": axis_name, "tiled": True},
            tuning={"schedule": schedule},
        )
        for axis_name in mesh.axis_names
        for schedule in get_args(Schedule)
    ]


def _leading(arguments: pst.Arguments) -> bool:
    return arguments.options["axis"] == 0


SPEC = KernelSpec(
    name="all_gather",
    kernel=all_gather_on_mesh,
    reference=reference,
    inputs=_inputs,
    meshes=(ONE_AXIS, "x y"),
    backends=without(REACHING),
    exact=True,
    relations=(Linear(0), Permuted({0: 2}, output=-1, exact=True, when=_leading)),
    vmappable=False,  # a remote DMA under vmap of a shard_map is not supported by Pallas
    equivalent=(ENTERED,),
    typical=_typical,
)
