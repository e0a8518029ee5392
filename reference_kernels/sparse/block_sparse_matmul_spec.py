"""Specs of ``block_sparse_matmul``."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import EquivalentMutant, KernelSpec, Linear, Permuted
from reference_kernels.sparse.block_sparse_matmul import dsd, reference_dsd, reference_sdd, sdd


@st.composite
def _lists(draw: st.DrawFn, length: int, grid: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Rows, columns and count of ``length`` blocks, of which any number is real."""
    rows = draw(pst.indices(length, size=grid[0], dtype="int32"))
    columns = draw(pst.indices(length, size=grid[1], dtype="int32"))
    count = draw(st.one_of(st.just(length), st.integers(0, length)))
    if draw(st.booleans()):
        # Entries outside of the matrix; real or not, they must not matter.
        outside = draw(st.integers(0, length - 1))
        rows[outside], columns[outside] = draw(st.sampled_from([(-1, 0), (0, grid[1])]))
    elif draw(st.booleans()):
        # Several in the last row and column, which may have parts beyond the edges.
        rows[:2], columns[-2:] = grid[0] - 1, grid[1] - 1
    return rows, columns, np.array([count], np.int32)


@st.composite
def _dsd_inputs(draw: st.DrawFn) -> pst.Arguments:
    drawn = draw(
        pst.arrays(
            "blocks p q, k n",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"blocks": [1, 3, 6], "p": 16, "q": [16, 32], "k": [1, 32, 33], "n": [1, 129]},
        )
    )
    values, y = drawn
    m = draw(st.sampled_from([64, 33, 1, 16]))
    grid = (pl.cdiv(m, values.shape[1]), pl.cdiv(y.shape[0], values.shape[2]))
    rows, columns, count = draw(_lists(values.shape[0], grid))
    recipe = {"m": m, "rows": rows.tolist(), "columns": columns.tolist(), "count": int(count[0])}
    return pst.Arguments(
        args=(values, rows, columns, count, y),
        options={"m": m},
        tuning={"block_n": 128},
        recipe={**drawn.recipe, **recipe},
        declared=drawn.declared,
    )


def _beyond_dsd(
    values: Any, rows: Any, columns: Any, count: Any, y: Any, *, m: int
) -> tuple[Any, ...]:
    """Padding of the lists, and what blocks have beyond the edges of the matrix."""
    (_, p, q), k = values.shape, y.shape[0]
    padding = np.arange(len(rows)) >= count[0]
    below = rows[:, None] * p + np.arange(p) >= m
    right = columns[:, None] * q + np.arange(q) >= k
    return (
        padding[:, None, None] | below[:, :, None] | right[:, None, :],
        padding,
        padding,
        None,
        None,
    )


@st.composite
def _sdd_inputs(draw: st.DrawFn) -> pst.Arguments:
    drawn = draw(
        pst.arrays(
            "m k, k n",
            dtype=pst.floats("bfloat16", "float32"),
            dims={"m": [1, 32, 33], "k": [1, 128, 257], "n": [1, 256, 257]},
        )
    )
    x, y = drawn
    block = (16, 128)
    grid = (pl.cdiv(x.shape[0], block[0]), pl.cdiv(y.shape[1], block[1]))
    rows, columns, count = draw(_lists(draw(st.sampled_from([1, 2, 5])), grid))
    recipe = {"rows": rows.tolist(), "columns": columns.tolist(), "count": int(count[0])}
    return pst.Arguments(
        args=(x, y, rows, columns, count),
        options={"block": block},
        tuning={"block_k": 128},
        recipe={**drawn.recipe, **recipe},
        declared=drawn.declared,
    )


def _padding_sdd(x: Any, y: Any, rows: Any, columns: Any, count: Any, **_: Any) -> tuple[Any, ...]:
    """Padding of the lists."""
    del x, y, columns
    padding = np.arange(len(rows)) >= count[0]
    return None, None, padding, padding, None


#: A tenth of the blocks of a 4096 x 4096 matrix.
_LISTS = "blocks, blocks, 1"
_DIMS = {"blocks": 102, "m": 4096, "k": 4096, "n": 4096}

#: The last step of a row writes its whole block, and rows never decrease from step to step.
_WRITTEN_AGAIN = tuple(
    EquivalentMutant(
        operator=operator, change=change, source="@pl.when(row_ref[step + 1] != row)", reason=reason
    )
    for operator, change, reason in (
        ("guard", "always", "the last step of a row writes what earlier ones wrote again"),
        ("guard", "of the index before", "no row is one less than the row before, so it is always"),
        (
            "load",
            "the next slot",
            "the last two steps of a row write, and the last writes all again",
        ),
    )
)

SPEC_DSD = KernelSpec(
    name="block_sparse_dsd",
    kernel=dsd,
    reference=reference_dsd,
    inputs=_dsd_inputs(),
    exact=True,
    differentiable=(0, 4),
    relations=(
        Linear(0),
        Linear(4),
        Permuted({4: 1}, output=1, exact=True),
        Permuted({0: 0, 1: 0, 2: 0}, when=lambda call: int(call.args[3][0]) == len(call.args[1])),
    ),
    ignored=_beyond_dsd,
    equivalent=_WRITTEN_AGAIN,
    typical=(
        pst.shaped(
            f"blocks 128 128, {_LISTS}, k n",
            dtype=["bfloat16", "int32", "int32", "int32", "bfloat16"],
            dims=_DIMS,
            options={"m": 4096},
        ),
    ),
)

SPEC_SDD = KernelSpec(
    name="block_sparse_sdd",
    kernel=sdd,
    reference=reference_sdd,
    inputs=_sdd_inputs(),
    exact=True,
    differentiable=(0, 1),
    relations=(
        Linear(0),
        Linear(1),
        Permuted({0: 1, 1: 0}),
        Permuted(
            {2: 0, 3: 0},
            output=0,
            exact=True,
            when=lambda call: int(call.args[4][0]) == len(call.args[2]),
        ),
    ),
    ignored=_padding_sdd,
    equivalent=_WRITTEN_AGAIN,
    typical=(
        pst.shaped(
            f"m k, k n, {_LISTS}",
            dtype=["bfloat16", "bfloat16", "int32", "int32", "int32"],
            dims=_DIMS,
            options={"block": (128, 128)},
        ),
    ),
)
