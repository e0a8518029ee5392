"""Spec of ``all_reduce``."""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels._gaps import REACHING, without
from reference_kernels.collectives._reduce_ring_spec import EQUIVALENT, VALUES
from reference_kernels.collectives.all_reduce import OPERATIONS, all_reduce_on_mesh, reference


def _linear(arguments: Any) -> bool:
    return arguments.options["op"] in ("sum", "mean")


def _inputs(mesh: jax.sharding.Mesh) -> Any:
    def call(dtypes: tuple[str, ...], operations: tuple[str, ...]) -> Any:
        return pst.arguments(
            pst.arrays(
                "devices m n",
                dtype=pst.dtypes(*dtypes),
                values=VALUES,
                # From less than an element a device to several groups of pieces.
                dims={"devices": mesh.size, "m": [1, 3, 160], "n": [1, 130]},
            ),
            options={
                "axis_name": st.sampled_from(mesh.axis_names),
                "op": st.sampled_from(operations),
            },
            tuning={"piece_bytes": 2**12},
        )

    return st.one_of(call(("bfloat16", "float32"), OPERATIONS), call(("int32",), OPERATIONS[:-1]))


def _typical(mesh: jax.sharding.Mesh) -> Any:
    return [
        pst.shaped(
            "devices m n",
            dtype=dtype,
            dims={"devices": mesh.size, "m": 4096, "n": 2048},
            options={"axis_name": axis, "op": op},
        )
        for dtype, op in (("bfloat16", "sum"), ("bfloat16", "max"), ("float32", "mean"))
        for axis in mesh.axis_names
    ]


SPEC = KernelSpec(
    name="all_reduce",
    kernel=all_reduce_on_mesh,
    reference=reference,
    inputs=_inputs,
    meshes=({"x": 1}, "x"),  # others are in the tests
    backends=without(REACHING),
    exact=2**20,  # sums of integers of 8 bits do not fit in bfloat16
    relations=(Linear(0, when=_linear), Permuted({0: 2}, output=2)),
    equivalent=(
        *EQUIVALENT,
        EquivalentMutant(
            operator="alias",
            change="added",
            source="return pl.pallas_call(",
            part="input 1 output 0",
            reason="shapes agree for one device, which loads a piece before it stores it",
        ),
    ),
    vmappable=False,  # a remote DMA under vmap of a shard_map is not supported by Pallas
    typical=_typical,
)
