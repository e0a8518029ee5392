"""Mistakes that a reference shares with its kernel, which only relations show; and a wrong twin."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

from pytest_pallas import strategies as pst
from pytest_pallas.spec import KernelSpec, Linear, Permuted, Relation

from .accumulation import last_block_dropped, twice
from .naive import agrees


def left_over_activation(x: jax.Array, y: jax.Array) -> jax.Array:
    """``x @ y``, copied, as its reference was, from one with an activation: that is still there."""

    def body(x_ref: Any, y_ref: Any, o_ref: Any) -> None:
        product = jnp.dot(x_ref[...], y_ref[...], precision="highest")
        o_ref[...] = jnp.maximum(product, 0.0)

    shape = (x.shape[0], y.shape[1])
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(shape, x.dtype))(x, y)


def left_over_activation_reference(x: jax.Array, y: jax.Array) -> jax.Array:
    return jax.nn.relu(jnp.dot(x, y, precision="highest"))


SPEC_LEFT_OVER_ACTIVATION = KernelSpec(
    name="left_over_activation",
    kernel=left_over_activation,
    reference=left_over_activation_reference,
    inputs=pst.arrays("m k, k n", dtype="float32", dims={"m": [1, 8], "k": [4, 16], "n": [1, 8]}),
    relations=(Linear(0), Linear(1)),
    checks=("forward", "linearity"),
)


def naive_left_over_activation() -> None:
    agrees(left_over_activation, left_over_activation_reference, count=2)


def last_key_forgotten(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention with ``key < len(k) - 1`` for a mask: the last key is taken for padding."""

    def body(q_ref: Any, k_ref: Any, v_ref: Any, o_ref: Any) -> None:
        contract = (((1,), (1,)), ((), ()))
        s = jax.lax.dot_general(q_ref[...], k_ref[...], contract, precision="highest")
        key = jax.lax.broadcasted_iota(jnp.int32, s.shape, 1)
        weights = jax.nn.softmax(jnp.where(key < len(k) - 1, s, -jnp.inf), axis=1)
        o_ref[...] = jnp.dot(weights, v_ref[...], precision="highest")

    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(q.shape, q.dtype))(q, k, v)


def last_key_forgotten_reference(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    s = jnp.dot(q, k.T, precision="highest")[:, :-1]
    return jnp.dot(jax.nn.softmax(s, axis=1), v[:-1], precision="highest")


SPEC_LAST_KEY_FORGOTTEN = KernelSpec(
    name="last_key_forgotten",
    kernel=last_key_forgotten,
    reference=last_key_forgotten_reference,
    inputs=pst.arrays("q d, k d, k d", dtype="float32", dims={"q": [3, 8], "k": [7, 8], "d": 8}),
    relations=(Permuted({0: 0}, output=0), Permuted({1: 0, 2: 0})),
    checks=("forward", "permutation"),
)


def naive_last_key_forgotten() -> None:
    agrees(last_key_forgotten, last_key_forgotten_reference, count=3)


def mean_of_padded(x: jax.Array) -> jax.Array:
    """The mean of each row, divided by the padded length, as its reference does, too."""
    length = _padded(x.shape[1])

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = jnp.sum(x_ref[...], axis=1, keepdims=True) / length

    shape = (x.shape[0], 1)
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(shape, x.dtype))(x)


def mean_of_padded_reference(x: jax.Array) -> jax.Array:
    return jnp.sum(x, axis=1, keepdims=True) / _padded(x.shape[1])


def _padded(length: int) -> int:
    return -(-length // 8) * 8


def _row_twice(arguments: pst.Arguments, rng: np.random.Generator) -> pst.Arguments:
    del rng
    (x,) = arguments.args
    return dataclasses.replace(arguments, args=(np.concatenate([x, x], axis=1),))


SPEC_MEAN_OF_PADDED = KernelSpec(
    name="mean_of_padded",
    kernel=mean_of_padded,
    reference=mean_of_padded_reference,
    # Not 1 row, whose mean may be 0; and of 13 columns the padding is half of that of 26.
    inputs=pst.arrays("m n", dtype="float32", dims={"m": [3, 8], "n": [3, 8, 10]}),
    relations=(Relation("row twice", _row_twice),),
    checks=("forward", "relation"),
)


def naive_mean_of_padded() -> None:
    agrees(mean_of_padded, mean_of_padded_reference)


def doubled_rows(x: jax.Array, *, block: int = 128) -> jax.Array:
    """``2 x``, and right; the implementation that it is to replace drops the last rows."""

    def body(x_ref: Any, o_ref: Any) -> None:
        o_ref[...] = 2 * x_ref[...]

    spec = pl.BlockSpec((block, x.shape[1]), lambda i: (i, 0))
    return pl.pallas_call(
        body,
        out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(pl.cdiv(x.shape[0], block),),
        in_specs=[spec],
        out_specs=spec,
    )(x)


SPEC_WRONG_TWIN = KernelSpec(
    name="wrong_twin",
    kernel=doubled_rows,
    reference=twice,
    inputs=pst.arguments(
        pst.arrays("m n", dtype="float32", dims={"m": [8, 13, 19], "n": [4, 128]}),
        tuning={"block": 8},
    ),
    exact=True,
    implementations={"last_block_dropped": last_block_dropped},
    checks=("forward", "cross"),
)


def naive_wrong_twin() -> None:
    agrees(last_block_dropped, twice)
