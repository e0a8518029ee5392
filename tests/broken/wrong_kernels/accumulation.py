"""Sums over the grid: not cleared, too narrow, one block short, and padding added in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .naive import agrees


def _matmul(x: jax.Array, y: jax.Array, block: int, accumulator: Any, *, clear: bool) -> jax.Array:
    """``x @ y`` over a 3-D grid; every size is a multiple of ``block``."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any, acc_ref: Any) -> None:
        if clear:

            @pl.when(pl.program_id(2) == 0)
            def _clear() -> None:
                acc_ref[...] = jnp.zeros_like(acc_ref)

        product = jnp.dot(x_ref[...], y_ref[...], preferred_element_type=jnp.float32)
        acc_ref[...] += product.astype(acc_ref.dtype)

        @pl.when(pl.program_id(2) == pl.num_programs(2) - 1)
        def _store() -> None:
            o_ref[...] = acc_ref[...].astype(o_ref.dtype)

    (m, k), n = x.shape, y.shape[1]
    tile = (block, block)
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, n), x.dtype),
        grid=(m // block, n // block, k // block),
        in_specs=[
            pl.BlockSpec(tile, lambda i, j, step: (i, step)),
            pl.BlockSpec(tile, lambda i, j, step: (step, j)),
        ],
        out_specs=pl.BlockSpec(tile, lambda i, j, step: (i, j)),
        scratch_shapes=[pltpu.VMEM(tile, accumulator)],
    )(x, y)


def matmul_reference(x: jax.Array, y: jax.Array) -> jax.Array:
    wide = jnp.promote_types(x.dtype, jnp.float32)
    return jnp.dot(x, y, precision="highest", preferred_element_type=wide).astype(x.dtype)


def not_cleared(x: jax.Array, y: jax.Array, *, block: int = 128) -> jax.Array:
    """The accumulator is never set to zero; fresh memory often is, so it may work for years."""
    return _matmul(x, y, block, jnp.float32, clear=False)


SPEC_NOT_CLEARED = KernelSpec(
    name="not_cleared",
    kernel=not_cleared,
    reference=matmul_reference,
    inputs=pst.arguments(
        pst.arrays("m k, k n", dtype="float32", multiple_of=8), tuning={"block": 8}
    ),
    checks=("forward",),
)


def naive_not_cleared() -> None:
    agrees(not_cleared, matmul_reference, count=2)


def bfloat16_sum(x: jax.Array, y: jax.Array, *, block: int = 128) -> jax.Array:
    """The accumulator has the dtype of the output, so every step rounds to 8 bits."""
    return _matmul(x, y, block, x.dtype, clear=True)


SPEC_BFLOAT16_SUM = KernelSpec(
    name="bfloat16_sum",
    kernel=bfloat16_sum,
    reference=matmul_reference,
    inputs=pst.arguments(
        pst.arrays(
            "m k, k n", dtype="bfloat16", multiple_of={"m": 16, "n": 16}, dims={"k": [256, 512]}
        ),
        tuning={"block": 16},
    ),
    exact=True,
    checks=("forward",),
)


def naive_bfloat16_sum() -> None:
    agrees(bfloat16_sum, matmul_reference, count=2, dtype=jnp.bfloat16)


SPEC_BFLOAT16_SUM_OF_NORMALS = KernelSpec(
    name="bfloat16_sum_of_normals",
    kernel=bfloat16_sum,
    reference=matmul_reference,
    # Without exact=True, and too few steps for any element to be far off.
    inputs=pst.arguments(
        pst.arrays(
            "m k, k n", dtype="bfloat16", values="normal", dims={"m": 32, "k": 512, "n": [32, 48]}
        ),
        tuning={"block": 16},
    ),
    checks=("forward",),
)


naive_bfloat16_sum_of_normals = naive_bfloat16_sum


def last_block_dropped(x: jax.Array, *, block: int = 128) -> jax.Array:
    """The grid has ``m // block`` programs and not ``cdiv(m, block)``: the last rows stay out."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]

    m, n = x.shape
    spec = pl.BlockSpec((block, n), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(m // block,),
        in_specs=[spec],
        out_specs=spec,
    )(x)


def twice(x: jax.Array) -> jax.Array:
    return 2 * x


SPEC_LAST_BLOCK_DROPPED = KernelSpec(
    name="last_block_dropped",
    kernel=last_block_dropped,
    reference=twice,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [8, 13, 16, 19], "n": [4, 128]}),
        tuning={"block": 8},
    ),
    exact=True,
    checks=("forward",),
)


def naive_last_block_dropped() -> None:
    agrees(last_block_dropped, twice)


def padding_added(x: jax.Array, *, block: int = 128) -> jax.Array:
    """Row sums without a mask: the last block reaches beyond the end, and adds what is there."""

    def body(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _clear() -> None:
            o_ref[...] = jnp.zeros_like(o_ref)

        o_ref[...] += jnp.sum(x_ref[...], axis=1, keepdims=True)

    m, n = x.shape
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct((m, 1), x.dtype),
        grid=(pl.cdiv(n, block),),
        in_specs=[pl.BlockSpec((m, block), lambda step: (0, step))],
        out_specs=pl.BlockSpec((m, 1), lambda step: (0, 0)),
    )(x)


def row_sums(x: jax.Array) -> jax.Array:
    return jnp.sum(x, axis=1, keepdims=True)


SPEC_PADDING_ADDED = KernelSpec(
    name="padding_added",
    kernel=padding_added,
    reference=row_sums,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", around={"n": 16}, dims={"m": [1, 8]}),
        tuning={"block": 16},
    ),
    exact=True,
    checks=("forward",),
)


def naive_padding_added() -> None:
    agrees(padding_added, row_sums)
