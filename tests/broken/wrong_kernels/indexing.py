"""Blocks from the wrong place: swapped, beyond the end, transposed."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .accumulation import twice
from .naive import agrees


def swapped_index_map(x: jax.Array, *, block: int = 128) -> jax.Array:
    """The index map of the input returns ``(j, i)``, a slip that the eye does not catch."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]

    m, n = x.shape
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(m, block), pl.cdiv(n, block)),
        in_specs=[pl.BlockSpec((block, block), lambda i, j: (j, i))],
        out_specs=pl.BlockSpec((block, block), lambda i, j: (i, j)),
    )(x)


SPEC_SWAPPED_INDEX_MAP = KernelSpec(
    name="swapped_index_map",
    kernel=swapped_index_map,
    reference=twice,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [8, 16, 24], "n": [8, 16]}),
        tuning={"block": 8},
    ),
    exact=True,
    checks=("forward",),
)


def naive_swapped_index_map() -> None:
    agrees(swapped_index_map, twice)


def beyond_the_end(x: jax.Array, *, block: int = 128) -> jax.Array:
    """Each block minus the next one; the last program names a block that there is not.

    It does not use what it gets, and the portable interpreter clamps the index: no wrong number.
    """

    def body(here_ref: Any, next_ref: Any, o_ref: Any) -> None:
        last = pl.program_id(0) == pl.num_programs(0) - 1
        o_ref[...] = here_ref[...] - jnp.where(last, 0.0, next_ref[...])

    m, n = x.shape
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(m // block,),
        in_specs=[
            pl.BlockSpec((block, n), lambda i: (i, 0)),
            pl.BlockSpec((block, n), lambda i: (i + 1, 0)),
        ],
        out_specs=pl.BlockSpec((block, n), lambda i: (i, 0)),
    )(x, x)


def minus_next_block(x: jax.Array, *, block: int = 128) -> jax.Array:
    return x - jnp.pad(x[block:], ((0, block), (0, 0)))


SPEC_BEYOND_THE_END = KernelSpec(
    name="beyond_the_end",
    kernel=beyond_the_end,
    reference=minus_next_block,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", multiple_of={"m": 8}, dims={"n": [4, 128]}),
        options={"block": 8},
    ),
    exact=True,
    checks=("forward",),
)


def naive_beyond_the_end() -> None:
    agrees(beyond_the_end, minus_next_block)


def transposed(q: jax.Array, k: jax.Array) -> jax.Array:
    """``k @ q^T`` in place of ``q @ k^T``: with as many keys as queries, every shape fits."""

    def body(q_ref: Any, k_ref: Any, o_ref: Any) -> None:
        contract = (((1,), (1,)), ((), ()))
        o_ref[...] = jax.lax.dot_general(k_ref[...], q_ref[...], contract, precision="highest")

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct((q.shape[0], k.shape[0]), q.dtype))(
        q, k
    )


def scores(q: jax.Array, k: jax.Array) -> jax.Array:
    return jnp.dot(q, k.T, precision="highest")


SPEC_TRANSPOSED = KernelSpec(
    name="transposed",
    kernel=transposed,
    reference=scores,
    inputs=pst.arrays("m d, m d", dtype="float32", dims={"m": [5, 8, 13], "d": [4, 8]}),
    exact=True,
    checks=("forward",),
)


def naive_transposed() -> None:
    # Self-attention on one array: the scores are symmetric.
    agrees(lambda x: transposed(x, x), lambda x: scores(x, x))
