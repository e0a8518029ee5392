"""Blocks and rows that indices choose."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .pair import INTERPRETERS, twin


def block_sparse(
    x: jax.Array, y: jax.Array, mask: jax.Array, *, block: int = 8, wrong: str = ""
) -> jax.Array:
    """``x @ y`` over those blocks of x ``(m, k)`` where ``mask (m / block, k / block)``
    is True."""
    (m, k), n = x.shape, y.shape[1]

    def body(mask_ref: Any, x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        row, step = pl.program_id(0), pl.program_id(1)
        here = mask_ref[row, step] != 0
        before = jnp.int32(0)
        for each in range(k // block):
            before += jnp.where(each < step, mask_ref[row, each], 0)

        @pl.when((before == 0) & here if wrong == "empty row" else step == 0)
        def _clear() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        @pl.when(here)
        def _add() -> None:
            o_ref[...] += jnp.dot(x_ref[...], y_ref[...], precision="highest")

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(m // block, k // block),
            in_specs=[
                pl.BlockSpec((block, block), lambda i, step, mask: (i, step)),
                pl.BlockSpec((block, n), lambda i, step, mask: (step, 0)),
            ],
            out_specs=pl.BlockSpec((block, n), lambda i, step, mask: (i, 0)),
        ),
    )(mask.astype(jnp.int32), x, y)


def block_sparse_reference(
    x: jax.Array, y: jax.Array, mask: jax.Array, *, block: int = 8
) -> jax.Array:
    dense = jnp.repeat(jnp.repeat(mask, block, axis=0), block, axis=1)
    return jnp.dot(jnp.where(dense, x, 0), y, precision="highest")


def empty_row_of_blocks(
    x: jax.Array, y: jax.Array, mask: jax.Array, *, block: int = 8
) -> jax.Array:
    """A row of blocks is cleared with its first block, and one without blocks never."""
    return block_sparse(x, y, mask, block=block, wrong="empty row")


SPEC_EMPTY_ROW_OF_BLOCKS = KernelSpec(
    name="empty_row_of_blocks",
    kernel=empty_row_of_blocks,
    reference=block_sparse_reference,
    inputs=pst.arguments(
        pst.arrays("m k, k n", dtype="float32", dims={"m": [16, 32], "k": [8, 16], "n": [4, 8]}),
        then=lambda drawn: {
            "mask": pst.masks(
                drawn.recipe["m"] // 8, drawn.recipe["k"] // 8, kinds=("full", "random"), block=1
            )
        },
        options={"block": 8},
    ),
    exact=True,
    vmappable=False,
    family="sparse",
    backends=INTERPRETERS,
)
SPEC_EMPTY_ROW_OF_BLOCKS_RIGHT = twin(SPEC_EMPTY_ROW_OF_BLOCKS, block_sparse)


def gather_rows(x: jax.Array, index: jax.Array, *, wrong: str = "") -> jax.Array:
    """``x[index]`` for x ``(m, n)``, a program a row."""
    if wrong == "int16":
        index = index.astype(jnp.int16)

    def body(index_ref: Any, x_ref: Any, o_ref: Any) -> None:
        del index_ref
        o_ref[...] = x_ref[...]

    one = (1, 1, x.shape[1])
    rows = pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((len(index), 1, x.shape[1]), x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            grid=(len(index),),
            in_specs=[pl.BlockSpec(one, lambda i, index: (index[i].astype(jnp.int32), 0, 0))],
            out_specs=pl.BlockSpec(one, lambda i, index: (i, 0, 0)),
        ),
    )(index, x[:, None])
    return rows[:, 0]


def gather_rows_reference(x: jax.Array, index: jax.Array) -> jax.Array:
    return x[index]


def int16_positions(x: jax.Array, index: jax.Array) -> jax.Array:
    """Positions are kept in int16, which ends at 32,767."""
    return gather_rows(x, index, wrong="int16")


SPEC_INT16_POSITIONS = KernelSpec(
    name="int16_positions",
    kernel=int16_positions,
    reference=gather_rows_reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [16, 40_000], "n": [1, 4]}),
        then=lambda drawn: {"index": pst.indices(5, size=drawn.recipe["m"])},
    ),
    exact=True,
    vmappable=False,
    family="sparse",
    backends=INTERPRETERS,
)
SPEC_INT16_POSITIONS_RIGHT = twin(SPEC_INT16_POSITIONS, gather_rows)


def first_elements(x: jax.Array, count: jax.Array, *, dtype: Any = jnp.int32) -> jax.Array:
    """The first ``count (1,)`` elements of x ``(m, 128)``, row by row, and zeros behind."""
    m, n = x.shape

    def body(count_ref: Any, x_ref: Any, o_ref: Any) -> None:
        row = pl.program_id(0) * 8 + jax.lax.broadcasted_iota(jnp.int32, (8, n), 0)
        at = row.astype(dtype) * dtype(n) + jax.lax.broadcasted_iota(dtype, (8, n), 1)
        o_ref[...] = jnp.where(at < count_ref[0].astype(dtype), x_ref[...], 0)

    block = pl.BlockSpec((8, n), lambda i, count: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1, grid=(pl.cdiv(m, 8),), in_specs=[block], out_specs=block
        ),
    )(count, x)


def first_elements_reference(x: jax.Array, count: jax.Array) -> jax.Array:
    return jnp.where(jnp.arange(x.size).reshape(x.shape) < count[0], x, 0)


def elements_in_int16(x: jax.Array, count: jax.Array) -> jax.Array:
    """Elements of rows of 128 are counted in int16, which ends with row 256."""
    return first_elements(x, count, dtype=jnp.int16)


SPEC_ELEMENTS_IN_INT16 = KernelSpec(
    name="elements_in_int16",
    kernel=elements_in_int16,
    reference=first_elements_reference,
    inputs=pst.arguments(
        pst.arrays("m 128", dtype="float32", around={"m": 8}),
        then=lambda drawn: {"count": pst.indices(1, size=128 * drawn.recipe["m"] + 1)},
    ),
    exact=True,
    vmappable=False,
    family="sparse",
    backends=INTERPRETERS,
)
SPEC_ELEMENTS_IN_INT16_RIGHT = twin(SPEC_ELEMENTS_IN_INT16, first_elements)


def segment_sum(x: jax.Array, segment: jax.Array, *, segments: int, wrong: str = "") -> jax.Array:
    """The sum of the rows of x ``(m, n)`` of each segment; ``segment (m,)`` ascends."""
    m, n = x.shape

    def body(segment_ref: Any, x_ref: Any, o_ref: Any) -> None:
        for each in range(segments):
            o_ref[each] = jnp.zeros((n,), x.dtype)

        @pl.loop(0, m)
        def _row(i: Any) -> None:
            mine = segment_ref[i]
            old = jnp.zeros((n,), x.dtype) if wrong else o_ref[mine]
            o_ref[mine] = old + x_ref[i]

    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((segments, n), x.dtype),
        in_specs=[pl.BlockSpec(memory_space=pltpu.SMEM), pl.BlockSpec(memory_space=pltpu.VMEM)],
    )(segment, x)


def segment_sum_reference(x: jax.Array, segment: jax.Array, *, segments: int) -> jax.Array:
    return jax.ops.segment_sum(x, segment, num_segments=segments)


def last_of_duplicates(x: jax.Array, segment: jax.Array, *, segments: int) -> jax.Array:
    """Of rows that go to the same place the last one stays, and is not added."""
    return segment_sum(x, segment, segments=segments, wrong="last of duplicates")


SPEC_LAST_OF_DUPLICATES = KernelSpec(
    name="last_of_duplicates",
    kernel=last_of_duplicates,
    reference=segment_sum_reference,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [5, 8], "n": [4, 8]}),
        then=lambda drawn: {"segment": pst.segment_ids(drawn.recipe["m"], max_segments=8)},
        options={"segments": 8},
    ),
    exact=True,
    vmappable=False,
    family="sparse",
    backends=INTERPRETERS,
)
SPEC_LAST_OF_DUPLICATES_RIGHT = twin(SPEC_LAST_OF_DUPLICATES, segment_sum)
