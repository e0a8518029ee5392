"""Products of rows in groups, each with a matrix of its own."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin


def grouped_matmul(
    x: jax.Array, w: jax.Array, sizes: jax.Array, *, block: int = 8, wrong: str = ""
) -> jax.Array:
    """``x @ w[g]`` for the rows of group g; rows behind the last group are 0.

    x is ``(m, k)``, w ``(groups, k, n)``, and ``sizes`` int32 ``(groups,)`` adds up to m or less.
    """
    (m, k), (groups, _, n) = x.shape, w.shape
    ends = jnp.cumulative_sum(sizes, dtype=jnp.int32, include_initial=True)

    def body(ends_ref: Any, x_ref: Any, w_ref: Any, o_ref: Any) -> None:
        tile, group = pl.program_id(0), pl.program_id(1)
        first, last = ends_ref[group], ends_ref[group + 1]
        row = tile * block + jax.lax.broadcasted_iota(jnp.int32, o_ref.shape, 0)

        if wrong != "rows of nobody":

            @pl.when(group == 0)
            def _clear() -> None:
                o_ref[...] = jnp.zeros_like(o_ref)

        @pl.when((first < (tile + 1) * block) & (last > tile * block))
        def _multiply() -> None:
            product = jnp.dot(x_ref[...], w_ref[0], precision="highest")
            if wrong == "tile of one group":
                mine = jnp.full(o_ref.shape, first <= tile * block)
            else:
                mine = (first <= row) & (row < last)
            o_ref[...] = jnp.where(mine, product, o_ref[...])

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(pl.cdiv(m, block), groups),
            in_specs=[
                pl.BlockSpec((block, k), lambda i, g, ends: (i, 0)),
                pl.BlockSpec((1, k, n), lambda i, g, ends: (g, 0, 0)),
            ],
            out_specs=pl.BlockSpec((block, n), lambda i, g, ends: (i, 0)),
        ),
    )(ends, x, w)


def _group_of(rows: int, sizes: jax.Array) -> jax.Array:
    return jnp.searchsorted(jnp.cumsum(sizes), jnp.arange(rows), side="right")


def grouped_matmul_reference(x: jax.Array, w: jax.Array, sizes: jax.Array) -> jax.Array:
    group = _group_of(len(x), sizes)
    out = jnp.einsum("mk,mkn->mn", x, w[jnp.minimum(group, len(w) - 1)], precision="highest")
    return jnp.where((group < len(w))[:, None], out, 0)


_CALLS = pst.arguments(
    pst.arrays(
        "m k, g k n", dtype="float32", dims={"m": [8, 16, 19], "k": [4, 8], "g": 3, "n": [4, 8]}
    ),
    then=lambda drawn: {
        "sizes": pst.group_sizes(drawn.recipe["g"], total=drawn.recipe["m"], around=8)
    },
    tuning={"block": 8},
)


def tile_of_one_group(x: jax.Array, w: jax.Array, sizes: jax.Array, *, block: int = 8) -> jax.Array:
    """A block of rows belongs as a whole to the last group that begins before it."""
    return grouped_matmul(x, w, sizes, block=block, wrong="tile of one group")


SPEC_TILE_OF_ONE_GROUP = KernelSpec(
    name="tile_of_one_group",
    kernel=tile_of_one_group,
    reference=grouped_matmul_reference,
    inputs=_CALLS,
    vmappable=False,
    family="grouped matmul",
    backends=INTERPRETERS,
)
SPEC_TILE_OF_ONE_GROUP_RIGHT = twin(SPEC_TILE_OF_ONE_GROUP, grouped_matmul)


def rows_of_nobody(x: jax.Array, w: jax.Array, sizes: jax.Array, *, block: int = 8) -> jax.Array:
    """Rows behind the last group are never written, where zeros are promised."""
    return grouped_matmul(x, w, sizes, block=block, wrong="rows of nobody")


SPEC_ROWS_OF_NOBODY = KernelSpec(
    name="rows_of_nobody",
    kernel=rows_of_nobody,
    reference=grouped_matmul_reference,
    inputs=_CALLS,
    vmappable=False,
    family="grouped matmul",
    backends=INTERPRETERS,
)


def grouped_gradient(
    x: jax.Array, y: jax.Array, sizes: jax.Array, *, block: int = 8, wrong: str = ""
) -> jax.Array:
    """``x[rows of g].T @ y[rows of g]`` for each group g: the gradient of ``w`` above."""
    (m, k), n, groups = x.shape, y.shape[1], len(sizes)
    ends = jnp.cumulative_sum(sizes, dtype=jnp.int32, include_initial=True)

    def body(ends_ref: Any, x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        group, tile = pl.program_id(0), pl.program_id(1)
        first, last = ends_ref[group], ends_ref[group + 1]
        has_rows = (first < (tile + 1) * block) & (last > tile * block) & (first < last)

        if wrong == "empty group":

            @pl.when(has_rows & ((tile == 0) | (first >= tile * block)))
            def _clear_before_the_first_rows() -> None:
                o_ref[...] = jnp.zeros_like(o_ref)

        else:

            @pl.when(tile == 0)
            def _clear() -> None:
                o_ref[...] = jnp.zeros_like(o_ref)

        @pl.when(has_rows)
        def _add() -> None:
            row = tile * block + jax.lax.broadcasted_iota(jnp.int32, (block, 1), 0)
            mine = (first <= row) & (row < last)
            x, y = (jnp.where(mine, ref[...], 0) for ref in (x_ref, y_ref))
            contract = (((0,), (0,)), ((), ()))
            o_ref[0] += jax.lax.dot_general(x, y, contract, precision="highest")

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((groups, k, n), x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(groups, pl.cdiv(m, block)),
            in_specs=[
                pl.BlockSpec((block, k), lambda g, i, ends: (i, 0)),
                pl.BlockSpec((block, n), lambda g, i, ends: (i, 0)),
            ],
            out_specs=pl.BlockSpec((1, k, n), lambda g, i, ends: (g, 0, 0)),
        ),
    )(ends, x, y)


def grouped_gradient_reference(x: jax.Array, y: jax.Array, sizes: jax.Array) -> jax.Array:
    mine = _group_of(len(x), sizes) == jnp.arange(len(sizes))[:, None]
    return jnp.einsum("gm,mk,mn->gkn", mine.astype(x.dtype), x, y, precision="highest")


def empty_group(x: jax.Array, y: jax.Array, sizes: jax.Array, *, block: int = 8) -> jax.Array:
    """A group is cleared with its first rows, and one without rows never."""
    return grouped_gradient(x, y, sizes, block=block, wrong="empty group")


SPEC_EMPTY_GROUP = KernelSpec(
    name="empty_group",
    kernel=empty_group,
    reference=grouped_gradient_reference,
    inputs=pst.arguments(
        pst.arrays("m k, m n", dtype="float32", dims={"m": [8, 16, 19], "k": [4, 8], "n": [4, 8]}),
        then=lambda drawn: {"sizes": pst.group_sizes(3, total=drawn.recipe["m"], around=8)},
        tuning={"block": 8},
    ),
    vmappable=False,
    family="grouped matmul",
    backends=INTERPRETERS,
)
SPEC_EMPTY_GROUP_RIGHT = twin(SPEC_EMPTY_GROUP, grouped_gradient)
