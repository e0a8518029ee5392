"""Spec of ``peer_all_gather``."""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels._mesh_spec import ONE_AXIS
from reference_kernels.mosaic_gpu._claims import TMA
from reference_kernels.mosaic_gpu._peers_spec import schedules
from reference_kernels.mosaic_gpu.peer_all_gather import peer_all_gather_on_mesh, reference


def _inputs(mesh: jax.sharding.Mesh) -> Any:
    return pst.arguments(
        pst.arrays(
            "devices m n",
            dtype=pst.dtypes("bfloat16", "float32", "int32", "int8"),
            dims={"devices": mesh.size, "m": [1, 9, 17], "n": [1, 130, 256]},
        ),
        options={"axis_name": st.sampled_from(mesh.axis_names), "tiled": st.booleans()},
        tuning={
            "schedule": st.sampled_from(schedules(mesh)),
            "block_rows": st.sampled_from([4, 8]),
            "programs": st.sampled_from([1, 3]),
        },
    )


def _typical(mesh: jax.sharding.Mesh) -> Any:
    return [
        pst.shaped(
            "devices m n",
            dtype="bfloat16",
            dims={"devices": mesh.size, "m": 4096, "n": 4096},
            options={"axis_name": mesh.axis_names[0], "tiled": True},
            tuning={"schedule": schedule},
        )
        for schedule in schedules(mesh)
    ]


SPEC = KernelSpec(
    name="peer_all_gather",
    kernel={"gpu": peer_all_gather_on_mesh},
    reference=reference,
    inputs=_inputs,
    meshes=(ONE_AXIS, "x y"),
    backends=TMA,
    exact=True,
    relations=(Linear(0), Permuted({0: 2}, output=-1, exact=True)),
    vmappable=False,  # as on_each_device
    typical=_typical,
)
