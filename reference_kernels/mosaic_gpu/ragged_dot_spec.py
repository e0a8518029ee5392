"""Specs of ``ragged_dot``."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from hypothesis import strategies as st

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted
from reference_kernels.matmul.grouped_matmul import reference
from reference_kernels.mosaic_gpu._claims import WGMMA
from reference_kernels.mosaic_gpu.ragged_dot import ragged_dot


def _ignored(
    x: Any, w: Any, group_sizes: Any, *, transpose_rhs: bool = False
) -> tuple[Any, Any, None]:
    """Rows beyond the last group, and the weights of empty groups."""
    del transpose_rhs
    beyond = jnp.arange(x.shape[0])[:, None] >= jnp.sum(group_sizes)
    empty = jnp.asarray(group_sizes)[:, None, None] == 0
    return jnp.broadcast_to(beyond, x.shape), jnp.broadcast_to(empty, w.shape), None


def _group_sizes(groups: int, m: int) -> Any:
    """Sizes of groups; of many calls, all rows of the last tile belong to none."""
    return st.one_of(
        pst.group_sizes(groups, total=m // 64 * 64, full=True, around=64),
        pst.group_sizes(groups, total=m, full=False, around=64),
    )


def _inputs(shapes: str, **options: Any) -> Any:
    return pst.arguments(
        pst.arrays(
            shapes,
            dtype=pst.floats("bfloat16", "float16"),
            dims={
                "g": [1, 2, 3, 5],
                "m": [1, 15, 64, 65, 130],
                "k": [5, 64, 131, 300],  # up to five steps: more than there are stages
                "n": [7, 64, 72],
            },
        ),
        then=lambda drawn: {"group_sizes": _group_sizes(drawn.recipe["g"], drawn.recipe["m"])},
        options=options,
        tuning={
            "block_m": 64,
            "block_n": st.sampled_from([64, 128]),  # one part and two of what is written at a time
            "stages": st.sampled_from([2, 3]),
        },
    )


def _typical(shapes: str, **options: Any) -> Any:
    dims = {"m": 8192, "k": 4096, "n": 4096, "g": 16}
    dtypes = ["bfloat16", "bfloat16", "int32"]
    return pst.shaped(f"{shapes}, g", dtype=dtypes, dims=dims, options=options)


SPEC = KernelSpec(
    name="hopper_ragged_dot",
    kernel={"gpu": ragged_dot},
    backends=("gpu-interpret", *WGMMA),
    reference=reference,
    inputs=_inputs("m k, g k n"),
    exact=True,
    differentiable=(0, 1),
    relations=(
        Linear(0),
        Linear(1),
        Permuted({1: 2}, output=1),
        Permuted({0: 1, 1: 1}),
    ),
    ignored=_ignored,
    typical=(_typical("m k, g k n"),),
)

SPEC_TRANSPOSED = KernelSpec(
    name="hopper_ragged_dot_transposed",
    kernel={"gpu": ragged_dot},
    backends=("gpu-interpret", *WGMMA),
    reference=reference,
    inputs=_inputs("m k, g n k", transpose_rhs=True),
    exact=True,
    differentiable=(0, 1),
    relations=(Permuted({0: 1, 1: 2}),),
    typical=(_typical("m k, g n k", transpose_rhs=True),),
)
