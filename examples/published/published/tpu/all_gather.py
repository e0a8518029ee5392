"""`all_gather`: a ring, of which each device sends one half each way."""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st
from jax.experimental.pallas import tpu as pltpu
from jax.experimental.pallas.ops.tpu.all_gather import all_gather

from published.failures import TPU, fails
from pytest_pallas import KernelSpec
from pytest_pallas import strategies as pst


def reference(x: Any, *, mesh: jax.sharding.Mesh) -> Any:
    del mesh
    return x


def gathered(x: Any, *, mesh: jax.sharding.Mesh, memory: str) -> Any:
    space = getattr(pltpu.MemorySpace, memory)
    return all_gather(x, mesh=mesh, axis_name="x", memory_space=space)


def gathered_by_two(x: Any, *, mesh: jax.sharding.Mesh, memory: str) -> Any:
    """``gathered``, for the number of devices on which its one semaphore is enough."""
    if mesh.shape["x"] > 2:
        raise ValueError(f"all_gather is for 2 devices along x here, not {mesh.shape['x']}")
    return gathered(x, mesh=mesh, memory=memory)


def _inputs(rows: list[int]) -> Any:
    def inputs(mesh: jax.sharding.Mesh) -> Any:
        return pst.arguments(
            pst.arrays(
                "rows n",
                dtype=pst.dtypes("bfloat16", "float32", "int32"),
                dims={"rows": [mesh.shape["x"] * each for each in rows], "n": [128, 130, 256]},
            ),
            tuning={"memory": st.sampled_from(["VMEM", "HBM"])},
        )

    return inputs


def _spec(
    name: str, rows: list[int], *meshes: dict[str, int], kernel: Any = gathered, **rest: Any
) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel=kernel,
        reference=reference,
        backends=TPU,
        meshes=meshes,
        inputs=_inputs(rows),
        exact=True,
        vmappable=False,
        **rest,
    )


ALL_GATHER = _spec("all_gather", [16, 32], {"x": 2}, {"x": 2, "y": 2}, kernel=gathered_by_two)
ALL_GATHER_RING = _spec(
    "all_gather_ring",
    [16, 32],
    {"x": 4},
    {"x": 8},
    checks=("forward",),
    xfail=fails(
        "tpu-sim",
        "a neighbor's next half may satisfy the wait for this one: one semaphore",
        hardware=False,
    ),
)
ALL_GATHER_ODD = _spec(
    "all_gather_odd",
    [1, 15, 33],
    {"x": 2},
    checks=("forward",),
    xfail=fails("tpu-sim", "the last of an odd number of rows is in neither half", "forward"),
)
