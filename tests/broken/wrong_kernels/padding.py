"""What lies beyond the edge: read where NaN does not show, and multiplied by zero."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec

from .naive import agrees


def _over_columns(x: jax.Array, body: Any, start: Any, dtype: Any, block: int) -> jax.Array:
    """``body(block of x, total)`` from left to right, for each row of ``x``."""

    def kernel(x_ref: Any, o_ref: Any) -> None:
        @pl.when(pl.program_id(0) == 0)
        def _clear() -> None:
            o_ref[...] = jnp.full_like(o_ref, start)

        o_ref[...] = body(x_ref[...], o_ref[...]).astype(dtype)

    m, n = x.shape
    return pl.pallas_call(
        kernel,
        out_shape=jax.ShapeDtypeStruct((m, 1), dtype),
        grid=(pl.cdiv(n, block),),
        in_specs=[pl.BlockSpec((m, block), lambda step: (0, step))],
        out_specs=pl.BlockSpec((m, 1), lambda step: (0, 0)),
    )(x)


_ROWS = pst.arguments(
    pst.arrays("m n", dtype="float32", around={"n": 16}, dims={"m": [1, 8]}), tuning={"block": 16}
)


def greatest_of_all(x: jax.Array, *, block: int = 128) -> jax.Array:
    """The maximum of each row by comparison, over the padding too: NaN is never the greater."""

    def body(x: jax.Array, top: jax.Array) -> jax.Array:
        for column in range(block):
            here = x[:, column : column + 1]
            top = jnp.where(here > top, here, top)
        return top

    return _over_columns(x, body, -jnp.inf, x.dtype, block)


def row_greatest(x: jax.Array) -> jax.Array:
    return jnp.max(x, axis=1, keepdims=True)


SPEC_GREATEST_OF_ALL = KernelSpec(
    name="greatest_of_all",
    kernel=greatest_of_all,
    reference=row_greatest,
    inputs=_ROWS,
    checks=("forward", "padding"),
)


def naive_greatest_of_all() -> None:
    agrees(greatest_of_all, row_greatest)


def positives_of_all(x: jax.Array, *, block: int = 128) -> jax.Array:
    """How many numbers of each row are positive, the padding included: NaN is not."""

    def body(x: jax.Array, count: jax.Array) -> jax.Array:
        return count + jnp.sum(x > 0, axis=1, keepdims=True, dtype=jnp.int32)

    return _over_columns(x, body, 0, jnp.int32, block)


def row_positives(x: jax.Array) -> jax.Array:
    return jnp.sum(x > 0, axis=1, keepdims=True, dtype=jnp.int32)


SPEC_POSITIVES_OF_ALL = KernelSpec(
    name="positives_of_all",
    kernel=positives_of_all,
    reference=row_positives,
    inputs=_ROWS,
    checks=("forward", "padding"),
)


def naive_positives_of_all() -> None:
    agrees(positives_of_all, row_positives)


def times_zero(values: jax.Array, lengths: jax.Array) -> jax.Array:
    """The mean of the first ``lengths`` values, each times a weight that is 0 behind them.

    A cache holds whatever its last user left behind a sequence, and zero times infinity is NaN.
    """

    def body(values_ref: Any, lengths_ref: Any, o_ref: Any) -> None:
        place = jax.lax.broadcasted_iota(jnp.int32, values_ref.shape, 1)
        length = lengths_ref[...]
        weights = jnp.where(place < length, 1 / jnp.maximum(length, 1), 0.0)
        o_ref[...] = jnp.sum(weights * values_ref[...], axis=1, keepdims=True)

    shape = jax.ShapeDtypeStruct((len(values), 1), values.dtype)
    return pl.pallas_call(body, out_shape=shape)(values, lengths[:, None])


def mean_of_first(values: jax.Array, lengths: jax.Array) -> jax.Array:
    inside = jnp.arange(values.shape[1]) < lengths[:, None]
    total = jnp.sum(jnp.where(inside, values, 0), axis=1, keepdims=True)
    return total / jnp.maximum(lengths, 1)[:, None]


def behind_lengths(values: Any, lengths: Any) -> tuple[Any, None]:
    return np.arange(values.shape[1]) >= np.asarray(lengths)[:, None], None


SPEC_TIMES_ZERO = KernelSpec(
    name="times_zero",
    kernel=times_zero,
    reference=mean_of_first,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [1, 8], "n": [7, 16]}),
        then=lambda drawn: {
            "lengths": pst.lengths(drawn.recipe["m"], max_length=drawn.recipe["n"])
        },
    ),
    ignored=behind_lengths,
    checks=("forward", "padding"),
)


def naive_times_zero() -> None:
    lengths = jnp.full(256, 100, jnp.int32)
    agrees(lambda x: times_zero(x, lengths), lambda x: mean_of_first(x, lengths))
