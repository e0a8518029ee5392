"""Spec of ``peer_all_reduce``."""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels import _gpu
from reference_kernels._mesh_spec import ONE_AXIS
from reference_kernels.mosaic_gpu._claims import TMA
from reference_kernels.mosaic_gpu._peers_spec import schedules
from reference_kernels.mosaic_gpu.peer_all_reduce import _NEW, peer_all_reduce_on_mesh, reference


def _inputs(mesh: jax.sharding.Mesh) -> Any:
    return pst.arguments(
        pst.arrays(
            "devices m n",
            dtype=pst.floats("float32", "bfloat16", "float16"),
            # Fewer and more tiles than there are devices and programs.
            dims={"devices": mesh.size, "m": [1, 9, 17], "n": [1, 130, 512]},
        ),
        options={"axis_name": st.sampled_from(mesh.axis_names)},
        tuning={
            "schedule": st.sampled_from(schedules(mesh)),
            "programs": st.sampled_from([1, 3]),
        },
    )


def _typical(mesh: jax.sharding.Mesh) -> Any:
    return [
        pst.shaped(
            "devices m n",
            dtype="bfloat16",
            dims={"devices": mesh.size, "m": 64, "n": 8192},
            options={"axis_name": mesh.axis_names[0]},
            tuning={"schedule": schedule},
        )
        for schedule in schedules(mesh)
    ]


SPEC = KernelSpec(
    name="peer_all_reduce",
    kernel={"gpu": peer_all_reduce_on_mesh},
    reference=reference,
    inputs=_inputs,
    meshes=(ONE_AXIS, "x y"),
    backends=TMA if _gpu.has(_NEW) else (),
    exact=True,
    relations=(Linear(0), Permuted({0: 2}, output=-1, exact=True)),
    vmappable=False,  # as on_each_device
    typical=_typical,
)
