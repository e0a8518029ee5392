"""Specs of ``grouped_matmul``."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels._tpu import ROWS
from reference_kernels.matmul.grouped_matmul import gmm, reference, tgmm, tgmm_reference


def _ignored(x: Any, other: Any, group_sizes: Any, **options: Any) -> tuple[Any, Any, None]:
    """Rows beyond the last group, and the weights of empty groups."""
    del options
    tail = np.arange(x.shape[0]) >= np.sum(group_sizes)
    if other.ndim == 2:
        return _over(tail, x), _over(tail, other), None
    return _over(tail, x), _over(np.asarray(group_sizes) == 0, other), None


def _over(leading: Any, array: Any) -> Any:
    return np.broadcast_to(leading.reshape(-1, *(1 for _ in array.shape[1:])), array.shape)


def _sizes(drawn: pst.Drawn) -> dict[str, Any]:
    dims = drawn.recipe
    return {"group_sizes": pst.group_sizes(dims["g"], total=dims["m"], around=ROWS)}


def _inputs(shapes: str, *, transpose_rhs: bool | None = None) -> Any:
    return pst.arguments(
        pst.arrays(
            shapes,
            dtype=pst.floats("bfloat16", "float32"),
            dims={"g": [1, 3, 5], "m": [1, 15, 16, 33, 47], "k": [5, 256, 131]},
            around={"n": 128},
        ),
        then=_sizes,
        options={} if transpose_rhs is None else {"transpose_rhs": transpose_rhs},
        tuning={"block_m": ROWS, "block_n": 128, "block_k": 128},
    )


def _typical(shapes: str, **options: Any) -> Any:
    dims = {"m": 8192, "k": 2048, "n": 2048, "g": 16}
    dtypes = ["bfloat16", "bfloat16", "int32"]
    return pst.shaped(f"{shapes}, g", dtype=dtypes, dims=dims, options=options)


_LAST_STEP = EquivalentMutant(
    operator="guard",
    change="always",
    source="pl.when(step == pl.num_programs(2) - 1)",
    reason="the last step of a visit writes all rows that earlier ones write again",
)

SPEC = KernelSpec(
    name="gmm",
    kernel=gmm,
    reference=reference,
    inputs=_inputs("m k, g k n"),
    exact=True,
    differentiable=(0, 1),
    relations=(
        Linear(0),
        Linear(1),
        Permuted({1: 2}, output=1, exact=True),
        Permuted({0: 1, 1: 1}),
    ),
    ignored=_ignored,
    equivalent=(_LAST_STEP,),
    typical=(_typical("m k, g k n"),),
)

SPEC_TRANSPOSED = KernelSpec(
    name="gmm_transposed",
    kernel=gmm,
    reference=reference,
    inputs=_inputs("m k, g n k", transpose_rhs=True),
    exact=True,
    relations=(Linear(0), Linear(1), Permuted({0: 1, 1: 2})),
    ignored=_ignored,
    equivalent=(_LAST_STEP,),
    typical=(_typical("m k, g n k", transpose_rhs=True),),
)

SPEC_TGMM = KernelSpec(
    name="tgmm",
    kernel=tgmm,
    reference=tgmm_reference,
    inputs=_inputs("m k, m n; g >= 1"),
    exact=True,
    differentiable=(0, 1),
    relations=(Linear(0), Linear(1), Permuted({0: 1}, output=1), Permuted({1: 1}, output=2)),
    ignored=_ignored,
    equivalent=(
        _LAST_STEP,
        *(
            EquivalentMutant(
                operator="guard",
                change=change,
                source="@pl.when(start < end)",
                reason="an empty group adds products of zeros, and is cleared after that",
            )
            for change in ("lt -> le", "always")
        ),
    ),
    typical=(_typical("m k, m n"),),
)
