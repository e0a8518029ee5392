"""Specs of ``sharded_matmul``."""

from __future__ import annotations

import functools
from typing import Any

import jax
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels._gaps import REACHING, without
from reference_kernels.collective_matmul.sharded_matmul import reference, sharded_matmul


def _inputs(mesh: jax.sharding.Mesh, cases: tuple[dict[str, str], ...]) -> Any:
    def call(axis_name: str, case: dict[str, str]) -> Any:
        devices = mesh.shape[axis_name]
        free = {"m": [1, 17, 33], "k": [1, 129], "n": [1, 129]}
        divided = {"rows": "m", "columns": "n", "sums": "mk"}[case["parallel"]]
        dims = {
            name: [devices * size for size in sizes] if name in divided else sizes
            for name, sizes in free.items()
        }
        return pst.arguments(
            pst.arrays("m k, k n", dtype=pst.floats("bfloat16", "float32"), dims=dims),
            options={"axis_name": axis_name, **case},
            tuning={"block_m": 16, "block_n": 128, "block_k": 128},
        )

    return st.one_of([call(axis_name, case) for axis_name in mesh.axis_names for case in cases])


def _typical(mesh: jax.sharding.Mesh, cases: tuple[dict[str, str], ...]) -> Any:
    dims = {"m": 4096, "k": 4096, "n": 4096}
    return [
        pst.shaped(
            "m k, k n",
            dtype="bfloat16",
            dims=dims,
            options={"axis_name": mesh.axis_names[-1], **case},
        )
        for case in cases
    ]


_PERMUTED = (Permuted({0: 1, 1: 0}), Permuted({0: 0}, output=0), Permuted({1: 1}, output=1))


def _spec(name: str, cases: tuple[dict[str, str], ...], **more: Any) -> KernelSpec:
    return KernelSpec(
        name=name,
        kernel=sharded_matmul,
        reference=reference,
        inputs=functools.partial(_inputs, cases=cases),
        # Not exact: every device rounds its sums of bfloat16 before they are added.
        relations=(Linear(0), Linear(1), *_PERMUTED),
        vmappable=False,
        typical=functools.partial(_typical, cases=cases),
        file=__file__,
        family="collective_matmul",
        **more,
    )


SPEC = _spec(
    "sharded_matmul",
    ({"parallel": "rows"}, {"parallel": "columns"}, {"parallel": "sums"}),
    meshes=({"x": 1}, "x y"),
    differentiable=(0, 1),
)

SPEC_RINGS = _spec(
    "sharded_matmul_rings",
    (
        {"parallel": "sums", "reduction": "all_reduce"},
        {"parallel": "sums", "reduction": "reduce_scatter"},
    ),
    meshes="x",
    backends=without(REACHING),
    unreached={"group > 0 true": "arrays of more than a group of pieces: see all_reduce"},
)
