"""Spec of ``matmul_reduce_scatter``."""

from __future__ import annotations

from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels._gaps import REACHING, without
from reference_kernels.collective_matmul.matmul_reduce_scatter import (
    matmul_reduce_scatter_on_mesh,
    reference,
)


def _inputs(mesh: jax.sharding.Mesh) -> Any:
    def call(axis_name: str) -> Any:
        rows = [mesh.shape[axis_name] * m for m in (1, 48)]
        return pst.arguments(
            pst.arrays(
                "devices m k, devices k n",
                dtype=pst.floats("bfloat16", "float32"),
                values=("integers", "rows", "normal"),  # sums of more than 8 bits, and rounded ones
                dims={"devices": mesh.size, "m": rows, "k": [1, 129], "n": [129]},
            ),
            options={"axis_name": axis_name},
            tuning={"block_m": 16, "block_n": 128, "block_k": 128},
        )

    return st.one_of([call(axis_name) for axis_name in mesh.axis_names])


def _typical(mesh: jax.sharding.Mesh) -> Any:
    return [
        pst.shaped(
            "devices m k, devices k n",
            dtype=dtype,
            dims={"devices": mesh.size, "m": 1024 * mesh.shape[axis], "k": 1024, "n": 4096},
            options={"axis_name": axis},
        )
        for dtype in ("bfloat16", "float32")
        for axis in mesh.axis_names
    ]


SPEC = KernelSpec(
    name="matmul_reduce_scatter",
    kernel=matmul_reduce_scatter_on_mesh,
    reference=reference,
    inputs=_inputs,
    meshes=({"x": 1}, "x"),  # others are in the tests
    backends=without(REACHING),
    exact=True,
    relations=(Linear(0), Linear(1), Permuted({0: 2, 1: 1}), Permuted({1: 2}, output=2)),
    equivalent=(
        EquivalentMutant(
            operator="mask",
            change="and -> or",
            source="@pl.when((number == 0) & (step == 0))",
            reason="all devices run the same programs, and wait for each other before some more",
        ),
        EquivalentMutant(
            operator="guard",
            change="always",
            source="pl.when(~first)(lambda: fetch().wait())",
            caller="o_ref[...] = total()",
            reason="the last turn is not the first",
        ),
        EquivalentMutant(
            operator="mask",
            change="dropped",
            source="jnp.where(first, 0.0, received[...])",
            caller="o_ref[...] = total()",
            reason="the last turn is not the first",
        ),
    ),
    vmappable=False,  # a remote DMA under vmap of a shard_map is not supported by Pallas
    typical=_typical,
)
