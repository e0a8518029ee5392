"""Spec of ``ppermute``."""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels._gaps import REACHING, without
from reference_kernels._mesh_spec import ONE_AXIS
from reference_kernels.collectives.ppermute import ppermute_on_mesh, reference


@st.composite
def _options(draw: st.DrawFn, mesh: jax.sharding.Mesh) -> dict[str, Any]:
    """An axis, and some of the pairs of a permutation of it: at least one."""
    axis_name = draw(st.sampled_from(mesh.axis_names))
    devices = mesh.shape[axis_name]
    targets = draw(pst.permutations(devices))
    pairs = [(source, int(target)) for source, target in enumerate(targets)]
    kept = draw(st.lists(st.sampled_from(pairs), min_size=1, max_size=devices, unique=True))
    return {"axis_name": axis_name, "perm": tuple(kept)}


@st.composite
def _inputs(draw: st.DrawFn, mesh: jax.sharding.Mesh) -> pst.Arguments:
    drawn = draw(
        pst.arrays(
            "devices m n",
            dtype=pst.dtypes("bfloat16", "float32", "int32"),
            dims={"devices": mesh.size, "m": [1, 8, 9], "n": [1, 128, 130]},
        )
    )
    options = draw(_options(mesh))
    return pst.Arguments(
        args=tuple(drawn), options=options, recipe=drawn.recipe, declared=drawn.declared
    )


def _typical(mesh: jax.sharding.Mesh) -> Any:
    """A shift along each axis, as between the stages of a pipeline: the first gets nothing."""
    return [
        pst.shaped(
            "devices m n",
            dtype="bfloat16",
            dims={"devices": mesh.size, "m": 256, "n": 1024},
            options={
                "axis_name": axis,
                "perm": tuple((i, i + 1) for i in range(devices - 1)) or ((0, 0),),
            },
        )
        for axis, devices in mesh.shape.items()
    ]


SPEC = KernelSpec(
    name="ppermute",
    kernel=ppermute_on_mesh,
    reference=reference,
    inputs=_inputs,
    meshes=(ONE_AXIS, "x y"),
    backends=without(REACHING),
    exact=True,
    relations=(Linear(0), Permuted({0: 1}, output=1, exact=True)),
    vmappable=False,  # a remote DMA under vmap of a shard_map is not supported by Pallas
    equivalent=(
        EquivalentMutant(
            operator="guard",
            change="always",
            source="pl.when(target == me)(lambda: pltpu.sync_copy(x_ref, o_ref))",
            reason="done before anybody may send: what arrives overwrites it, and where nothing "
            "arrives, zeros replace it",
        ),
    ),
    typical=_typical,
)
