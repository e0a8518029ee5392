"""Spec of ``all_to_all``."""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear
from reference_kernels._gaps import REACHING, without
from reference_kernels._mesh_spec import ENTERED, ONE_AXIS
from reference_kernels.collectives.all_to_all import all_to_all_on_mesh, reference


@st.composite
def _inputs(draw: st.DrawFn, mesh: jax.sharding.Mesh) -> pst.Arguments:
    axis_name = draw(st.sampled_from(mesh.axis_names))
    split_axis, concat_axis = draw(st.sampled_from([(i, j) for i in range(3) for j in range(3)]))
    tiled = draw(st.booleans())
    dims: dict[str, Any] = {"devices": mesh.size, "a": [1, 3], "b": [1, 9, 16], "c": [1, 130, 128]}
    split = "abc"[split_axis]
    sizes = [1, *([2, (2, 16, 128)[split_axis]] if tiled else [])]  # of a piece along that axis
    dims[split] = [mesh.shape[axis_name] * size for size in sizes]
    drawn = draw(
        pst.arrays("devices a b c", dtype=pst.dtypes("bfloat16", "float32", "int32"), dims=dims)
    )
    return pst.Arguments(
        args=tuple(drawn),
        options={
            "axis_name": axis_name,
            "split_axis": split_axis,
            "concat_axis": concat_axis,
            "tiled": tiled,
        },
        recipe=drawn.recipe,
        declared=drawn.declared,
    )


def _typical(mesh: jax.sharding.Mesh) -> Any:
    """Tokens to experts, and shards of a sequence to shards of heads."""
    return [
        pst.shaped(
            "devices a b c",
            dtype="bfloat16",
            dims={"devices": mesh.size, **dims},
            options={"axis_name": axis_name, "split_axis": split, "concat_axis": 0, "tiled": True},
        )
        for axis_name, devices in mesh.shape.items()
        for split, dims in (
            (0, {"a": devices, "b": 512, "c": 2048}),
            (1, {"a": 1024, "b": 64, "c": 128}),
        )
    ]


SPEC = KernelSpec(
    name="all_to_all",
    kernel=all_to_all_on_mesh,
    reference=reference,
    inputs=_inputs,
    meshes=(ONE_AXIS, "x y"),
    backends=without(REACHING),
    exact=True,
    relations=(Linear(0),),
    vmappable=False,  # a remote DMA under vmap of a shard_map is not supported by Pallas
    equivalent=(ENTERED,),
    typical=_typical,
)
