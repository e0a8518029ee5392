"""Spec of ``reduce_scatter``."""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear
from reference_kernels._gaps import REACHING, without
from reference_kernels.collectives import _reduce_ring as ring
from reference_kernels.collectives._reduce_ring_spec import EQUIVALENT, VALUES
from reference_kernels.collectives.reduce_scatter import reduce_scatter_on_mesh, reference

_LAYOUTS = (
    ("devices s n", {"scatter_dimension": 0, "tiled": True}),
    ("devices n s", {"scatter_dimension": 1, "tiled": True}),
    ("devices n ring", {"scatter_dimension": -1, "tiled": False}),
)


def _inputs(mesh: jax.sharding.Mesh) -> Any:
    def call(axis_name: str, shape: str, options: dict[str, Any]) -> Any:
        ring_size = mesh.shape[axis_name]
        dims = {
            "devices": mesh.size,
            "ring": ring_size,
            # From a part of a tile to several groups of pieces.
            "s": [ring_size * each for each in (1, 3, 40)],
            "n": [1, 128, 130],
        }
        used = {name: dims[name] for name in shape.split()}
        return pst.arguments(
            pst.arrays(shape, dtype=pst.dtypes(*ring.DTYPES), values=VALUES, dims=used),
            options={"axis_name": axis_name, **options},
            tuning={"piece_bytes": 2**12},
        )

    calls = [call(name, *layout) for name in mesh.axis_names for layout in _LAYOUTS]
    return st.one_of(calls)


def _typical(mesh: jax.sharding.Mesh) -> Any:
    return [
        pst.shaped(
            "devices s n",
            dtype=dtype,
            dims={"devices": mesh.size, "s": mesh.shape[axis] * 512, "n": 2048},
            options={"axis_name": axis, "tiled": True},
        )
        for dtype in ("bfloat16", "float32")
        for axis in mesh.axis_names
    ]


SPEC = KernelSpec(
    name="reduce_scatter",
    kernel=reduce_scatter_on_mesh,
    reference=reference,
    inputs=_inputs,
    meshes=({"x": 1}, "x"),  # others are in the tests
    backends=without(REACHING),
    exact=2**20,  # sums of integers of 8 bits do not fit in bfloat16
    relations=(Linear(0),),
    equivalent=EQUIVALENT,
    vmappable=False,  # a remote DMA under vmap of a shard_map is not supported by Pallas
    typical=_typical,
)
