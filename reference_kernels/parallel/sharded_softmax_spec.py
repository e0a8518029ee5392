"""Specs of ``sharded_softmax``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Permuted
from reference_kernels.parallel.sharded_softmax import (
    reference,
    softmax_by_columns,
    softmax_by_rows,
)


def _with_masked_entries(drawn: pst.Drawn) -> pst.Drawn:
    """Every third row gets ``-inf`` in its first half; every sixth is all ``-inf``."""
    x = np.array(drawn[0])
    x[2::3, : (x.shape[1] + 1) // 2] = -np.inf
    x[5::6] = -np.inf
    return pst.Drawn((x,), {**drawn.recipe, "masked": True}, declared=drawn.declared)


def _inputs(shape: str, piece: list[int]) -> Callable[[jax.sharding.Mesh], Any]:
    def inputs(mesh: jax.sharding.Mesh) -> Any:
        def drawn(axis_name: str) -> Any:
            arrays = pst.arrays(
                f"m n; {shape} = {mesh.shape[axis_name]}*piece",
                dtype=pst.floats("bfloat16", "float32"),
                dims={"piece": piece, "mn".replace(shape, ""): 17},
                values=("normal", "wide"),  # exp overflows at 89
            )
            return pst.arguments(
                st.one_of(arrays, arrays.map(_with_masked_entries)),
                options={"axis_name": axis_name},
                tuning={"block_rows": 16},
            )

        return st.sampled_from(mesh.axis_names).flatmap(drawn)

    return inputs


def _typical(mesh: jax.sharding.Mesh) -> Any:
    dims = {"m": 1024 * mesh.size, "n": 2048 * mesh.size}
    options = {"axis_name": mesh.axis_names[-1]}
    return (pst.shaped("m n", dtype="float32", dims=dims, options=options),)


_COMMON: dict[str, Any] = {
    "reference": reference,
    "meshes": "x y",
    "differentiable": (0,),
    "relations": (Permuted({0: 0}, output=0), Permuted({0: 1}, output=1)),
    "vmappable": False,
    "typical": _typical,
}

SPEC_ROWS = KernelSpec(
    # Of three rows a device, the last of all may be masked.
    name="softmax_by_rows",
    kernel=softmax_by_rows,
    inputs=_inputs("m", [3, 17]),
    **_COMMON,
)

SPEC_COLUMNS = KernelSpec(
    name="softmax_by_columns",
    kernel=softmax_by_columns,
    inputs=_inputs("n", [1, 129]),
    **_COMMON,
)
