"""Spec of ``peer_all_gather_matmul``."""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels._mesh_spec import ONE_AXIS
from reference_kernels.mosaic_gpu._claims import WGMMA
from reference_kernels.mosaic_gpu.peer_all_gather_matmul import (
    peer_all_gather_matmul_on_mesh,
    reference,
)


def _inputs(mesh: jax.sharding.Mesh) -> Any:
    return pst.arguments(
        pst.arrays(
            "devices m k, devices k n",
            dtype=pst.floats("bfloat16", "float16"),
            dims={"devices": mesh.size, "m": [1, 129, 200], "k": [1, 129, 300], "n": [8, 129]},
        ),
        options={"axis_name": st.sampled_from(mesh.axis_names)},
        tuning={
            "movers": st.sampled_from([1, 2]),
            "programs": st.sampled_from([3, 4]),
            "stages": 3,
        },
    )


def _typical(mesh: jax.sharding.Mesh) -> Any:
    dims = {"devices": mesh.size, "m": 1024, "k": 4096, "n": 4096}
    return [
        pst.shaped(
            "devices m k, devices k n",
            dtype="bfloat16",
            dims=dims,
            options={"axis_name": mesh.axis_names[0]},
        )
    ]


SPEC = KernelSpec(
    name="peer_all_gather_matmul",
    kernel={"gpu": peer_all_gather_matmul_on_mesh},
    reference=reference,
    inputs=_inputs,
    meshes=(ONE_AXIS, "x y"),
    backends=WGMMA,  # wgmma
    exact=True,
    relations=(Linear(0), Linear(1), Permuted({0: 2, 1: 1}), Permuted({1: 2}, output=2)),
    vmappable=False,  # as on_each_device
    typical=_typical,
)
